// The stock runner on two ranks of `flotilla worker`: jobs one after the other equal cold runs to
// the byte, and a wrong job costs itself only.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "fleet_fixture.h"
#include "io/ffmpeg.h"
#include "io/subprocess.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla::fleet {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;

class JobRunnerTest : public FleetFixture {
 protected:
  ControllerOptions options() const {
    ControllerOptions options = marked(FLOTILLA_PROGRAM, {"worker"});
    options.ranks = 2;
    return options;
  }
  // `more`: further lines.
  std::string job(const std::string& output, const std::string& more = "") const {
    return fmt::format(
        "models:\n  checkpoint: {0}/ltx23-dev.safetensors\n"
        "  spatial_upsampler: {0}/ltx23-spatial-upscaler-x2.safetensors\n"
        "  text_encoder: {0}/gemma\nprompt: a boat\nseed: 3\ndevice: cpu\nprecision: fp32\n"
        "video: {{width: 256, height: 256, num_frames: 9, frame_rate: 24}}\n"
        "output: {{path: {1}}}\n{2}",
        test::tiny_dir().string(), output, more);
  }
  Stream start(Controller& fleet, const std::string& output, const std::string& more = "",
               const json& wanted = json::array()) const {
    return fleet.stream(json{{"job_yaml", job(output, more)},
                             {"base_folder", dir_.path().string()},
                             {"return", wanted}});
  }
  template <typename Expected>
  static void expect_refused(Stream stream, ErrorKind kind, const std::string& words) {
    try {
      stream.drain();
      FAIL() << "it ran";
    } catch (const Expected& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  }
  std::string file(const std::string& name) const { return test::read_file(dir_ / name); }

  test::TempDir dir_;
};

struct Yield {
  std::vector<std::string> events;
  std::map<std::string, at::Tensor> tensors;
};

Yield read_all(Stream stream) {
  Yield yield;
  while (auto item = stream.next()) {
    yield.events.push_back(item->body.at("event").get<std::string>());
    for (auto& [name, tensor] : item->tensors) yield.tensors.emplace(name, std::move(tensor));
  }
  return yield;
}

TEST_F(JobRunnerTest, AWarmJobEqualsAColdRun) {
  test::write_file(dir_ / "cold.yaml", job("cold.y4m"));
  const auto cold =
      io::run_process({FLOTILLA_PROGRAM, "run", (dir_ / "cold.yaml").string(), "--ranks", "2"}, {},
                      /*limit_s=*/300);
  ASSERT_EQ(cold.status, 0) << cold.errors;
  Controller fleet(options());
  const json wanted = {"latents", "audio", "frames"};
  const Yield first = read_all(start(fleet, "first.y4m", "", wanted));
  read_all(start(fleet, "between.y4m", "stage_1: {sigmas: [1.0, 0.5, 0.0]}\n"));
  const Yield second = read_all(start(fleet, "second.y4m", "", wanted));
  EXPECT_THAT(first.events, Contains("accepted"));
  EXPECT_THAT(first.events, Contains("step"));
  EXPECT_EQ(first.events.back(), "done");
  ASSERT_EQ(first.tensors.size(), 4U);
  EXPECT_EQ(first.tensors.at("frames").sizes(), at::IntArrayRef({9, 256, 256, 3}));
  for (const auto& [name, tensor] : first.tensors)
    EXPECT_TRUE(tensor.equal(second.tensors.at(name))) << name;
  EXPECT_EQ(file("first.y4m"), file("cold.y4m"));
  EXPECT_EQ(file("second.y4m"), file("cold.y4m"));
}

TEST_F(JobRunnerTest, AWrongJobCostsItselfOnly) {
  Controller fleet(options());
  read_all(start(fleet, "one.y4m"));
  using Refused = SymmetricRunnerError;
  expect_refused<Refused>(start(fleet, "two.y4m", "nonsense: 1\n"), ErrorKind::config, "nonsense");
  expect_refused<Refused>(start(fleet, "two.y4m", "images: [{path: missing.png}]\n"),
                          ErrorKind::input, "missing.png");
  expect_refused<Refused>(start(fleet, "/proc/no/two.y4m"), ErrorKind::output, "/proc/no");
  expect_refused<Refused>(fleet.stream(json{{"yaml", "x"}}), ErrorKind::config, "job_yaml");
  for (const char* folder : {"", "here", "/dev/null", "/nowhere/at/all"}) {
    expect_refused<Refused>(fleet.stream(json{{"job_yaml", "x"}, {"base_folder", folder}}),
                            ErrorKind::config, "base_folder");
  }
  expect_refused<Refused>(start(fleet, "two.y4m", "", json{"everything"}), ErrorKind::config,
                          "everything");
  expect_refused<Refused>(fleet.stream(json{{"job_yaml", job("two.y4m")}, {"preview_every", 0}}),
                          ErrorKind::config, "preview_every 0");
  read_all(start(fleet, "two.y4m"));
  EXPECT_EQ(file("one.y4m"), file("two.y4m"));
}

TEST_F(JobRunnerTest, FfmpegIsAskedOnceForAllJobs) {
  const std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  const auto real = io::find_ffmpeg({}, path);
  if (!real || !real->can_write_mp4()) GTEST_SKIP() << "no ffmpeg that writes mp4";
  test::write_file(dir_ / "ffmpeg",
                   fmt::format("#!/bin/sh\ncase $2 in -version|-encoders) echo $2 >> {};; esac\n"
                               "exec {} \"$@\"\n",
                               (dir_ / "asked").string(), real->path.string()));
  std::filesystem::permissions(dir_ / "ffmpeg", std::filesystem::perms::owner_all);
  // mpirun puts a folder of its own in front of the PATH that it was given.
  ControllerOptions with_ffmpeg = marked(
      "/usr/bin/env", {"PATH=" + dir_.path().string() + ":" + path, FLOTILLA_PROGRAM, "worker"});
  with_ffmpeg.ranks = 2;
  Controller fleet(with_ffmpeg);
  read_all(start(fleet, "one.mp4"));
  EXPECT_EQ(file("asked"), "-version\n-encoders\n");
  read_all(start(fleet, "two.mp4"));
  EXPECT_EQ(file("asked"), "-version\n-encoders\n");
  EXPECT_TRUE(std::filesystem::exists(dir_ / "two.mp4"));
}

TEST_F(JobRunnerTest, TheCommandRefusesToRunByHand) {
  const auto by_hand = io::run_process({FLOTILLA_PROGRAM, "worker"}, {}, 60);
  EXPECT_EQ(WEXITSTATUS(by_hand.status), 2);
  EXPECT_THAT(by_hand.errors, HasSubstr("started by the controller of a fleet"));
}

}  // namespace
}  // namespace flotilla::fleet
