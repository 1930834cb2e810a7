// What a run tells of itself: events while it runs, metrics after it, and a clip that can be made
// again from what it carries.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
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
using ::testing::AllOf;
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
  EXPECT_THAT(outcome.err, HasSubstr("a.y4m"));  // the last line says where the clip is
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

TEST_F(RecordsTest, MetricsTellTimesMemoryAndLatentsOfEveryRank) {
  const std::string job = write_job("path: a.y4m, latents: a.h5, metrics: a.json");
  ASSERT_EQ(run_program({"/usr/bin/env", "SLURM_JOB_ID=17", "SLURM_RESTART_COUNT=2",
                         "SECRET_TOKEN=xyzzy", FLOTILLA_PROGRAM, "run", "--ranks", "2", job})
                .code,
            0);
  const std::string text = test::read_file(path("a.json"));
  EXPECT_EQ(text.find("xyzzy"), std::string::npos);
  const json metrics = json::parse(text);
  EXPECT_EQ(metrics.at("slurm").at("job_id"), "17");
  EXPECT_EQ(metrics.at("slurm").at("restart_count"), 2);
  EXPECT_LE(metrics.at("start").get<std::string>(), metrics.at("end").get<std::string>());
  EXPECT_EQ(metrics.at("start").get<std::string>().size(), 25U);
  EXPECT_EQ(metrics.at("devices").size(), 2U);
  EXPECT_EQ(metrics.at("plan").at("stage_1").at("parallel"), "sp");
  // A span for each phase of each rank, ordered in time and as long as the phase is.
  std::map<std::string, double> seconds;
  std::set<int> ranks;
  for (const auto& span : metrics.at("timeline")) {
    const double length = span.at("end_s").get<double>() - span.at("start_s").get<double>();
    EXPECT_GE(length, 0);
    ranks.insert(span.at("rank").get<int>());
    if (span.at("rank") == 0) seconds[span.at("phase")] += length;
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  for (const char* phase : {"stage_1", "stage_2", "text"}) {
    const auto& spread = metrics.at("over_ranks").at("phases").at(std::string(phase) + "_s");
    EXPECT_GE(seconds[phase], spread.at("min").get<double>() - 1e-3) << phase;
    EXPECT_LE(seconds[phase], spread.at("max").get<double>() + 1e-3) << phase;
    const auto& memory = metrics.at("phases_memory").at(phase);
    EXPECT_EQ(memory.at("host_bytes").size(), 2U);
    for (const auto& bytes : memory.at("host_bytes")) {
      if (bytes.is_null()) continue;
      EXPECT_GT(bytes, 0);
      EXPECT_LE(bytes, metrics.at("peak_host_bytes"));
    }
    EXPECT_TRUE(memory.at("device_bytes").at(0).is_null());
  }
  const auto latents = io::read_latents(path("a.h5"));
  EXPECT_EQ(latents.restart_count, 2);
  const auto& video = latents.tensors.at(io::latents::kStage2Video);
  EXPECT_DOUBLE_EQ(metrics.at("latents").at("stage_2").at("video").at("max_abs").get<double>(),
                   video.abs().max().item<double>());
  EXPECT_EQ(metrics.at("checkpoint").at("writes"), 0);
}

TEST_F(RecordsTest, ChecksumsAreEqualForEqualLatents) {
  const std::string job = write_job("path: a.y4m, metrics: a.json");
  ASSERT_EQ(flotilla({"run", job, "--set", "checkpoint.path=" + path("c.h5")}).code, 0);
  ASSERT_EQ(flotilla({"run", job, "--output", path("b.y4m"), "--metrics", path("b.json")}).code, 0);
  ASSERT_EQ(
      flotilla({"run", job, "--output", path("c.y4m"), "--metrics", path("c.json"), "--seed", "4"})
          .code,
      0);
  const auto metrics = [&](const char* name) { return json::parse(test::read_file(path(name))); };
  EXPECT_EQ(metrics("a.json").at("latents"), metrics("b.json").at("latents"));
  EXPECT_EQ(metrics("a.json").at("job").at("hash"), metrics("b.json").at("job").at("hash"));
  EXPECT_NE(metrics("a.json").at("latents"), metrics("c.json").at("latents"));
  EXPECT_NE(metrics("a.json").at("job").at("hash"), metrics("c.json").at("job").at("hash"));
  EXPECT_GT(metrics("a.json").at("checkpoint").at("writes"), 0);
}

TEST_F(RecordsTest, MetricsAsATableHaveOneRow) {
  const std::string job = write_job("path: a.y4m, metrics: a.csv");
  ASSERT_EQ(flotilla({"run", job}).code, 0);
  const std::string text = test::read_file(path("a.csv"));
  EXPECT_THAT(text, testing::StartsWith("start,end,flotilla,"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(RecordsTest, LogBeginsWithVersionsAndRanksAndEndsWithTheOutcome) {
  const std::string job = write_job("path: a.y4m");
  const Outcome good = flotilla({"run", job});
  EXPECT_THAT(good.err, AllOf(HasSubstr("LibTorch"), HasSubstr("HDF5"), HasSubstr("rank 0: "),
                              HasSubstr("exit code 0 (success)"), HasSubstr("a.y4m")));
  const Outcome bad = flotilla({"run", job});
  EXPECT_THAT(bad.err, HasSubstr("exit code 8 (output)"));
}

TEST_F(RecordsTest, ClipIsMadeOnceMoreFromItsOwnFiles) {
  if (!can_write_mp4()) GTEST_SKIP() << "no ffmpeg with libx264 and aac";
  const std::string job = write_job("path: a.mp4, latents: a.h5, overwrite: true");
  ASSERT_EQ(flotilla({"run", job}).code, 0);
  const auto first = io::read_latents(path("a.h5")).tensors;
  for (const char* source : {"a.mp4", "a.h5"}) {
    const std::string name = std::string("again-") + source;
    const Outcome again = flotilla({"run", "--from", path(source), "--output", path(name + ".mp4"),
                                    "--latents", path(name + ".h5")});
    ASSERT_EQ(again.code, 0) << again.err;
    const auto second = io::read_latents(path(name + ".h5")).tensors;
    ASSERT_EQ(first.size(), second.size());
    for (const auto& [tensor_name, tensor] : first)
      EXPECT_TRUE(at::equal(tensor, second.at(tensor_name))) << tensor_name;
  }
  // The first run's permission to overwrite is not this one's.
  EXPECT_EQ(flotilla({"run", "--from", path("a.mp4")}).code, 8);
  const Outcome changed = flotilla({"run", "--from", path("a.mp4"), "--set", "seed=9", "--output",
                                    path("c.mp4"), "--latents", path("c.h5")});
  EXPECT_EQ(changed.code, 0) << changed.err;
  EXPECT_EQ(io::read_latents(path("c.h5")).seed, 9);
  EXPECT_EQ(flotilla({"run", job, "--from", path("a.mp4")}).code, 2);
}

TEST_F(RecordsTest, FilesWithoutAJobAreRefused) {
  test::write_file(path("text"), "no clip");
  EXPECT_EQ(flotilla({"run", "--from", path("text")}).code, 3);
  EXPECT_EQ(flotilla({"run", "--from", path("none.mp4")}).code, 3);
  const auto ffmpeg = io::find_ffmpeg({}, std::getenv("PATH"));
  if (!ffmpeg || !ffmpeg->can_write_mp4()) GTEST_SKIP() << "no ffmpeg with libx264 and aac";
  const auto make = [&](const std::string& name, const std::string& comment) {
    ASSERT_EQ(run_program({ffmpeg->path.string(), "-loglevel", "error", "-f", "lavfi", "-i",
                           "testsrc=size=64x64:duration=1", "-metadata", "comment=" + comment,
                           path(name)})
                  .code,
              0);
  };
  make("other.mp4", "filmed at sea");
  const Outcome other = flotilla({"run", "--from", path("other.mp4")});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("filmed at sea"));
  make("broken.mp4", "schema_version: 1\npromp: a boat\n");
  EXPECT_EQ(flotilla({"run", "--from", path("broken.mp4")}).code, 3);
  const std::string whole = test::read_file(path("other.mp4"));
  test::write_file(path("cut.mp4"), whole.substr(0, whole.size() / 2));
  EXPECT_EQ(flotilla({"run", "--from", path("cut.mp4")}).code, 3);
}

TEST_F(RecordsTest, PreviewsAreAskedFor) {
  const std::string job = write_job("path: a.y4m, overwrite: true");
  const auto clip_of = [&](const std::vector<std::string>& more, size_t previews) {
    std::vector<std::string> arguments = {"run", job, "--ranks", "2", "--events", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = flotilla(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(of_kind(events_of(outcome.out), "preview").size(), previews);
    return test::read_file(path("a.y4m"));
  };
  EXPECT_EQ(clip_of({"--preview-every", "2"}, 4), clip_of({}, 0));
  for (const char* wrong : {"0", "-1", "1.5"}) {
    const Outcome refused = flotilla({"run", job, "--events", "-", "--preview-every", wrong});
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr("1 or more")) << wrong;
  }
  const Outcome deaf = flotilla({"run", job, "--preview-every", "2"});
  EXPECT_EQ(deaf.code, 2);
  EXPECT_THAT(deaf.err, HasSubstr("goes with --events"));
  const Outcome plan = flotilla({"run", job, "--dry-run", "--json", "--preview-every", "2"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_TRUE(json::parse(plan.out)
                  .at(json::json_pointer("/memory/phases/stage_1/host"))
                  .contains("weights of the video decoder"));
}

TEST_F(RecordsTest, EventsNeedARun) {
  const std::string job = write_job("path: a.y4m");
  EXPECT_EQ(flotilla({"run", job, "--dry-run", "--events", "-"}).code, 2);
  EXPECT_EQ(flotilla({"run", job, "--events", path("none/e")}).code, 8);
}

}  // namespace
}  // namespace flotilla
