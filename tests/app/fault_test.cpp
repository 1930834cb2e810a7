// One rank of a whole job goes wrong (FLOTILLA_TEST_FAULT): the job ends within seconds with the
// right exit code and one message that names the rank and its phase; no process and no shared
// memory of ours stays, and no clip is written.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>

#include "io/subprocess.h"
#include "support/golden.h"
#include "support/left_memory.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code = -1;
  std::string output;
  double seconds = 0;
  int errors = 0;  // lines of ours that report one
};

class JobFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test::write_file(
        dir_ / "job.yaml",
        fmt::format("models:\n  checkpoint: {0}/ltx23-dev.safetensors\n"
                    "  spatial_upsampler: {0}/ltx23-spatial-upscaler-x2.safetensors\n"
                    "  text_encoder: {0}/gemma\nprompt: a boat\nseed: 3\ndevice: cpu\n"
                    "precision: fp32\n"
                    "video: {{width: 128, height: 128, num_frames: 9, frame_rate: 24}}\n"
                    "output: {{path: a.y4m, overwrite: true}}\n",
                    test::tiny_dir().string()));
  }

  // Processes whose command line has the job's name: none of another test.
  int left_processes() const {
    int count = 0;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator("/proc", gone)) {
      std::ifstream in(entry.path() / "cmdline");
      const std::string line((std::istreambuf_iterator<char>(in)), {});
      count += line.find((dir_ / "job.yaml").string()) != std::string::npos ? 1 : 0;
    }
    return count;
  }

  // `ranks` 0: without a launcher.
  Outcome run(int ranks, const std::string& fault, const std::string& options = "") {
    const auto before = test::left_shared_memory();
    const std::string command =
        fmt::format("FLOTILLA_TEST_FAULT='{}' timeout -s KILL 100 {} {} run {} {} 2>&1", fault,
                    ranks == 0 ? "" : fmt::format("{} -n {}", FLOTILLA_MPIEXEC, ranks),
                    FLOTILLA_PROGRAM, (dir_ / "job.yaml").string(), options);
    const auto start = std::chrono::steady_clock::now();
    const auto result = io::run_process({"/bin/sh", "-c", command}, {}, /*limit_s=*/110);
    Outcome outcome;
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    outcome.code = WIFEXITED(result.status) ? WEXITSTATUS(result.status) : -1;
    outcome.output.assign(result.output.begin(), result.output.end());
    for (size_t at = 0; (at = outcome.output.find("] ERROR ", at)) != std::string::npos; ++at)
      ++outcome.errors;
    // mpirun may be gone a moment before the ranks that it has killed.
    for (int i = 0; i < 50 && left_processes() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(left_processes(), 0);
    EXPECT_EQ(test::left_shared_memory(), before);
    return outcome;
  }

  test::TempDir dir_;
};

void expect_ended(const Outcome& outcome) {
  EXPECT_NE(outcome.code, 0);
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_EQ(outcome.errors, 1);
}

struct DeathCase {
  int ranks;
  const char* fault;
  const char* phase;  // as the message has it
};

class DeathTest : public JobFaultTest, public ::testing::WithParamInterface<DeathCase> {};

TEST_P(DeathTest, IsNamedWithItsPhase) {
  const auto& [ranks, fault, phase] = GetParam();
  const Outcome outcome = run(ranks, fault);
  SCOPED_TRACE(fmt::format("{}, {:.1f} s\n{}", fault, outcome.seconds, outcome.output));
  expect_ended(outcome);
  const int rank = std::string(fault).find("rank=0") == 0 ? 0 : 1;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr(fmt::format("rank {} ended (process ", rank)),
                                    HasSubstr(fmt::format("its last phase was \"{}", phase))));
  // All is written when the ranks wait for each other at the end.
  EXPECT_EQ(fs::exists(dir_ / "a.y4m"), std::string(phase) == "finish");
}

