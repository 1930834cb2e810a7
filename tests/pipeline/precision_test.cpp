// Precisions of whole jobs: what is in a file against what the job asks for, what a device must be
// able to do, and what 8-bit storage does to a clip.
#include "pipeline/precision.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/latents_file.h"
#include "pipeline/job_fixture.h"
#include "support/compare.h"
#include "support/safetensors_file.h"

namespace flotilla {
namespace {

using config::Precision;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

enum class Scales { none, one_each };

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

class PrecisionTest : public test::JobTest {
 protected:
  // The tiny checkpoint with the layers that fp8_cast quantises in 8 bits.
  std::filesystem::path write_narrow(Scales scales) const {
    const auto file = test::open_tiny("ltx23-dev.safetensors");
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, info] : file->tensors()) {
      at::Tensor tensor = file->read(name);
      const bool is_layer = loader::is_quantised_layer(name);
      if (is_layer && scales == Scales::one_each && name.ends_with(".weight")) {
        // A power of two: dividing by it and multiplying again change nothing.
        tensors.emplace(name + "_scale", at::full({}, 1.0F / 64));
        tensors.emplace(name.substr(0, name.size() - 6) + "input_scale", at::ones({}));
        tensor = (tensor.to(at::kFloat) * 64).to(at::kFloat8_e4m3fn);
      } else if (is_layer && scales == Scales::none) {
        tensor = tensor.to(at::kFloat8_e4m3fn);
      }
      tensors.emplace(name, std::move(tensor));
    }
    auto path = dir_ / "narrow.safetensors";
    std::map<std::string, std::string> metadata;
    for (const char* key : {"config", "model_version"}) {
      if (const std::string* text = file->metadata(key)) metadata.emplace(key, *text);
    }
    test::write_safetensors(path, tensors, metadata);
    return path;
  }

  static std::string job(const std::string& precision, const std::filesystem::path& file = {}) {
    const std::string line = precision.empty() ? "" : "precision: " + precision;
    std::string text =
        replaced(job_text("distilled", "", "seed: 5\n" + outputs()), "precision: fp32", line);
    if (file.empty()) return text;
    return replaced(text, (test::tiny_dir() / "ltx23-dev.safetensors").string(), file.string());
  }

  // The clip's latents.
  at::Tensor latents(const std::string& text) const {
    run(text);
    const at::Tensor video =
        io::read_latents(dir_ / "clip.h5").tensors.at(io::latents::kStage2Video);
    for (const char* name : {"clip.h5", "clip.json", "clip.y4m", "clip.wav"})
      std::filesystem::remove(dir_ / name);
    return video;
  }
};

TEST_F(PrecisionTest, FilesThatDoNotFitAreRefusedBeforeTheirWeightsAreRead) {
  const std::string bare = write_narrow(Scales::none);
  for (const char* precision : {"fp32", "bf16"}) {
    const Error error = refusal(job(precision, bare));
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr(std::string("precision: ") + precision + " does not fit"),
                      HasSubstr("narrow.safetensors"), HasSubstr("use precision: fp8_cast")));
  }
  const std::string scaled = write_narrow(Scales::one_each);
  config::Job with_scales = test::tiny_job();
  with_scales.models.checkpoint = scaled;
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    with_scales.precision = precision;
    const pipeline::ModelFiles files(with_scales.models);
    EXPECT_THROW(pipeline::audit_models(files, with_scales), Error);
    EXPECT_EQ(files.bytes_read(), 0);
  }
  for (const auto precision : {Precision::fp8_cast, Precision::fp8_scaled_mm}) {
    with_scales.precision = precision;
    const pipeline::ModelFiles files(with_scales.models);
    EXPECT_NO_THROW(pipeline::audit_models(files, with_scales));
    EXPECT_EQ(files.bytes_read(), 0);
  }
}

