// The job's board and the watchdog's sense of time; what a whole job of ranks does with them is in
// fault_test.cpp.
#include "comm/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <vector>

namespace flotilla::comm {
namespace {

JobBoard board_of(int world_size, int self) {
  SharedMemory memory = SharedMemory::create(JobBoard::bytes_for(world_size));
  memory.reserve(0, memory.bytes());
  std::vector<Process> ranks;
  for (int r = 0; r < world_size; ++r) ranks.push_back(this_process(r));
  return {std::move(memory), ranks, self};
}

TEST(JobBoardTest, PhasesAreReadAsTheyWereNotedAndCutToTheirPlace) {
  JobBoard board = board_of(3, 1);
  EXPECT_EQ(board.phase(1), "");
  EXPECT_EQ(last_phases_text(board, {1}), "");
  board.note_phase("stage_1, step 2 of 8");
  EXPECT_EQ(board.phase(1), "stage_1, step 2 of 8");
  EXPECT_EQ(board.phase(0), "");
  EXPECT_EQ(last_phases_text(board, {1}), "; its last phase was \"stage_1, step 2 of 8\"");
  EXPECT_EQ(last_phases_text(board, {0, 1}),
            "; their last phases were none, \"stage_1, step 2 of 8\"");
  board.note_phase("text");
  EXPECT_EQ(board.phase(1), "text");
  const std::string text(300, 'x');
  board.note_phase(text);
  EXPECT_EQ(board.phase(1), text.substr(0, 128));
}

TEST(JobBoardTest, NotingAPhaseIsProgress) {
  JobBoard board = board_of(2, 0);
  board.note_progress();
  board.note_phase("text");
  EXPECT_EQ(board.progress(0), 2U);
  EXPECT_EQ(board.progress(1), 0U);
}

TEST(JobBoardTest, TheFirstReportDecidesTheExitCode) {
  JobBoard board = board_of(2, 0);
  EXPECT_EQ(board.verdict(), 0);
  EXPECT_TRUE(board.claim_report(7));
  EXPECT_FALSE(board.claim_report(6));
  EXPECT_EQ(board.verdict(), 7);
}

TEST(SilenceMeterTest, CountsTheSecondsSinceTheLastBeat) {
  SilenceMeter meter(2);
  meter.look(100.0, std::vector<uint64_t>{1, 1});
  meter.look(100.5, std::vector<uint64_t>{2, 1});
  meter.look(101.0, std::vector<uint64_t>{3, 1});
  EXPECT_DOUBLE_EQ(meter.silent_s(0), 0.0);
  EXPECT_DOUBLE_EQ(meter.silent_s(1), 1.0);
  meter.look(101.5, std::vector<uint64_t>{3, 2});
  EXPECT_DOUBLE_EQ(meter.silent_s(0), 0.5);
  EXPECT_DOUBLE_EQ(meter.silent_s(1), 0.0);
}

// A laptop that slept, a scheduler that suspended the job: all ranks were silent alike.
TEST(SilenceMeterTest, AJobThatIsSuspendedAsAWholeMissesNobody) {
  SilenceMeter meter(1);
  meter.look(100.0, std::vector<uint64_t>{1});
  meter.look(4000.0, std::vector<uint64_t>{1});
  EXPECT_DOUBLE_EQ(meter.silent_s(0), 1.0);
}

TEST(ProcessTest, StoppedAndDeadProcessesAreTold) {
  const pid_t pid = fork();
  if (pid == 0) {
    std::raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  Process child = this_process(1);
  child.pid = pid;
  EXPECT_EQ(look_at(child), ProcessState::gone);  // the id with another start time
  Process own = this_process(0);
  EXPECT_EQ(look_at(own), ProcessState::works);
  // A child of this moment starts in the tick of its own; find it.
  for (int64_t tick = own.start_ticks; tick < own.start_ticks + 100'000; ++tick) {
    child.start_ticks = tick;
    if (look_at(child) != ProcessState::gone) break;
  }
  EXPECT_EQ(look_at(child), ProcessState::stopped);
  kill(pid, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(look_at(child), ProcessState::gone);  // a zombie
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(look_at(child), ProcessState::gone);
}

// Reading of a process fails in the middle when it ends at that moment.
TEST(ProcessTest, LookingAtProcessesThatAreJustEndingIsSafe) {
  for (int i = 0; i < 200; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    Process child = this_process(1);
    child.pid = pid;
    std::thread reaper([pid] { waitpid(pid, nullptr, 0); });
    for (int look = 0; look < 200; ++look) look_at(child);
    reaper.join();
    EXPECT_EQ(look_at(child), ProcessState::gone);
  }
}

}  // namespace
}  // namespace flotilla::comm