INSTANTIATE_TEST_SUITE_P(
    Phases, DeathTest,
    ::testing::Values(DeathCase{2, "rank=1,phase=load_text,do=kill", "load_text"},
                      DeathCase{2, "rank=1,phase=text,do=crash", "text"},
                      DeathCase{4, "rank=1,phase=load_transformer,do=exit", "load_transformer"},
                      DeathCase{4, "rank=1,phase=stage_1,step=2,do=kill", "stage_1, step 2 of 8"},
                      DeathCase{2, "rank=0,phase=stage_2,step=3,do=exit", "stage_2, step 3 of 3"},
                      DeathCase{4, "rank=0,phase=decode_video,do=kill", "decode_video"},
                      DeathCase{2, "rank=1,phase=decode_audio,do=kill", "decode_audio"},
                      DeathCase{2, "rank=1,phase=finish,do=crash", "finish"}));

TEST_F(JobFaultTest, AStoppedRankIsNamed) {
  for (const auto& [rank, place, phase] :
       {std::tuple{0, "phase=decode_video", "decode_video"},
        std::tuple{1, "phase=stage_2,step=2", "stage_2, step 2 of 3"}}) {
    const Outcome outcome = run(2, fmt::format("rank={},{},do=stop", rank, place));
    SCOPED_TRACE(fmt::format("{:.1f} s\n{}", outcome.seconds, outcome.output));
    expect_ended(outcome);
    EXPECT_EQ(outcome.code, 6);
    EXPECT_THAT(
        outcome.output,
        AllOf(HasSubstr(fmt::format("rank {} has given no sign of life for 20 s", rank)),
              HasSubstr("SIGSTOP"), HasSubstr(fmt::format("its last phase was \"{}", phase))));
  }
}

TEST_F(JobFaultTest, AnErrorInAStepGivesItsExitCode) {
  for (const int ranks : {2, 4}) {
    const Outcome outcome = run(ranks, "rank=1,phase=stage_1,step=2,do=throw");
    SCOPED_TRACE(fmt::format("{:.1f} s\n{}", outcome.seconds, outcome.output));
    expect_ended(outcome);
    EXPECT_EQ(outcome.code, 4);
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("rank 1/"), HasSubstr("stage_1: "),
                                      HasSubstr("the fault that a test asked for")));
  }
}

TEST_F(JobFaultTest, OneRankOutOfMemoryEndsAllAndNamesThePhase) {
  for (const char* phase : {"load_text", "load_transformer", "stage_1"}) {
    const Outcome outcome = run(4, fmt::format("rank=1,phase={},do=oom", phase));
    SCOPED_TRACE(fmt::format("{:.1f} s\n{}", outcome.seconds, outcome.output));
    expect_ended(outcome);
    EXPECT_EQ(outcome.code, 5);
    EXPECT_THAT(outcome.output, AllOf(HasSubstr(fmt::format("{}: out of host memory", phase)),
                                      HasSubstr("rank 1")));
  }
}

TEST_F(JobFaultTest, NonFiniteNumbersAreNamedByStageStepStreamAndRank) {
  const Outcome video = run(2, "rank=1,phase=stage_2,step=2,do=nan");
  SCOPED_TRACE(video.output);
  expect_ended(video);
  EXPECT_EQ(video.code, 7);
  EXPECT_THAT(video.output, AllOf(HasSubstr("stage_2, step 2 of 3"), HasSubstr("video latents"),
                                  HasSubstr("rank 1/2")));
  const Outcome audio = run(0, "phase=stage_1,step=8,do=nan_audio");
  SCOPED_TRACE(audio.output);
  expect_ended(audio);
  EXPECT_EQ(audio.code, 7);
  EXPECT_THAT(audio.output, AllOf(HasSubstr("stage_1, step 8 of 8"), HasSubstr("audio latents")));
  EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
}