TEST_F(PrecisionTest, NarrowFileGivesTheClipOfTheFileItWasMadeFrom) {
  const at::Tensor expected = latents(job("fp8_cast"));
  const auto narrow = write_narrow(Scales::none);
  EXPECT_TRUE(test::same_bytes(latents(job("fp8_cast", narrow)), expected));
  // Without a word about it, the file decides.
  auto prepared = pipeline::prepare_job(load(job("", narrow)), test::host());
  EXPECT_EQ(prepared.job.precision, Precision::fp8_cast);
  EXPECT_EQ(prepared.plan.dtype, at::kBFloat16);
  EXPECT_EQ(pipeline::prepare_job(load(job("")), test::host()).job.precision, Precision::fp32);
}

// Each weight is off by up to 2^-4 of it, by half of that on average and in either direction, and
// so is a layer's output. The bound is twice what clips of the demo model are off (3 %). Beside
// float32 there is no bound: its noise is another draw.
TEST_F(PrecisionTest, EightBitStorageChangesTheClipALittle) {
  const auto latents_in = [](Precision precision) {
    config::Job job = test::demo_job("a red circle moving right on a blue background", 10);
    job.video = {.width = 192, .height = 128, .num_frames = 9, .frame_rate = {24}};
    job.precision = precision;
    test::PieceRunner runner(job);
    pipeline::RunState state;
    return pipeline::run_distilled(runner.session(), 10, state);
  };
  const auto wide = latents_in(Precision::bf16);
  for (const auto precision : {Precision::fp8_cast, Precision::fp8_scaled_mm}) {
    const auto narrow = latents_in(precision);
    for (const auto& [actual, expected] :
         {std::pair(narrow.video, wide.video), std::pair(narrow.audio, wide.audio)}) {
      const at::Tensor exact = expected.to(at::kFloat);
      const double distance =
          ((actual.to(at::kFloat) - exact).norm() / exact.norm()).item<double>();
      EXPECT_LT(distance, 0.06) << static_cast<int>(precision);
      EXPECT_GT(distance, 0.001);  // the weights are rounded
    }
  }
}

TEST_F(PrecisionTest, PlanAndMetricsTellThePolicyAndItsBytes) {
  const auto bytes = [&](const std::string& precision) {
    return pipeline::prepare_job(load(job(precision)), test::host()).plan.weight_bytes;
  };
  EXPECT_LT(bytes("fp8_cast"), bytes("bf16"));
  EXPECT_LT(bytes("bf16"), bytes("fp32"));
  const auto prepared = run(job("fp8_cast"));
  EXPECT_THAT(prepared.plan.describe(),
              Contains(AllOf(HasSubstr("weights: the transformer takes"), HasSubstr("fp8_cast"))));
  const auto metrics = nlohmann::json::parse(test::read_file(dir_ / "clip.json"));
  EXPECT_EQ(metrics.at("plan").at("precision"), "fp8_cast");
  EXPECT_EQ(metrics.at("plan").at("weight_bytes"), prepared.plan.weight_bytes);
}

TEST_F(PrecisionTest, ProductsOfEightBitsNeedAGpuThatHasThem) {
  const auto refused = [](const gpu::DeviceFacts& device) {
    try {
      pipeline::check_precision(Precision::fp8_scaled_mm, device);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::machine);
      return error.message();
    }
    return std::string();
  };
  EXPECT_THAT(refused({"NVIDIA A100", gpu::Capability{8, 0}}),
              AllOf(HasSubstr("compute capability 8.9"), HasSubstr("NVIDIA A100 has 8.0"),
                    HasSubstr("use precision: fp8_cast or bf16")));
  EXPECT_EQ(refused({"NVIDIA L4", gpu::Capability{8, 9}}), "");
  EXPECT_EQ(refused({"NVIDIA H200", gpu::Capability{9, 0}}), "");
  EXPECT_EQ(refused({"another", gpu::Capability{10, 0}}), "");
  EXPECT_THAT(refused({"some CPU", std::nullopt}),
              AllOf(HasSubstr("on a CPU (some CPU)"), HasSubstr("use precision: fp8_cast")));
  EXPECT_NO_THROW(
      pipeline::check_precision(Precision::fp8_cast, {"NVIDIA A100", gpu::Capability{8, 0}}));
}

}  // namespace
}  // namespace flotilla
