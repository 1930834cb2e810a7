// flotilla run --ranks: exit codes of the ranks whatever mpirun makes of them, signals with time to
// stop, and no process left, also when the controller itself is killed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/subprocess.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Arguments = std::vector<std::string>;

// So that an environment made for tests does not do the controller's work.
void clear_environment() {
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe",
                           "OMPI_MCA_hwloc_base_binding_policy", "FLOTILLA_TEST_FAULT"})
    unsetenv(name);
}

class ControllerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    clear_environment();
    test::write_file(dir_ / "job.yaml",
                     fmt::format("models:\n  checkpoint: {0}/ltx23-dev.safetensors\n"
                                 "  spatial_upsampler: {0}/ltx23-spatial-upscaler-x2.safetensors\n"
                                 "  text_encoder: {0}/gemma\nprompt: a boat\nseed: 3\ndevice: cpu\n"
                                 "precision: fp32\n"
                                 "video: {{width: 256, height: 256, num_frames: 33, "
                                 "frame_rate: 24}}\n"
                                 "output: {{path: a.y4m, overwrite: true}}\n",
                                 test::tiny_dir().string()));
  }

  struct End {
    int code = -1;  // 128 + n: ended by signal n
    std::string log;
  };

  // Runs `flotilla run` with two ranks; once the log has `when`, lets `act` do something to the
  // controller.
  template <typename Act>
  End run_and(const Arguments& more, const std::string& when, Act act) const {
    const fs::path log = dir_ / "log";
    test::write_file(log, "");
    Arguments argv = {
        "/bin/sh", "-c", "exec \"$@\" 2>\"$0\"", log.string(), FLOTILLA_PROGRAM, "run", job(),
        "--ranks", "2"};
    argv.insert(argv.end(), more.begin(), more.end());
    io::Process process(argv, /*read_output=*/false);
    std::optional<int> status;
    while (!status && test::read_file(log).find(when) == std::string::npos)
      status = process.wait(0.02);
    if (!status) {
      act(process.id());
      status = process.wait(/*limit_s=*/120);
    }
    EXPECT_TRUE(status) << "it hangs";
    const int value = status.value_or(0);
    return {WIFEXITED(value) ? WEXITSTATUS(value) : 128 + WTERMSIG(value), test::read_file(log)};
  }
  End run(const Arguments& more = {}) const {
    return run_and(more, "", [](pid_t) {});
  }

  std::string job() const { return (dir_ / "job.yaml").string(); }
  // Ranks and launchers of this test's job; those whose command line begins so.
  std::vector<pid_t> processes(const std::string& program = "") const {
    std::vector<pid_t> found;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc", gone)) {
      std::ifstream in(entry.path() / "cmdline");
      const std::string line((std::istreambuf_iterator<char>(in)), {});
      if (line.starts_with(program) && line.find(job()) != std::string::npos)
        found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }
  bool all_gone(double limit_s) const {
    const auto start = std::chrono::steady_clock::now();
    while (!processes().empty()) {
      if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(limit_s))
        return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  Arguments with_checkpoint() const {
    return {"--set", "checkpoint.path=" + (dir_ / "state.h5").string()};
  }

  test::TempDir dir_;
};

