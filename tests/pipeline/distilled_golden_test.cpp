// The distilled pipeline end to end against the reference in float32: noise, every step of stage 1,
// latents after each stage, frames and sound; with text alone and with an image at frame 0.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "pipeline/jobs.h"
#include "support/compare.h"
#include "support/device.h"
#include "support/golden.h"
#include "vae/decoder.h"

namespace flotilla {
namespace {

using test::all_close;
namespace names = io::latents;

constexpr double kTolerance = 5e-5;

struct Case {
  std::string golden;  // e2e_distilled_<golden>
  config::Device device = config::Device::cpu;

  // Another device sums in another order: ten times the CPU's bound, as the goldens suggest.
  double tolerance() const { return device == config::Device::cpu ? kTolerance : 10 * kTolerance; }
};

config::Job job_of(const nlohmann::json& params, config::Device device = config::Device::cpu) {
  config::Job job = test::tiny_job();
  job.device = device;
  job.prompt = params.at("prompt").get<std::string>();
  job.seed = params.at("seed").get<uint64_t>();
  job.video.width = params.at("width").get<int64_t>();
  job.video.height = params.at("height").get<int64_t>();
  job.video.num_frames = params.at("frames").get<int64_t>();
  job.video.frame_rate =
      config::parse_frame_rate(fmt::format("{}", params.at("fps").get<double>())).value();
  if (!params.at("image").is_null()) {
    job.images.push_back({.path = test::tiny_dir() / params.at("image").get<std::string>(),
                          .frame = 0,
                          .strength = 1.0,
                          .crf = 0});
  }
  return job;
}

class DistilledGoldenTest : public ::testing::TestWithParam<Case> {
 protected:
  void check(const std::string& name, const at::Tensor& actual) {
    EXPECT_TRUE(all_close(actual, golden_[name], GetParam().tolerance())) << name;
  }

  // Compares what the golden has of the tokens after a step.
  void check_step(const diffusion::DenoiseState& state) {
    const std::string stage = state.stage == "stage_1" ? "stage1" : "stage2";
    const std::string base = fmt::format("{}.step{}.", stage, state.step - 1);
    if (!golden_.has(base + "video_tokens")) return;
    check(base + "video_tokens", state.video);
    check(base + "audio_tokens", state.audio);
    ++steps_checked_;
  }

