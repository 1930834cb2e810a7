// What a run tells of itself: events while it runs, metrics after it, and a clip that can be made
// again from what it carries.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/ffmpeg.h"
#include "io/latents_file.h"
#include "io/subprocess.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome run_program(std::vector<std::string> arguments) {
  const auto result = io::run_process(arguments, {}, /*limit_s=*/120);
  EXPECT_TRUE(WIFEXITED(result.status)) << io::describe_status(result.status);
  return {WEXITSTATUS(result.status), std::string(result.output.begin(), result.output.end()),
          result.errors};
}

Outcome flotilla(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FLOTILLA_PROGRAM);
  return run_program(arguments);
}

bool can_write_mp4() {
  const auto found = io::find_ffmpeg({}, std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  return found && found->can_write_mp4();
}

std::vector<json> events_of(const std::string& text) {
  std::vector<json> events;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    events.push_back(json::parse(line, nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << line;
    EXPECT_THAT(line, testing::StartsWith("{\"event\":\"")) << "kind first";
  }
  return events;
}

std::vector<json> of_kind(const std::vector<json>& events, const std::string& kind) {
  std::vector<json> found;
  for (const auto& event : events) {
    if (event.at("event") == kind) found.push_back(event);
  }
  return found;
}

class RecordsTest : public ::testing::Test {
 protected:
  // On the tiny model; the job's outputs are `outputs`.
  std::string write_job(const std::string& outputs, const std::string& prompt = "a boat") {
    test::write_file(
        dir_ / "job.yaml",
        fmt::format("models:\n  checkpoint: {0}/ltx23-dev.safetensors\n  spatial_upsampler: "
                    "{0}/ltx23-spatial-upscaler-x2.safetensors\n  text_encoder: {0}/gemma\n"
                    "prompt: {2}\nseed: 3\ndevice: cpu\nprecision: fp32\n"
                    "video: {{width: 128, height: 64, num_frames: 9, frame_rate: 24}}\n"
                    "output: {{{1}}}\n",
                    test::tiny_dir().string(), outputs, json(prompt).dump()));
    return (dir_ / "job.yaml").string();
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  test::TempDir dir_;
};

TEST_F(RecordsTest, EventsTellOfTheWholeJobInOrder) {
  const std::string job = write_job("path: a.y4m");
  ASSERT_EQ(flotilla({"run", job, "--events", path("e.jsonl")}).code, 0);
  const auto events = events_of(test::read_file(path("e.jsonl")));
  ASSERT_GT(events.size(), 4U);
  EXPECT_EQ(events.front().at("event"), "accepted");
  EXPECT_EQ(events.front().at("seed"), 3);
  EXPECT_EQ(events.front().at("outputs").at("clip"), path("a.y4m"));
  EXPECT_EQ(events.back().at("event"), "done");
  EXPECT_EQ(events.back().at("exit_code"), 0);
  std::vector<std::string> phases;
  for (const auto& event : of_kind(events, "phase")) phases.push_back(event.at("phase"));
  EXPECT_THAT(phases, testing::IsSupersetOf({"text", "stage_1", "upsample", "stage_2",
                                             "decode_video", "decode_audio"}));
  const auto& steps = events.front().at("steps");
  for (const char* stage : {"stage_1", "stage_2"}) {
    int64_t next = 1;
    for (const auto& event : of_kind(events, "step")) {
      if (event.at("stage") != stage) continue;
      EXPECT_EQ(event.at("step"), next++);
      EXPECT_EQ(event.at("steps"), steps.at(stage));
      EXPECT_GE(event.at("eta_s").get<double>(), 0);
      if (event.at("step") == event.at("steps")) EXPECT_EQ(event.at("eta_s"), 0);
    }
    EXPECT_EQ(next - 1, steps.at(stage));
  }
  double last = 0;
  for (const auto& event : events) {
    if (!event.contains("at_s")) continue;
    EXPECT_GE(event.at("at_s").get<double>(), last);
    last = event.at("at_s").get<double>();
  }
}

TEST_F(RecordsTest, EventsOnStandardOutputAreAloneThere) {
  const Outcome outcome = flotilla({"run", write_job("path: a.y4m"), "--events", "-"});
  EXPECT_EQ(outcome.code, 0);
  const auto events = events_of(outcome.out);
  EXPECT_EQ(events.back().at("event"), "done");
}

TEST_F(RecordsTest, RanksTellOnceUnderTheController) {
  const std::string job = write_job("path: a.y4m");
  const Outcome outcome = flotilla({"run", "--ranks", "2", job, "--events", "-"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto events = events_of(outcome.out);
  EXPECT_EQ(of_kind(events, "accepted").size(), 1U);
  EXPECT_EQ(of_kind(events, "accepted").at(0).at("world_size"), 2);
  EXPECT_EQ(of_kind(events, "done").size(), 1U);
}

TEST_F(RecordsTest, ErrorsAreEventsWhereverTheyArise) {
  const std::string job = write_job("path: a.y4m");
  const Outcome config = flotilla({"run", job, "--set", "video.width=3", "--events", "-"});
  EXPECT_EQ(config.code, 2);
  auto events = events_of(config.out);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].at("kind"), "config");
  EXPECT_EQ(events[0].at("exit_code"), 2);
  EXPECT_THAT(events[0].at("message").get<std::string>(), HasSubstr("video.width"));
  // In a phase, and on two ranks, where all of them fail alike.
  test::write_file(path("a.y4m"), "mine");
  for (const char* ranks : {"1", "2"}) {
    const Outcome output = flotilla({"run", "--ranks", ranks, job, "--events", "-"});
    EXPECT_EQ(output.code, 8);
    events = of_kind(events_of(output.out), "error");
    ASSERT_EQ(events.size(), 1U) << ranks;
    EXPECT_EQ(events[0].at("kind"), "output");
  }
}

TEST_F(RecordsTest, EventsNeedARun) {
  const std::string job = write_job("path: a.y4m");
  EXPECT_EQ(flotilla({"run", job, "--dry-run", "--events", "-"}).code, 2);
  EXPECT_EQ(flotilla({"run", job, "--events", path("none/e")}).code, 8);
}

}  // namespace
}  // namespace flotilla
