// flotilla inspect: every kind of file is known by its content, and damage is one error.
// flotilla devices: works without GPUs, and says what a job would use.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "io/ffmpeg.h"
#include "io/latents_file.h"
#include "io/subprocess.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome flotilla(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FLOTILLA_PROGRAM);
  const auto result = io::run_process(arguments, {}, /*limit_s=*/120);
  EXPECT_TRUE(WIFEXITED(result.status)) << io::describe_status(result.status);
  return {WEXITSTATUS(result.status), std::string(result.output.begin(), result.output.end()),
          result.errors};
}

json inspect(const fs::path& path, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"inspect", path.string(), "--json"});
  const Outcome outcome = flotilla(options);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out, nullptr, false);
}

// A safetensors file without tensors' meaning: one of two zeros, named `tensor`.
std::string safetensors(const std::string& tensor, const json& metadata) {
  const json header = {
      {"__metadata__", metadata},
      {tensor, {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 8}}}},
  };
  const std::string text = header.dump();
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return file + text + std::string(8, '\0');
}

io::LatentsFile latents() {
  io::LatentsFile file;
  file.flotilla_version = "0.1.0 (test)";
  file.job_yaml = "prompt: a boat\nseed: 7\n";
  file.checkpoint_digest = "abc";
  file.seed = 7;
  file.world = 2;
  return file;
}

class InspectTest : public ::testing::Test {
 protected:
  // The name says nothing.
  fs::path copy_of(const fs::path& path, const std::string& name) {
    fs::copy_file(path, dir_ / name);
    return dir_ / name;
  }
  Outcome inspect_bytes(const std::string& bytes) {
    test::write_file(dir_ / "file.bin", bytes);
    return flotilla({"inspect", (dir_ / "file.bin").string()});
  }
  test::TempDir dir_;
};

TEST_F(InspectTest, CheckpointTellsPartsAndSizes) {
  const fs::path path = copy_of(test::tiny_dir() / "ltx23-dev.safetensors", "clip.mp4");
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const json report = inspect(path, {"--tensors"});
  EXPECT_EQ(report.at("kind"), "checkpoint");
  EXPECT_EQ(report.at("model_version"), checkpoint->model_version());
  EXPECT_EQ(report.at("file_bytes"), checkpoint->file_bytes());
  EXPECT_EQ(report.at("tensor_list").size(), checkpoint->tensors().size());
  int64_t bytes = 0;
  for (const auto& [name, info] : checkpoint->tensors()) bytes += info.bytes();
  int64_t told = 0;
  for (const auto& [dtype, value] : report.at("bytes_by_dtype").items()) told += value.get<int>();
  EXPECT_EQ(told, bytes);
  const auto& parts = report.at("parts");
  size_t tensors = report.at("other_tensors");
  for (const char* part :
       {"text", "transformer", "video_encoder", "video_decoder", "audio_vae", "vocoder"}) {
    EXPECT_EQ(parts.at(part).at("implemented"), true) << part;
    tensors += parts.at(part).at("tensors").get<size_t>();
  }
  EXPECT_EQ(tensors, checkpoint->tensors().size());
  const auto& config = checkpoint->config().at("transformer");
  const auto& summary = parts.at("transformer").at("config");
  EXPECT_EQ(summary.at("layers"), config.at("num_layers"));
  EXPECT_EQ(summary.at("video").at("heads"), config.at("num_attention_heads"));
  EXPECT_EQ(summary.at("video").at("head_dim"), config.at("attention_head_dim"));
}

TEST_F(InspectTest, TextIsForPeople) {
  const fs::path path = test::tiny_dir() / "ltx23-dev.safetensors";
  const Outcome outcome = flotilla({"inspect", path.string()});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("checkpoint\n"), HasSubstr("MiB"), HasSubstr("layers"),
                    HasSubstr("implemented"), HasSubstr("yes"), Not(HasSubstr("tensor_list"))));
  const Outcome tensors = flotilla({"inspect", path.string(), "--tensors"});
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  for (const auto& [name, info] : checkpoint->tensors()) EXPECT_THAT(tensors.out, HasSubstr(name));
}

TEST_F(InspectTest, OtherPartsAreKnown) {
  const json upsampler = inspect(test::tiny_dir() / "ltx23-spatial-upscaler-x2.safetensors");
  EXPECT_EQ(upsampler.at("parts").at("upsampler").at("config").at("scale"), 2.0);
  EXPECT_EQ(upsampler.at("parts").size(), 1U);
  const json encoder = inspect(test::tiny_dir() / "gemma");
  EXPECT_EQ(encoder.at("kind"), "text_encoder");
  EXPECT_EQ(encoder.at("implemented"), true) << encoder;
}

