// flotilla sweep end to end: killed and restarted, in another order, with points that fail, in
// shards, stopped, and on two ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/name_locks.h"
#include "io/subprocess.h"
#include "io/sweep_manifest.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using io::PointEvent;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

class SweepTest : public ::testing::Test {
 protected:
  struct End {
    int code = -1;  // 128 + n: ended by signal n
    std::string out;
    std::string err;
  };

  void SetUp() override {
    for (const char* name : {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX",
                             "SLURM_ARRAY_TASK_COUNT", "FLOTILLA_TEST_FAULT"})
      unsetenv(name);
  }

  // A sweep of a small job on the tiny model; `more`: further keys of the job, on lines of their
  // own.
  std::string write_sweep(const std::string& points, const std::string& folder = "clips",
                          const std::string& name = "{index:02}", const std::string& more = "",
                          const std::string& output = "path: x.y4m, latents: x.h5") const {
    const fs::path file = dir_ / (folder + ".yaml");
    test::write_file(
        file, fmt::format("job:\n  models:\n    checkpoint: {0}/ltx23-dev.safetensors\n"
                          "    spatial_upsampler: {0}/ltx23-spatial-upscaler-x2.safetensors\n"
                          "    text_encoder: {0}/gemma\n  prompt: a boat\n  device: cpu\n"
                          "  precision: fp32\n{4}"
                          "  video: {{width: 128, height: 64, num_frames: 9, frame_rate: 24}}\n"
                          "  output: {{{5}}}\noutput: {{folder: {2}, name: \"{3}\"}}\n{1}",
                          test::tiny_dir().string(), points, folder, name, more, output));
    return file.string();
  }

  End run(Arguments arguments) const {
    arguments.insert(arguments.begin(), {FLOTILLA_PROGRAM, "sweep"});
    return run_program(arguments);
  }
  static End run_program(const Arguments& arguments) {
    const auto result = io::run_process(arguments, {}, /*limit_s=*/200);
    const int code =
        WIFEXITED(result.status) ? WEXITSTATUS(result.status) : 128 + WTERMSIG(result.status);
    return {code, std::string(result.output.begin(), result.output.end()), result.errors};
  }

  // Sends `signal` once `num_done` points are recorded as done, or `when` holds of a record.
  int run_until(const std::string& sweep, int signal, size_t num_done) const {
    io::Process process({FLOTILLA_PROGRAM, "sweep", sweep}, /*read_output=*/false);
    std::optional<int> status;
    while (!status && count(PointEvent::done) < num_done) status = process.wait(0.01);
    if (!status) {
      ::kill(process.id(), signal);
      status = process.wait(/*limit_s=*/120);
    }
    EXPECT_TRUE(status) << "it hangs";
    const int value = status.value_or(0);
    return WIFEXITED(value) ? WEXITSTATUS(value) : 128 + WTERMSIG(value);
  }

  std::vector<io::PointRecord> records(const std::string& folder = "clips") const {
    return io::read_manifests(dir_ / folder);
  }
  size_t count(PointEvent event, const std::string& folder = "clips") const {
    const auto all = records(folder);
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& r) { return r.event == event; }));
  }
  std::string clip(const std::string& name, const std::string& folder = "clips") const {
    return test::read_file(dir_ / folder / (name + ".y4m"));
  }

  // Checksums of what is done, by the settings of the points.
  std::map<std::string, std::string> checksums(const std::string& folder) const {
    std::map<std::string, std::string> found;
    for (const auto& record : records(folder)) {
      if (record.event != PointEvent::done) continue;
      std::set<std::string> values;  // whatever order the file has them in
      for (const auto& [key, value] : record.values) values.insert(key + "=" + value);
      std::string text;
      for (const auto& value : values) text += value + ' ';
      EXPECT_EQ(found.count(text), 0u) << text << " was made twice";
      found[text] = record.checksum;
    }
    return found;
  }

  test::TempDir dir_;
};