TEST_F(ControllerTest, RunsTheJobOnItsRanks) {
  const End end = run();
  EXPECT_EQ(end.code, 0) << end.log;
  EXPECT_TRUE(fs::exists(dir_ / "a.y4m"));
  EXPECT_THAT(end.log, HasSubstr("rank 0/2"));
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_F(ControllerTest, ErrorsKeepTheirExitCodes) {
  struct Case {
    Arguments arguments;
    int code;
    const char* words;
  };
  for (const auto& [arguments, code, words] :
       {Case{{"--set", "video.width=100"}, 2, "video.width"},
        Case{{"--set", "models.checkpoint=missing.safetensors"}, 3, "missing.safetensors"},
        Case{{"--output", "/proc/no/a.y4m"}, 8, "/proc/no"},
        Case{{"--mpirun", "/no/mpirun"}, 4, "no such program"},
        Case{{"--mpirun", "/bin/false"}, 4, "did not start the ranks"},
        Case{{"--grace", "0"}, 2, "--grace 0"}}) {
    const End end = run(arguments);
    EXPECT_EQ(end.code, code) << end.log;
    EXPECT_THAT(end.log, HasSubstr(words));
    EXPECT_EQ(end.log.find("ERROR "), end.log.rfind("ERROR ")) << "one message\n" << end.log;
  }
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_F(ControllerTest, RanksMustBeANumberAndComeWithoutALauncher) {
  const auto code = [&](const std::string& command) {
    return WEXITSTATUS(io::run_process({"/bin/sh", "-c", command + " 2>/dev/null"}, {}, 60).status);
  };
  for (const char* ranks : {"0", "-1", "two", "2x", "1025", "''"})
    EXPECT_EQ(code(fmt::format("{} run {} --ranks={}", FLOTILLA_PROGRAM, job(), ranks)), 2)
        << ranks;
  EXPECT_EQ(code(fmt::format("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 {} run {} --ranks 2",
                             FLOTILLA_PROGRAM, job())),
            2);
  EXPECT_EQ(code(fmt::format("{} run {} --grace 3", FLOTILLA_PROGRAM, job())), 2);
  EXPECT_EQ(code(fmt::format("{} run - --ranks 2 < {}", FLOTILLA_PROGRAM, job())), 2);
}

TEST_F(ControllerTest, ALostRankIsNamedAndGivesSix) {
  for (const char* fault : {"rank=1,phase=stage_1,step=2,do=kill", "rank=0,phase=text,do=exit"}) {
    setenv("FLOTILLA_TEST_FAULT", fault, 1);
    const End end = run();
    const bool first = std::string(fault).find("rank=0") == 0;
    EXPECT_EQ(end.code, 6) << end.log;
    EXPECT_THAT(end.log, AllOf(HasSubstr(fmt::format("rank {} ended (process ", first ? 0 : 1)),
                               HasSubstr(fmt::format("its last phase was \"{}",
                                                     first ? "text" : "stage_1, step 2 of 8"))));
    EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
    EXPECT_THAT(processes(), IsEmpty());
  }
}

TEST_F(ControllerTest, OwnErrorsOfARankPassThrough) {
  setenv("FLOTILLA_TEST_FAULT", "rank=1,phase=stage_1,step=2,do=throw", 1);
  EXPECT_EQ(run().code, 4);
  setenv("FLOTILLA_TEST_FAULT", "rank=1,phase=stage_1,step=2,do=nan", 1);
  EXPECT_EQ(run().code, 7);
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_F(ControllerTest, SignalsStopTheRanksWithACheckpoint) {
  ASSERT_EQ(run().code, 0);
  const auto expected = test::read_file(dir_ / "a.y4m");
  Arguments arguments = with_checkpoint();
  arguments.insert(arguments.end(), {"--set", "checkpoint.every_steps=1"});
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    fs::remove(dir_ / "a.y4m");
    for (const char* state : {"state.h5", "state_prev.h5"}) fs::remove(dir_ / state);
    const End end = run_and(arguments, "plan: stage_1", [&](pid_t controller) {
      // SIGTERM in stage 1, after its first step; the others before, while models are loaded.
      while (signal == SIGTERM && !fs::exists(dir_ / "state_prev.h5") && !processes().empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ::kill(controller, signal);
    });
    ASSERT_EQ(end.code, 75) << end.log;
    if (signal == SIGTERM) {
      EXPECT_THAT(end.log, HasSubstr("of stage_1"));
    }
    EXPECT_THAT(processes(), IsEmpty());
    EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
    const End second = run({"--resume", (dir_ / "state.h5").string()});
    ASSERT_EQ(second.code, 0) << second.log;
    EXPECT_TRUE(test::read_file(dir_ / "a.y4m") == expected);
  }
}

TEST_F(ControllerTest, SecondSignalEndsTheRanksAtOnce) {
  setenv("FLOTILLA_TEST_FAULT", "rank=1,phase=load_text,do=hang", 1);
  const End end = run_and(with_checkpoint(), "plan: stage_1", [](pid_t controller) {
    ::kill(controller, SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    ::kill(controller, SIGINT);
  });
  EXPECT_EQ(end.code, 128 + SIGINT) << end.log;
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_F(ControllerTest, RanksThatDoNotStopInTimeAreEnded) {
  setenv("FLOTILLA_TEST_FAULT", "rank=1,phase=load_text,do=hang", 1);
  Arguments arguments = with_checkpoint();
  arguments.insert(arguments.end(), {"--grace", "0.5"});
  const End end =
      run_and(arguments, "plan: stage_1", [](pid_t controller) { ::kill(controller, SIGTERM); });
  EXPECT_EQ(end.code, 128 + SIGTERM) << end.log;
  EXPECT_THAT(end.log, HasSubstr("--grace"));
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_F(ControllerTest, WithoutACheckpointTheFirstSignalEndsTheJob) {
  const End end =
      run_and({}, "plan: stage_1", [](pid_t controller) { ::kill(controller, SIGTERM); });
  EXPECT_EQ(end.code, 128 + SIGTERM) << end.log;
  EXPECT_THAT(end.log, Not(HasSubstr("ERROR")));
  EXPECT_THAT(processes(), IsEmpty());
}

TEST_F(ControllerTest, NothingOutlivesAKilledController) {
  for (const char* moment : {"run: 2 ranks through", "plan: stage_1"}) {
    const End end = run_and({}, moment, [](pid_t controller) { ::kill(controller, SIGKILL); });
    EXPECT_EQ(end.code, 128 + SIGKILL);
    EXPECT_TRUE(all_gone(/*limit_s=*/30)) << moment;
    EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
  }
}

TEST_F(ControllerTest, NothingOutlivesAKilledMpirun) {
  const End end = run_and({}, "plan: stage_1", [&](pid_t) {
    for (const pid_t mpirun : processes(FLOTILLA_MPIEXEC)) ::kill(mpirun, SIGKILL);
  });
  EXPECT_EQ(end.code, 6) << end.log;
  EXPECT_THAT(processes(), IsEmpty());
}

}  // namespace
}  // namespace flotilla
