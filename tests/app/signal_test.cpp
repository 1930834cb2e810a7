// Signals to a running program, at many moments: it stops with exit code 75 and goes on to the same
// bytes, or it had finished. Under mpirun a signal to any rank counts, and SIGUSR1 to mpirun.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "io/latents_file.h"
#include "io/subprocess.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

class SignalTest : public ::testing::Test {
 protected:
  using Seconds = std::chrono::duration<double>;

  void write_job(const std::string& size, const std::string& more = "") const {
    const bool has_lora = more.find("ti2vid_two_stages") != std::string::npos;
    const std::string lora =
        has_lora ? fmt::format("  distilled_lora: {{path: {}/ltx23-distilled-lora.safetensors}}\n",
                               test::tiny_dir().string())
                 : "";
    test::write_file(
        dir_ / "job.yaml",
        fmt::format("models:\n  checkpoint: {0}/ltx23-dev.safetensors\n"
                    "  spatial_upsampler: {0}/ltx23-spatial-upscaler-x2.safetensors\n"
                    "  text_encoder: {0}/gemma\n{3}prompt: a boat\nseed: 3\ndevice: cpu\n"
                    "precision: fp32\nvideo: {{{1}, frame_rate: 24}}\n"
                    "checkpoint: {{path: state.h5, every_steps: 1}}\n"
                    "output: {{path: a.y4m, latents: a.h5}}\n{2}",
                    test::tiny_dir().string(), size, more, lora));
  }

  std::vector<std::string> command(int ranks, const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv;
    if (ranks > 1) argv = {FLOTILLA_MPIEXEC, "-n", std::to_string(ranks)};
    argv.insert(argv.end(), {FLOTILLA_PROGRAM, "run"});
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return argv;
  }

  struct End {
    int status = 0;  // as from waitpid()
    std::string errors;
    int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
  };
  // Starts the job and, `delay` after its first words, lets `act` do something to it, with the
  // process at hand. Before them it loads its libraries, and a signal ends it like any program.
  template <typename Act>
  End run_and(int ranks, const std::vector<std::string>& arguments, Seconds delay, Act act) const {
    io::Process process(command(ranks, arguments), /*read_output=*/false);
    std::optional<int> status;
    while (!status && process.errors().empty()) status = process.wait(0.02);
    if (!status) status = process.wait(delay.count());
    if (!status) {
      act(process.id());
      status = process.wait(120);
    }
    EXPECT_TRUE(status) << "it hangs";
    return {status.value_or(0), process.errors()};
  }
  End run(int ranks, const std::vector<std::string>& arguments) const {
    return run_and(ranks, arguments, Seconds(120), [](pid_t) {});
  }

  std::string job() const { return (dir_ / "job.yaml").string(); }
  std::string state() const { return (dir_ / "state.h5").string(); }

  // Runs without a signal; keeps what it made, and the time that it took.
  Seconds make_expected(int ranks) {
    std::chrono::steady_clock::time_point start;
    const End end = run_and(ranks, {job()}, Seconds(0),
                            [&](pid_t) { start = std::chrono::steady_clock::now(); });
    EXPECT_EQ(end.code(), 0) << end.errors;
    const Seconds took = std::chrono::steady_clock::now() - start;
    expected_clip_ = test::read_file(dir_ / "a.y4m");
    expected_ = io::read_latents(dir_ / "a.h5").tensors;
    remove_all();
    return took;
  }
  void remove_all() const {
    for (const char* name : {"a.y4m", "a.wav", "a.h5", "state.h5", "state_prev.h5"})
      fs::remove(dir_ / name);
  }
  void expect_same_result() const {
    EXPECT_TRUE(test::read_file(dir_ / "a.y4m") == expected_clip_);
    const auto made = io::read_latents(dir_ / "a.h5").tensors;
    for (const auto& [name, tensor] : expected_)
      EXPECT_TRUE(test::same_bytes(made.at(name), tensor)) << name;
  }
  // After a run that was told to stop: it has done so, or was ready.
  void expect_stopped_or_done(int ranks, const End& end) const {
    ASSERT_THAT(end.code(), AnyOf(Eq(75), Eq(0))) << end.errors;
    if (end.code() == 75) {
      EXPECT_FALSE(fs::exists(dir_ / "a.y4m") || fs::exists(dir_ / "a.h5"));
      const End second = run(ranks, {"--resume", state()});
      ASSERT_EQ(second.code(), 0) << second.errors;
    }
    expect_same_result();
    remove_all();
  }

  // The processes of the program that run this test's job.
  std::vector<pid_t> ranks_of_job() const {
    std::vector<pid_t> found;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc", gone)) {
      std::ifstream in(entry.path() / "cmdline");
      const std::string line((std::istreambuf_iterator<char>(in)), {});
      if (line.starts_with(FLOTILLA_PROGRAM) && line.find(job()) != std::string::npos)
        found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }

  test::TempDir dir_;
  std::string expected_clip_;
  std::map<std::string, at::Tensor> expected_;
};

TEST_F(SignalTest, OneRankStopsAtTenMoments) {
  write_job("width: 256, height: 128, num_frames: 33");
  const Seconds took = make_expected(1);
  constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
  for (int i = 0; i < 10; ++i) {
    const int signal = kSignals[i % 4];
    SCOPED_TRACE(fmt::format("moment {}, signal {}", i, signal));
    expect_stopped_or_done(1, run_and(1, {job()}, took * (0.05 + 0.1 * i),
                                      [&](pid_t process) { ::kill(process, signal); }));
  }
}