TEST_F(SweepTest, KilledTwiceItMakesEveryPointOnceAndTheOrderChangesNothing) {
  const std::string sweep =
      write_sweep("grid:\n  seed: [1, 2, 3, 4, 5, 6]\n  prompt: [a boat, a cat]\n");
  EXPECT_EQ(run_until(sweep, SIGKILL, 3), 128 + SIGKILL);
  EXPECT_LT(count(PointEvent::done), 7u);
  EXPECT_EQ(run_until(sweep, SIGKILL, 7), 128 + SIGKILL);
  const End end = run({sweep});
  ASSERT_EQ(end.code, 0) << end.err;
  std::set<std::string> done;
  for (const auto& record : records()) {
    EXPECT_EQ(done.count(record.hash), 0u)
        << record.name << " was done, and " << to_string(record.event) << " again";
    if (record.event == PointEvent::done) done.insert(record.hash);
  }
  EXPECT_EQ(done.size(), 12u);
  EXPECT_TRUE(fs::is_empty(dir_ / "clips/state"));

  std::string shuffled = "points:\n";
  for (const char* prompt : {"a cat", "a boat"}) {
    for (const int seed : {4, 1, 6, 3, 5, 2})
      shuffled += fmt::format("  - {{prompt: {}, seed: {}}}\n", prompt, seed);
  }
  const End other = run({write_sweep(shuffled, "shuffled")});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(checksums("shuffled"), checksums("clips"));
  EXPECT_EQ(checksums("clips").size(), 12u);
  EXPECT_EQ(clip("00"), clip("07", "shuffled"));  // seed 1, a boat: sound and pictures too
  EXPECT_NE(clip("00"), clip("01"));

  // A point's own file makes it again, alone and in a new process.
  const End again =
      run_program({FLOTILLA_PROGRAM, "run", (dir_ / "clips/05.yaml").string(), "--output",
                   (dir_ / "again.y4m").string(), "--latents", (dir_ / "again.h5").string()});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(test::read_file(dir_ / "again.y4m"), clip("05"));
}

TEST_F(SweepTest, PointsThatAreDoneStayUnlessTheirFilesChange) {
  const std::string sweep = write_sweep("grid: {seed: [1, 2, 3]}\n");
  ASSERT_EQ(run({sweep}).code, 0);
  const std::string second = clip("01");
  fs::remove(dir_ / "clips/00.y4m");
  test::write_file(dir_ / "clips/01.y4m", "another film");
  const End end = run({sweep, "--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, AllOf(HasSubstr("\"00.y4m\" is gone"), HasSubstr("\"01.y4m\" has changed")));
  const auto points = nlohmann::json::parse(end.out);
  std::vector<bool> made;
  for (const auto& point : points) made.push_back(point.at("made_now"));
  EXPECT_THAT(made, ElementsAre(true, true, false));
  EXPECT_EQ(clip("01"), second);
}

TEST_F(SweepTest, AFailedPointDoesNotEndTheSweep) {
  const fs::path image = dir_ / "image.png";
  test::write_file(image, "no picture");
  const std::string sweep = write_sweep(
      "points:\n  - {seed: 1}\n  - images: [{path: image.png, crf: 0}]\n    seed: 2\n  - {seed: "
      "3}\n");
  const End end = run({sweep, "--quiet"});
  EXPECT_EQ(end.code, 9) << end.err;
  EXPECT_THAT(end.out, AllOf(HasSubstr("    1  01    failed"), HasSubstr("    2  02    done")));
  EXPECT_THAT(end.err, HasSubstr("1 of 3 points have failed"));
  EXPECT_EQ(count(PointEvent::done), 2u);

  fs::copy_file(test::tiny_dir() / "image.png", image, fs::copy_options::overwrite_existing);
  const End told = run({sweep});  // it stays failed, and is told
  EXPECT_EQ(told.code, 9) << told.err;
  EXPECT_EQ(count(PointEvent::started), 3u);
  const End retried = run({sweep, "--retry-failed"});
  EXPECT_EQ(retried.code, 0) << retried.err;
  EXPECT_EQ(count(PointEvent::done), 3u);
  EXPECT_EQ(count(PointEvent::started), 4u);
}

