// flotilla run --dry-run: the forecast beside what runs measure, the exit codes of the run, and the
// figures of the 22B model, of which only headers are there.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "io/subprocess.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome execute(const std::vector<std::string>& command) {
  const auto result = io::run_process(command, {}, /*limit_s=*/240);
  EXPECT_TRUE(WIFEXITED(result.status)) << io::describe_status(result.status);
  return {WEXITSTATUS(result.status), std::string(result.output.begin(), result.output.end()),
          result.errors};
}

Outcome flotilla(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FLOTILLA_PROGRAM);
  return execute(arguments);
}

class DryRunTest : public ::testing::Test {
 protected:
  // On CPUs with one thread a rank.
  void SetUp() override {
    for (const auto& [name, value] : {std::pair{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                      {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                      {"OMP_NUM_THREADS", "1"}}) {
      ::setenv(name, value, 1);
    }
  }

  std::string write_job(const std::string& text) {
    test::write_file(dir_ / "job.yaml", text);
    return (dir_ / "job.yaml").string();
  }
  std::string tiny_job(const std::string& more = "") {
    return write_job(
        fmt::format("models:\n  checkpoint: {0}/ltx23-dev.safetensors\n  spatial_upsampler: "
                    "{0}/ltx23-spatial-upscaler-x2.safetensors\n  text_encoder: {0}/gemma\n"
                    "prompt: a boat\nprecision: fp32\n"
                    "video: {{width: 128, height: 64, num_frames: 9, frame_rate: 24}}\n"
                    "output: {{path: {1}/clip.y4m}}\n{2}",
                    test::tiny_dir().string(), dir_.path().string(), more));
  }
  // The demo, with its outputs in this test's folder.
  std::vector<std::string> demo() const {
    std::vector<std::string> arguments = {"run",
                                          (test::source_dir() / "configs/demo.yaml").string()};
    for (const auto& [key, name] : {std::pair{"path", "clip.y4m"},
                                    {"contact_sheet", "sheet.png"},
                                    {"latents", "latents.h5"},
                                    {"metrics", "metrics.json"}}) {
      arguments.push_back("--set");
      arguments.push_back(fmt::format("output.{}={}", key, (dir_ / name).string()));
    }
    return arguments;
  }
  Json forecast_demo(int world) const {
    auto arguments = demo();
    arguments.insert(arguments.end(),
                     {"--dry-run", "--json", "--overwrite", "--world", std::to_string(world)});
    const Outcome outcome = flotilla(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
  Json run_demo(int world) const {
    auto command = demo();
    command.insert(command.begin(), FLOTILLA_PROGRAM);
    command.push_back("--overwrite");
    if (world > 1) command.insert(command.begin(), {FLOTILLA_MPIEXEC, "-n", std::to_string(world)});
    const Outcome outcome = execute(command);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(test::read_file(dir_ / "metrics.json"));
  }

  test::TempDir dir_;
};

// 10 % each way.
void expect_near(double forecast, double measured) {
  EXPECT_GT(forecast, 0.9 * measured);
  EXPECT_LT(forecast, 1.1 * measured);
}

TEST_F(DryRunTest, PeakMemoryAndTrafficAreThoseThatRunsMeasure) {
  for (const int world : {1, 2}) {
    SCOPED_TRACE(world);
    const Json forecast = forecast_demo(world);
    const Json measured = run_demo(world);
#ifndef __SANITIZE_ADDRESS__  // whose own memory is in every process
    expect_near(forecast["memory"]["peak_host_bytes"], measured["peak_host_bytes"]);
#endif
    int64_t bytes = 0;  // the ranks of the demo send alike
    for (const auto& stage : forecast["exchange"])
      bytes += world * stage["stage_bytes"].get<int64_t>();
    EXPECT_EQ(bytes, measured["exchange"]["bytes"]);
    EXPECT_EQ(forecast["weight_bytes"], measured["plan"]["weight_bytes"]);
  }
}

TEST_F(DryRunTest, LeavesNoOutputsAndReadsNoWeights) {
  const Outcome outcome = flotilla({"run", tiny_job(), "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("tokens"), HasSubstr("weights of the transformer"),
                                 HasSubstr("longest gap    in seconds: with --measured"),
                                 HasSubstr("clip.y4m")));
  EXPECT_FALSE(fs::exists(dir_ / "clip.y4m"));
}

TEST_F(DryRunTest, ExitCodesAreThoseOfTheRun) {
  const auto code = [&](const std::string& more, std::vector<std::string> options = {}) {
    options.insert(options.begin(), {"run", tiny_job(more), "--dry-run"});
    return flotilla(options).code;
  };
  EXPECT_EQ(code("video: {width: 100}\n"), 2);
  EXPECT_EQ(
      code("", {"--set", "prompt=" + std::string(5000, '!'), "--set", "text.strict_length=true"}),
      2);
  test::write_file(dir_ / "broken.png", "no picture");
  EXPECT_EQ(code("", {"--set", "models.checkpoint=" + (dir_ / "broken.png").string()}), 3);
  EXPECT_EQ(code(fmt::format("images: [{{path: {}, frame: 0, crf: 0}}]\n",
                             (dir_ / "broken.png").string())),
            3);
  EXPECT_EQ(code("device: cuda\n", {"--gpu-memory", "0.5"}), 5);
  EXPECT_EQ(code("device: cuda\n", {"--gpu-memory", "80"}), 0);
  EXPECT_EQ(code("device: cpu\n", {"--world", "3"}), 2);  // eight heads
  test::write_file(dir_ / "clip.y4m", "old");
  EXPECT_EQ(code(""), 8);
  EXPECT_EQ(flotilla({"run", tiny_job(), "--world", "2"}).code, 2);  // without --dry-run
}

TEST_F(DryRunTest, EstimatesByAMeasuredRunOfTheSameSizesOnly) {
  run_demo(1);
  auto arguments = demo();
  arguments.insert(arguments.end(), {"--dry-run", "--json", "--overwrite", "--measured",
                                     (dir_ / "metrics.json").string()});
  const Outcome outcome = flotilla(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json forecast = Json::parse(outcome.out);
  double longest = 0;
  for (const auto& gap : forecast["safe_points"]) {
    EXPECT_GT(gap["seconds"], 0.0) << gap;
    longest = std::max(longest, gap["seconds"].get<double>());
  }
  EXPECT_EQ(forecast["longest_gap"]["seconds"], longest);
  arguments.insert(arguments.end(), {"--set", "video.num_frames=17"});
  EXPECT_EQ(flotilla(arguments).code, 3);
}

// The numbers follow from the sizes of the model: 48 blocks, 32 heads of 128 and of 64.
TEST_F(DryRunTest, TellsEveryFigureOfThe22BModelFromItsHeaders) {
  const std::string script = (test::source_dir() / "scripts/make_sparse_ltx23.py").string();
  if (execute({"/bin/sh", "-c", "python3 --version"}).code != 0) GTEST_SKIP() << "no python3";
  ASSERT_EQ(
      execute({"/bin/sh", "-c", "python3 \"$0\" \"$1\" --lora", script, dir_.path().string()}).code,
      0);
  const std::string job = write_job(
      fmt::format("models:\n  checkpoint: {0}/ltx-2.3-22b-distilled.safetensors\n"
                  "  spatial_upsampler: {0}/ltx-2.3-spatial-upscaler-x2.safetensors\n"
                  "  text_encoder: {0}/gemma-3-12b\n"
                  "  loras: [{{path: {0}/ltx-2.3-22b-lora-384.safetensors}}]\n"
                  "prompt: a boat\ndevice: cuda\nprecision: bf16\n"
                  "video: {{width: 1536, height: 1024, num_frames: 121, frame_rate: 24}}\n"
                  "output: {{path: {0}/clip.y4m}}\n",
                  dir_.path().string()));
  const Outcome outcome =
      flotilla({"run", job, "--dry-run", "--json", "--world", "8", "--gpu-memory", "139.8"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json forecast = Json::parse(outcome.out);
  EXPECT_EQ(forecast["stage_1"]["video_tokens"], 6'144);
  EXPECT_EQ(forecast["stage_2"]["video_tokens"], 24'576);
  EXPECT_EQ(forecast["audio_tokens"], 126);
  EXPECT_EQ(forecast["padding_fraction"], 0.0);
  // Two bytes a parameter, and at most 255 between two weights.
  const int64_t weights = forecast["weight_bytes"];
  EXPECT_GE(weights, 2 * int64_t{18'988'838'144});
  EXPECT_LT(weights, 2 * int64_t{18'988'838'144} + 256 * 6'000);

  // Of 3072 tokens a rank: seven eighths of q, k, v; of the heads' results; of the keys and values
  // for the sound; and the sound's heads. Then keys and values of the text, for both streams.
  constexpr int64_t kQkv = 3072 * 3 * 4096 * 2 / 8 * 7;
  constexpr int64_t kText = 1024 * 2 * (4096 + 2048) * 2;
  constexpr int64_t kBlock =
      kQkv + kQkv / 3 + 3072 * 2 * 2048 * 2 / 8 * 7 + 126 * 2048 * 2 / 8 * 7 + kText / 8 * 7;
  const Json& exchange = forecast["exchange"][1];
  EXPECT_EQ(exchange["stage"], "stage_2");
  EXPECT_EQ(exchange["largest_call_bytes"], kQkv);
  EXPECT_EQ(exchange["step_bytes"], 48 * kBlock);
  EXPECT_EQ(exchange["stage_bytes"], 3 * 48 * kBlock);

  const Json& phases = forecast["memory"]["phases"];
  const Json& stage_2 = phases["stage_2"]["device"];
  EXPECT_EQ(stage_2["weights of the transformer"], weights);
  // Two slots for an eighth of sp.max_tokens, and two for the whole text.
  EXPECT_EQ(stage_2["buffers of the exchange"], 2 * (4096 * 3 * 4096 * 2 + kText));
  // The angles of the whole clip, float32, are larger than a block's activations of an eighth.
  EXPECT_EQ(stage_2["activations"], int64_t{6} * 24'576 * 4096 / 2 * 4);
  // Each rank keeps an eighth of what the LoRA changes clean, beside the weights on a GPU this
  // large.
  EXPECT_LT(stage_2["clean rows of this rank's share"], weights / 8 + (1 << 28));
  EXPECT_GT(stage_2["clean rows of this rank's share"], weights / 9);
  // The projection, the connectors and the last six of 48 layers.
  const int64_t text = phases["text"]["device"]["weights of the text encoder"];
  EXPECT_GT(text, 2 * int64_t{3'172'227'584});
  EXPECT_LT(text, 10LL << 30);
  EXPECT_LT(forecast["memory"]["peak_device_bytes"], 44LL << 30);
}

}  // namespace
}  // namespace flotilla