TEST_F(SignalTest, SecondSignalEndsTheProcessAtOnce) {
  write_job("width: 512, height: 512, num_frames: 97");
  const End end = run_and(1, {job()}, Seconds(1.5), [](pid_t process) {
    ::kill(process, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    ::kill(process, SIGTERM);
  });
  // 75: a step ended in between.
  EXPECT_THAT(end.code(), AnyOf(Eq(128 + SIGTERM), Eq(75)));
  for (const auto& entry : fs::directory_iterator(dir_.path()))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

TEST_F(SignalTest, WithoutCheckpointASignalEndsTheProcessAtOnce) {
  write_job("width: 256, height: 128, num_frames: 97");
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const End end = run_and(1, {job(), "--set", "checkpoint="}, Seconds(0.7),
                            [&](pid_t process) { ::kill(process, signal); });
    EXPECT_EQ(end.code(), 128 + signal) << end.errors;
    remove_all();  // the latents, had it come to the decode
  }
}

// A moment of the job, held open by a fault that pauses one rank there.
struct Moment {
  const char* phase;
  int step;
};
constexpr Moment kMoments[] = {{"load_text", 0},   {"text", 0},    {"load_transformer", 0},
                               {"stage_1", 1},     {"stage_1", 3}, {"upsample", 0},
                               {"fuse_loras", 0},  {"stage_2", 2}, {"decode_video", 0},
                               {"decode_audio", 0}};
// Who gets the signal.
enum class Target { one_rank, mpirun, controller };

class MomentTest : public SignalTest, public ::testing::WithParamInterface<Target> {
 protected:
  void TearDown() override { ::unsetenv("FLOTILLA_TEST_FAULT"); }

  std::vector<std::string> start(const std::vector<std::string>& arguments) const {
    if (GetParam() != Target::controller) return command(2, arguments);
    auto argv = command(1, arguments);
    argv.insert(argv.end(), {"--ranks", "2"});
    return argv;
  }
  // A signal to the target, once the job is where it pauses.
  End run_until(const Moment& moment) const {
    const std::string fault =
        fmt::format("rank=1,phase={},step={},do=pause", moment.phase, moment.step);
    ::setenv("FLOTILLA_TEST_FAULT", fault.c_str(), 1);
    // Few lines: what a process keeps of its standard error is its beginning.
    io::Process process(start({job(), "--quiet"}), /*read_output=*/false);
    std::optional<int> status;
    while (!status && process.errors().find("pauses at") == std::string::npos)
      status = process.wait(0.01);
    if (!status) {
      const auto ranks = ranks_of_job();
      const bool to_rank = GetParam() == Target::one_rank && !ranks.empty();
      ::kill(to_rank ? ranks.back() : process.id(),
             GetParam() == Target::mpirun ? SIGUSR1 : SIGTERM);
      status = process.wait(120);
    }
    ::unsetenv("FLOTILLA_TEST_FAULT");
    EXPECT_TRUE(status) << "it hangs";
    return {status.value_or(0), process.errors()};
  }
};

// Every third one goes on here: from each safe point runs do in pipeline/resume_ranks_test.cpp.
TEST_P(MomentTest, StopsAllRanksAndGoesOnToTheSameBytes) {
  write_job("width: 128, height: 128, num_frames: 9",
            "pipeline: ti2vid_two_stages\nstage_1: {steps: 4}\nstage_2: {parallel: sp}\n");
  make_expected(2);
  int count = static_cast<int>(GetParam());
  for (const Moment& moment : kMoments) {
    SCOPED_TRACE(fmt::format("{}, step {}", moment.phase, moment.step));
    const End end = run_until(moment);
    EXPECT_THAT(end.errors, HasSubstr("pauses at"));
    const bool goes_on = ++count % 3 == 0;
    if (end.code() == 75 && !goes_on) {
      EXPECT_TRUE(fs::exists(state()) && !fs::exists(dir_ / "a.y4m"));
      remove_all();
    } else {
      expect_stopped_or_done(2, end);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SigtermToOneRank, MomentTest, ::testing::Values(Target::one_rank));
INSTANTIATE_TEST_SUITE_P(SigusrToMpirun, MomentTest, ::testing::Values(Target::mpirun));
INSTANTIATE_TEST_SUITE_P(SigtermToController, MomentTest, ::testing::Values(Target::controller));

// mpirun gives its ranks one second and returns its own code, also when they got ready in it: what
// counts is the last checkpoint.
TEST_F(SignalTest, SigtermToMpirunLeavesAWholeCheckpoint) {
  write_job("width: 256, height: 256, num_frames: 33");
  const Seconds took = make_expected(2);
  run_and(2, {job()}, took * 0.8, [](pid_t mpirun) { ::kill(mpirun, SIGTERM); });
  const End second = run(2, {job(), "--set", "checkpoint.resume=must", "--overwrite"});
  ASSERT_EQ(second.code(), 0) << second.errors;
  expect_same_result();
}

// Started on two ranks, in exact mode, and gone on with one, without the job file.
TEST_F(SignalTest, ExactRunGoesOnWithAnotherNumberOfRanks) {
  write_job("width: 256, height: 256, num_frames: 33", "reproducible: world\n");
  const Seconds took = make_expected(1);
  for (const int ranks : {1, 4}) {
    const End end = run_and(2, {job()}, took, [](pid_t mpirun) { ::kill(mpirun, SIGUSR1); });
    expect_stopped_or_done(ranks, end);
  }
}

}  // namespace
}  // namespace flotilla
