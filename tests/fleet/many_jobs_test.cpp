// Fifty jobs of ten kinds through one fleet of two ranks: each leaves the bytes of a cold run, and
// the ranks hold as much memory after the last one as after the fifth.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "fleet_fixture.h"
#include "io/subprocess.h"
#include "support/golden.h"

namespace flotilla::fleet {
namespace {

using nlohmann::json;

struct Kind {
  int width = 128, height = 128, frames = 9;
  std::string prompt = "a boat";
  std::string more = {};   // lines of the job
  std::string model = {};  // lines of its models
};

// The first five have all sizes, prompts and features: a process keeps encoded prompts, models, and
// (oneDNN) compiled kernels for each new size of a tensor.
std::vector<Kind> kinds() {
  const std::string other_script = "Grüße aus Köln: 海と船";
  std::string long_prompt;
  for (int i = 0; i < 12; ++i) long_prompt += "a long walk along the harbour of a small town ";
  const std::string tiny = test::tiny_dir().string();
  const std::string image = fmt::format("images: [{{path: {}/image.png, crf: 0}}]\n", tiny);
  const std::string lora =
      fmt::format("  loras: [{{path: {}/ltx23-distilled-lora.safetensors}}]\n", tiny);
  return {
      {.width = 192, .height = 192, .frames = 17},
      {.prompt = long_prompt, .more = image},
      {.more = "decoder: {tiling: {spatial: {size: 64, overlap: 32}}}\n"},
      {.prompt = other_script, .model = lora},
      {.height = 64, .frames = 1, .more = "stage_1: {sigmas: [1.0, 0.5, 0.0]}\n"},
      {.height = 64, .frames = 1, .prompt = long_prompt, .model = lora},
      {.prompt = other_script},
      {.more = image},
      {.model = lora},
      {.prompt = long_prompt},
  };
}

// `reproducible: world`: one rank leaves the same bytes as two.
std::string yaml(const Kind& kind, size_t seed, const std::filesystem::path& output) {
  return fmt::format(
      "models:\n  checkpoint: {0}/ltx23-dev.safetensors\n"
      "  spatial_upsampler: {0}/ltx23-spatial-upscaler-x2.safetensors\n"
      "  text_encoder: {0}/gemma\n{1}prompt: \"{2}\"\nseed: {3}\ndevice: cpu\nprecision: fp32\n"
      "reproducible: world\n"
      "video: {{width: {4}, height: {5}, num_frames: {6}, frame_rate: 24}}\n"
      "output: {{path: {7}, overwrite: true}}\n{8}",
      test::tiny_dir().string(), kind.model, kind.prompt, seed, kind.width, kind.height,
      kind.frames, output.string(), kind.more);
}

class ManyJobsTest : public FleetFixture {
 protected:
  // What a run in a process of its own leaves.
  std::string cold_result(const Kind& kind, size_t seed) const {
    const auto job = folder_ / "cold.yaml", clip = folder_ / "cold.y4m";
    test::write_file(job, yaml(kind, seed, clip));
    const auto run = io::run_process({FLOTILLA_PROGRAM, "run", job.string()}, {}, /*limit_s=*/300);
    EXPECT_EQ(run.status, 0) << run.errors;
    return bytes_of(clip);
  }
  // Of a job of the fleet; `held` gets the bytes of each rank after it.
  std::string warm_result(Controller& fleet, const Kind& kind, size_t seed,
                          std::vector<double>& held) const {
    const auto clip = folder_ / "warm.y4m";
    Stream stream =
        fleet.stream(json{{"job_yaml", yaml(kind, seed, clip)}, {"return", {"residents"}}});
    while (const auto item = stream.next()) {
      if (item->body.at("event") == "residents")
        held = item->body.at("host_bytes").get<std::vector<double>>();
    }
    return bytes_of(clip);
  }
  // Picture and sound; they go, so that the next job's cannot be these.
  static std::string bytes_of(std::filesystem::path clip) {
    std::string bytes = test::read_file(clip);
    std::filesystem::remove(clip);
    bytes += test::read_file(clip.replace_extension(".wav"));
    std::filesystem::remove(clip);
    return bytes;
  }
};

TEST_F(ManyJobsTest, MemoryAndResultsStayAsTheyWere) {
  constexpr size_t kJobs = 50, kSettled = 5;
  const auto all = kinds();
  std::vector<size_t> order(kJobs);
  for (size_t i = 0; i < kJobs; ++i) order[i] = i % all.size();
  std::shuffle(order.begin() + kSettled, order.end(), std::mt19937(3));
  std::vector<std::string> cold;
  for (size_t kind = 0; kind < all.size(); ++kind) cold.push_back(cold_result(all[kind], kind));

  ControllerOptions options = marked(FLOTILLA_PROGRAM, {"worker"});
  options.ranks = 2;
  Controller fleet(options);
  std::vector<double> settled, held;
  for (size_t job = 0; job < kJobs; ++job) {
    const size_t kind = order[job];
    EXPECT_TRUE(warm_result(fleet, all[kind], kind, held) == cold[kind])
        << "job " << job << " of kind " << kind;
    if (job + 1 == kSettled) settled = held;
  }
  ASSERT_EQ(held.size(), 2U);
#ifndef __SANITIZE_ADDRESS__  // which keeps what was freed
  for (size_t rank = 0; rank < held.size(); ++rank) {
    EXPECT_LT(held[rank], 1.01 * settled[rank]) << "rank " << rank;
    EXPECT_GT(held[rank], 0.5 * settled[rank]) << "rank " << rank << ": not measured";
  }
#endif
  RecordProperty("bytes_after_job_5", fmt::format("{:.0f}", settled[0]));
  RecordProperty("bytes_after_job_50", fmt::format("{:.0f}", held[0]));
}

}  // namespace
}  // namespace flotilla::fleet