// One rank alone finds them; all go back to the step before, which the driver writes.
TEST_F(JobFaultTest, NonFiniteNumbersLeaveTheLastGoodStateInTheCheckpoint) {
  const std::string options = fmt::format("--set checkpoint.path={}", (dir_ / "s.h5").string());
  const auto clip_of_run = [&](int ranks, const std::string& resume) {
    const Outcome end = run(ranks, "phase=stage_2,step=3,do=pause",
                            fmt::format("{} --set checkpoint.resume={}", options, resume));
    EXPECT_EQ(end.code, 0) << end.output;
    return test::read_file(dir_ / "a.y4m");
  };
  const auto remove_all = [&] {
    for (const char* name : {"s.h5", "s_prev.h5", "a.y4m", "a.wav"}) fs::remove(dir_ / name);
  };
  const std::string whole = clip_of_run(2, "never");
  remove_all();
  for (const auto& [ranks, fault, place] :
       {std::tuple{2, "rank=1,phase=stage_1,step=3,do=nan", "after step 2 of stage_1"},
        std::tuple{2, "rank=0,phase=stage_2,step=3,do=nan_audio", "after step 2 of stage_2"},
        std::tuple{0, "phase=stage_1,step=1,do=nan", "before stage_1"}}) {
    const Outcome outcome = run(ranks, fault, options);
    SCOPED_TRACE(outcome.output);
    expect_ended(outcome);
    EXPECT_EQ(outcome.code, 7);
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("latents are NaN or infinite"),
                                      HasSubstr(fmt::format("; the state {} is in \"{}", place,
                                                            (dir_ / "s.h5").string()))));
    EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
    const std::string clip = clip_of_run(ranks, "must");
    if (ranks == 2) {
      EXPECT_THAT(outcome.output, HasSubstr(fmt::format("rank {}: ", fault[5])));
      EXPECT_TRUE(clip == whole);
    }
    remove_all();
  }
}

TEST_F(JobFaultTest, ARankThatNeverStartsIsNamed) {
  const Outcome outcome = run(3, "rank=1,phase=start,do=hang,patience=3");
  SCOPED_TRACE(fmt::format("{:.1f} s\n{}", outcome.seconds, outcome.output));
  expect_ended(outcome);
  EXPECT_EQ(outcome.code, 6);
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 of 3 did not start within 3 s"));
}

TEST_F(JobFaultTest, AComputationThatHangsInAStepIsNamedByItsOwnRank) {
  for (const auto& [ranks, fault, place] :
       {std::tuple{0, "phase=stage_1,step=3,do=hang,patience=2", "rank 0 hangs in stage_1, step 3"},
        std::tuple{2, "rank=1,phase=stage_2,step=3,do=hang,patience=2",
                   "rank 1 hangs in stage_2, step 3 of 3"}}) {
    const Outcome outcome = run(ranks, fault);
    SCOPED_TRACE(fmt::format("{:.1f} s\n{}", outcome.seconds, outcome.output));
    expect_ended(outcome);
    EXPECT_EQ(outcome.code, 6);
    EXPECT_THAT(outcome.output, HasSubstr(place));
  }
}

TEST_F(JobFaultTest, FaultsThatCannotBeMeantAreRefused) {
  for (const char* fault :
       {"nonsense", "phase=text", "do=kill", "phase=text,do=explode", "rank=-1,phase=text,do=kill",
        "rank=1,phase=text,do=kill", "phase=text,do=kill,", "phase=text,when=now,do=kill",
        "phase=stage_1,do=nan", "phase=stage_1,step=1x,do=kill"}) {
    const Outcome outcome = run(0, fault);
    EXPECT_EQ(outcome.code, 2) << fault << "\n" << outcome.output;
    EXPECT_EQ(outcome.errors, 1) << fault;
    EXPECT_THAT(outcome.output, Not(HasSubstr("stage_1, "))) << fault;
  }
  EXPECT_EQ(run(2, "nonsense").errors, 1);
  // A place that does not come: the test that asked for it would pass for nothing.
  const Outcome outcome = run(0, "phase=stage_1,step=9,do=kill");
  EXPECT_EQ(outcome.code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the test fault never came"));
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // As in the test presets: also as root, with more ranks than cores.
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe", "OMP_NUM_THREADS"})
    setenv(name, "1", /*overwrite=*/1);
  setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
  return RUN_ALL_TESTS();
}