TEST_F(SweepTest, ShardsAndElementsOfAnArrayMakeAllPoints) {
  const std::string sweep = write_sweep("grid: {seed: [1, 2, 3, 4, 5]}\n");
  EXPECT_EQ(run({sweep, "--count"}).out, "5\n");
  for (const char* shard : {"1/3", "2/3"}) {
    const End end = run({sweep, "--shard", shard});
    ASSERT_EQ(end.code, 0) << end.err;
  }
  EXPECT_EQ(count(PointEvent::done), 3u);
  setenv("SLURM_ARRAY_TASK_ID", "2", 1);
  setenv("SLURM_ARRAY_TASK_MIN", "0", 1);
  setenv("SLURM_ARRAY_TASK_MAX", "2", 1);
  setenv("SLURM_ARRAY_TASK_COUNT", "3", 1);
  const End end = run({sweep});  // the same as --shard 3/3
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(checksums("clips").size(), 5u);
  setenv("SLURM_ARRAY_TASK_ID", "7", 1);
  setenv("SLURM_ARRAY_TASK_MAX", "7", 1);
  setenv("SLURM_ARRAY_TASK_COUNT", "8", 1);
  EXPECT_THAT(run({sweep}).err, HasSubstr("element 7 of the array has no point"));
  EXPECT_EQ(run({sweep, "--shard", "4/3"}).code, 2);
  EXPECT_EQ(run({sweep, "--point", "5"}).code, 2);
  const End list = run({sweep, "--list", "--json"});
  for (const auto& point : nlohmann::json::parse(list.out)) EXPECT_EQ(point.at("state"), "done");
}

TEST_F(SweepTest, TwoProcessesOnTheSamePointsAreRefused) {
  const std::string sweep = write_sweep("grid: {seed: [1, 2]}\n");
  fs::create_directories(dir_ / "clips");
  io::NameLocks locks(dir_ / "clips/sweep.lock");
  ASSERT_TRUE(locks.try_lock("01"));
  const End busy = run({sweep});
  EXPECT_EQ(busy.code, 9);
  EXPECT_THAT(busy.err, HasSubstr("another process works on point 1 (01)"));
  const End end = run({sweep, "--point", "0"});
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(SweepTest, FilesOfOthersAndMissingInputsAreRefusedBeforeAnyWork) {
  const std::string sweep = write_sweep("grid: {seed: [1, 2]}\n");
  fs::create_directories(dir_ / "clips");
  test::write_file(dir_ / "clips/01.h5", "mine");
  const End end = run({sweep});
  EXPECT_EQ(end.code, 8);
  EXPECT_THAT(end.err, HasSubstr("01.h5"));
  EXPECT_EQ(test::read_file(dir_ / "clips/01.h5"), "mine");
  const End missing =
      run({write_sweep("grid: {models.text_encoder: [a, b], seed: [1, 2]}\n", "c")});
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("/a"), HasSubstr("/b")));
  EXPECT_TRUE(records().empty() && records("c").empty());
}

TEST_F(SweepTest, ASignalStopsItAndTheSameCommandGoesOn) {
  const std::string sweep = write_sweep("grid: {seed: [1, 2, 3, 4]}\n", "clips", "{index:02}",
                                        "  checkpoint: {every_steps: 1}\n");
  ASSERT_EQ(run_until(sweep, SIGTERM, 2), 75);
  EXPECT_LT(count(PointEvent::done), 4u);
  const End end = run({sweep});
  ASSERT_EQ(end.code, 0) << end.err;
  const std::string plain = write_sweep("grid: {seed: [1, 2, 3, 4]}\n", "plain");
  ASSERT_EQ(run({plain}).code, 0);
  EXPECT_EQ(checksums("plain"), checksums("clips"));
}

TEST_F(SweepTest, TwoRanksGoOnAfterAFailedPoint) {
  test::write_file(dir_ / "image.png", "no picture");
  const std::string points =
      "points:\n  - {seed: 1}\n  - images: [{path: image.png, crf: 0}]\n    seed: 2\n  - {seed: "
      "3}\n";
  const std::string exact = "  reproducible: world\n";
  const End end = run({write_sweep(points, "two", "{index:02}", exact), "--ranks", "2"});
  EXPECT_EQ(end.code, 9) << end.err;
  EXPECT_THAT(end.err, HasSubstr("rank 0/2"));
  const End one = run({write_sweep(points, "one", "{index:02}", exact)});
  EXPECT_EQ(one.code, 9) << one.err;
  EXPECT_EQ(checksums("two"), checksums("one"));
  EXPECT_EQ(checksums("two").size(), 2u);
}

}  // namespace
}  // namespace flotilla