  test::Golden golden_{"e2e_distilled_" + GetParam().golden};
  int64_t steps_checked_ = 0;
};

TEST_P(DistilledGoldenTest, LatentsFramesAndSoundMatch) {
  if (GetParam().device == config::Device::cuda) FLOTILLA_REQUIRE_GPU();
  test::PieceRunner runner(job_of(golden_.params(), GetParam().device));
  pipeline::Session session = runner.session();
  session.after_step = [&](const diffusion::DenoiseState& state) { check_step(state); };
  io::LatentsFile record;
  const auto latents = pipeline::run_distilled(session, *runner.job.seed, &record);
  EXPECT_EQ(steps_checked_, static_cast<int64_t>(golden_.names("stage1.step").size()) / 2);

  check("stage1.video_latent", record.tensors.at(names::kStage1Video));
  check("stage1.audio_latent", record.tensors.at(names::kStage1Audio));
  check("upscaled.video_latent", record.tensors.at(names::kUpscaledVideo));
  check("stage2.video_latent", latents.video);
  check("stage2.audio_latent", latents.audio);

  const at::Tensor frames = runner.decode(latents.video);
  EXPECT_TRUE(test::frames_close(frames.index_select(0, golden_["frame_indices"]),
                                 golden_["frames_u8_subset"]));
  if (golden_.has("frames_u8_all_every4px")) {
    const at::Tensor every4 = frames.slice(1, 0, frames.size(1), 4).slice(2, 0, frames.size(2), 4);
    EXPECT_TRUE(test::frames_close(every4, golden_["frames_u8_all_every4px"]));
  }
  // Half a uint8 step would show here; the mean over a frame hides single roundings.
  EXPECT_TRUE(all_close(frames.to(at::kFloat).div(255).mean({1, 2, 3}),
                        golden_["frames_mean_per_frame"], 1e-4));

  const auto waveform = pipeline::decode_audio(session, latents.audio);
  EXPECT_EQ(waveform.sample_rate, golden_["audio.sampling_rate"].item<int64_t>());
  EXPECT_EQ(waveform.samples.size(-1), golden_["audio.num_samples"].item<int64_t>());
  if (golden_.has("audio.waveform")) {
    check("audio.waveform", waveform.samples[0]);
  } else {
    check("audio.waveform_every8", waveform.samples[0].slice(1, 0, waveform.samples.size(-1), 8));
  }
}

TEST_P(DistilledGoldenTest, FirstNoiseMatchesToTheBit) {
  test::PieceRunner runner(job_of(golden_.params()));  // the noise is the CPU's on every device
  diffusion::NoiseGenerator generator(*runner.job.seed);
  const auto draw = [&](int64_t tokens) { return generator.draw({1, tokens, 128}, at::kFloat); };
  for (const auto* stage : {&runner.plan.stage_1, &runner.plan.stage_2}) {
    const std::string base = stage == &runner.plan.stage_1 ? "noise.stage1." : "noise.stage2.";
    for (const auto& [stream, tokens] : std::vector<std::pair<std::string, int64_t>>{
             {"video", stage->grid.size.num_tokens()}, {"audio", runner.plan.audio.num_tokens()}}) {
      const at::Tensor noise = draw(tokens);
      const at::Tensor first16 = golden_[base + stream + ".first16"];
      // Below AVX2 Torch draws other bits: 5e-6 apart at most.
      if (at::globalContext().hasMKL() || __builtin_cpu_supports("avx2")) {
        EXPECT_TRUE(test::same_bytes(noise.flatten().narrow(0, 0, 16), first16)) << base << stream;
        if (golden_.has(base + stream))
          EXPECT_TRUE(test::same_bytes(noise, golden_[base + stream])) << base << stream;
      } else {
        EXPECT_TRUE(all_close(noise.flatten().narrow(0, 0, 16), first16, 5e-6)) << base << stream;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DistilledGoldenTest,
                         ::testing::Values(Case{"t2v"}, Case{"i2v"},
                                           Case{"t2v", config::Device::cuda},
                                           Case{"i2v", config::Device::cuda}),
                         [](const auto& c) {
                           return c.param.golden +
                                  (c.param.device == config::Device::cuda ? "OnCuda" : "");
                         });

TEST(DistilledFramesGoldenTest, FloatFramesMatch) {
  const test::Golden golden("e2e_distilled_t2v");
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const auto decoder = vae::VideoDecoder::from_checkpoint(checkpoint, at::kFloat, at::kCPU);
  const at::Tensor pixels = decoder.decode(golden["stage2.video_latent"]);  // [1, 3, F, H, W]
  const at::Tensor first = vae::to_unit_range(pixels)[0].select(1, 0).permute({1, 2, 0});
  const at::Tensor every4 = first.slice(0, 0, first.size(0), 4).slice(1, 0, first.size(1), 4);
  EXPECT_TRUE(all_close(every4, golden["frames_f32.0_every4px"], kTolerance));
}

TEST(DistilledImagesGoldenTest, EncodedImagesMatchAtBothSizes) {
  const test::Golden golden("e2e_distilled_i2v");
  test::PieceRunner runner(job_of(golden.params()));
  const auto items =
      pipeline::encode_images(runner.session(), {&runner.plan.stage_1, &runner.plan.stage_2});
  ASSERT_EQ(items.size(), 2U);
  for (size_t stage = 0; stage < 2; ++stage) {
    ASSERT_EQ(items[stage].size(), 1U);
    const auto& item = std::get<diffusion::ReplaceFrame>(items[stage][0]);
    EXPECT_TRUE(
        all_close(item.latent, golden[fmt::format("image.stage{}.latent", stage + 1)], kTolerance))
        << stage;
  }
}

}  // namespace
}  // namespace flotilla