TEST_F(InspectTest, PartThatIsNotImplementedIsNamed) {
  const json config = {{"transformer", {{"_class_name", "AVTransformer3DModel"}}}};
  test::write_file(dir_ / "x", safetensors("model.diffusion_model.patchify_proj.weight",
                                           {{"config", config.dump()}, {"model_version", "9.0"}}));
  const json report = inspect(dir_ / "x");
  const auto& part = report.at("parts").at("transformer");
  EXPECT_EQ(report.at("model_version"), "9.0");
  EXPECT_EQ(part.at("implemented"), false);
  EXPECT_NE(part.at("problem").get<std::string>(), "");
  EXPECT_THAT(flotilla({"inspect", (dir_ / "x").string()}).out, HasSubstr("problem"));
}

TEST_F(InspectTest, LoraTellsRanksAndPrefix) {
  const json report = inspect(copy_of(test::tiny_dir() / "ltx23-distilled-lora.safetensors", "l"));
  EXPECT_EQ(report.at("kind"), "lora");
  EXPECT_EQ(report.at("prefixes"), json::array({"diffusion_model."}));
  int64_t modules = 0;
  for (const auto& [rank, count] : report.at("modules_by_rank").items()) {
    EXPECT_GT(std::stoi(rank), 0);
    modules += count.get<int64_t>();
  }
  EXPECT_GT(modules, 0);
  EXPECT_EQ(report.at("modules"), modules);
}

TEST_F(InspectTest, LatentsTellJobAndShapes) {
  io::LatentsFile file = latents();
  file.tensors[io::latents::kStage2Video] = at::zeros({1, 4, 2, 3, 5});
  io::write_latents(dir_ / "latents", file, false);
  const json report = inspect(dir_ / "latents");
  EXPECT_EQ(report.at("kind"), "latents");
  EXPECT_EQ(report.at("seed"), 7);
  EXPECT_EQ(report.at("world"), 2);
  EXPECT_EQ(report.at("job"), file.job_yaml);
  EXPECT_EQ(report.at("datasets").at(0).at("name"), io::latents::kStage2Video);
  EXPECT_EQ(report.at("datasets").at(0).at("shape"), json::array({1, 4, 2, 3, 5}));
  EXPECT_THAT(flotilla({"inspect", (dir_ / "latents").string()}).out,
              AllOf(HasSubstr("[1, 4, 2, 3, 5]"), HasSubstr("\n  prompt: a boat\n")));
}

TEST_F(InspectTest, RunCheckpointTellsWhereItStands) {
  io::LatentsFile file = latents();
  file.tensors[io::latents::kResumeGenerator] = at::zeros({16}, at::kByte);
  file.resume_texts["stage"] = "text";
  file.resume_integers["step"] = 0;
  io::write_latents(dir_ / "state", file, false);
  const json report = inspect(dir_ / "state");
  EXPECT_EQ(report.at("kind"), "run_checkpoint");
  EXPECT_EQ(report.at("resume").at("stage"), "text");
  EXPECT_EQ(report.at("resume").at("place"), "before text");
  // A state that does not fit its results is damage.
  file.resume_texts["stage"] = "stage_2";
  io::write_latents(dir_ / "state", file, true);
  EXPECT_EQ(flotilla({"inspect", (dir_ / "state").string()}).code, 3);
}

TEST_F(InspectTest, ClipAndMetricsTellTheJob) {
  const auto ffmpeg = io::find_ffmpeg({}, std::getenv("PATH"));
  if (!ffmpeg || !ffmpeg->can_write_mp4()) GTEST_SKIP() << "no ffmpeg with libx264 and aac";
  test::write_file(
      dir_ / "job.yaml",
      fmt::format("models:\n  checkpoint: {0}/ltx23-dev.safetensors\n  spatial_upsampler: "
                  "{0}/ltx23-spatial-upscaler-x2.safetensors\n  text_encoder: {0}/gemma\n"
                  "prompt: a boat\nseed: 3\ndevice: cpu\nprecision: fp32\n"
                  "video: {{width: 128, height: 64, num_frames: 9, frame_rate: 24}}\n"
                  "output: {{path: a.mp4, metrics: a.json}}\n",
                  test::tiny_dir().string()));
  ASSERT_EQ(flotilla({"run", (dir_ / "job.yaml").string()}).code, 0);
  const json clip = inspect(copy_of(dir_ / "a.mp4", "clip"));
  EXPECT_EQ(clip.at("kind"), "clip");
  EXPECT_EQ(clip.at("video").at("width"), 128);
  EXPECT_EQ(clip.at("video").at("height"), 64);
  EXPECT_EQ(clip.at("video").at("frames"), 9);
  EXPECT_DOUBLE_EQ(clip.at("video").at("frame_rate"), 24.0);
  EXPECT_TRUE(clip.at("audio").is_object());
  EXPECT_THAT(clip.at("job").get<std::string>(),
              AllOf(HasSubstr("prompt: \"a boat\"\n"), HasSubstr("seed: 3\n")));
  const json metrics = inspect(copy_of(dir_ / "a.json", "metrics"));
  EXPECT_EQ(metrics.at("kind"), "metrics");
  EXPECT_EQ(metrics.at("seed"), 3);
  EXPECT_THAT(metrics.at("job").get<std::string>(), HasSubstr("a boat"));
  const std::string whole = test::read_file(dir_ / "a.mp4");
  EXPECT_EQ(inspect_bytes(whole.substr(0, whole.size() / 2)).code, 3);
}

TEST_F(InspectTest, StrangersAndDamageAreOneError) {
  const std::string checkpoint = test::read_file(test::tiny_dir() / "ltx23-dev.safetensors");
  io::write_latents(dir_ / "latents", latents(), false);
  const std::string hdf5 = test::read_file(dir_ / "latents");
  const std::string lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  for (const std::string& bytes :
       {std::string(), std::string("x"), std::string("just some text\n"), lfs,
        checkpoint.substr(0, 7), checkpoint.substr(0, 4000),
        checkpoint.substr(0, checkpoint.size() - 1), hdf5.substr(0, hdf5.size() / 2),
        std::string("{\"a\": 1}"), std::string("{\"a\": "), safetensors("w", json::object()),
        safetensors("w", {{"config", "{}"}})}) {
    const Outcome outcome = inspect_bytes(bytes);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("ERROR input"), HasSubstr("file.bin")));
  }
  EXPECT_EQ(flotilla({"inspect", (dir_ / "none").string()}).code, 3);
  EXPECT_EQ(flotilla({"inspect", dir_.path().string()}).code, 3);
  EXPECT_EQ(flotilla({"inspect", "/dev/null", "--json"}).code, 3);
  EXPECT_EQ(flotilla({"inspect"}).code, 2);
  EXPECT_EQ(flotilla({"inspect", "a", "b"}).code, 2);
}

TEST(DevicesTest, TellWhatAJobWouldUse) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // alike with and without GPUs
  const Outcome outcome = flotilla({"devices", "--json"});
  const Outcome text = flotilla({"devices"});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report.at("gpus"), json::array());
  EXPECT_EQ(report.at("links"), json::array());
  EXPECT_GT(report.at("cpu").at("usable_memory_bytes"), 1 << 20);
  EXPECT_GE(report.at("cpu").at("memory_bytes"), report.at("cpu").at("usable_memory_bytes"));
  EXPECT_NE(report.at("mpi").at("library"), "");
  const auto& chosen = report.at("auto");
  EXPECT_EQ(chosen.at("device"), "cpu");
  EXPECT_EQ(chosen.at("precision"), "fp32");
  EXPECT_EQ(chosen.at("precisions"), json::array({"fp32", "bf16", "fp8_cast"}));
  EXPECT_EQ(chosen.at("ranks"), 1);
  EXPECT_THAT(chosen.at("because").get<std::string>(), report.at("build").at("cuda") == "off"
                                                           ? HasSubstr("without CUDA")
                                                           : HasSubstr("hides all GPUs"));
  const auto ffmpeg = io::find_ffmpeg({}, std::getenv("PATH"));
  EXPECT_EQ(report.at("ffmpeg").is_null(), !ffmpeg.has_value());
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("cpu\n  name "), HasSubstr("because "), HasSubstr("GiB")));
  EXPECT_EQ(flotilla({"devices", "all"}).code, 2);
  EXPECT_EQ(flotilla({"devices", "--jsn"}).code, 2);
}

}  // namespace
}  // namespace flotilla
