// Ranks that die, throw or hang: all ranks end within seconds with the right code and one message,
// and nothing of ours stays in /dev/shm. Each case runs fault_program under mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "comm/fault_run.h"

namespace flotilla::comm {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

TEST_F(FaultTest, ARankThatDiesIsNamedWithItsPhase) {
  for (const std::string fault : {"kill", "crash", "exit"}) {
    for (const std::string phase : {"exchange", "collective", "busy"}) {
      const Outcome outcome = run_ranks(4, fault, phase);
      SCOPED_TRACE(fault + " in " + phase + ", " + std::to_string(outcome.seconds) + " s\n" +
                   outcome.output);
      EXPECT_NE(outcome.code, 0);
      EXPECT_LT(outcome.seconds, 20);
      EXPECT_EQ(outcome.errors, 1);
      EXPECT_THAT(outcome.output,
                  AllOf(HasSubstr("rank 1 ended (process "),
                        HasSubstr("its last phase was \"" + phase + ", round 20\"")));
    }
  }
}

TEST_F(FaultTest, ARankThatHangsIsNamedAtTheDeadline) {
  for (const std::string phase : {"exchange", "collective"}) {
    const Outcome outcome = run_ranks(4, "hang", phase);
    SCOPED_TRACE(phase + ", " + std::to_string(outcome.seconds) + " s\n" + outcome.output);
    EXPECT_EQ(outcome.code, 6);
    EXPECT_LT(outcome.seconds, 20);
    EXPECT_EQ(outcome.errors, 1);
    EXPECT_THAT(outcome.output,
                HasSubstr("rank 1 did not come within 3 s; its last phase was \"" + phase));
  }
}

TEST_F(FaultTest, AStoppedRankIsNamedWhileTheOthersCompute) {
  const Outcome outcome = run_ranks(4, "stop", "busy");
  SCOPED_TRACE(std::to_string(outcome.seconds) + " s\n" + outcome.output);
  EXPECT_EQ(outcome.code, 6);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_EQ(outcome.errors, 1);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("rank 1 has given no sign of life for 4 s"), HasSubstr("SIGSTOP"),
                    HasSubstr("its last phase was \"busy, round 20\"")));
}

TEST_F(FaultTest, ARankThatThrowsEndsAllWithTheCodeOfItsError) {
  for (const int ranks : {2, 8}) {
    for (const std::string phase : {"exchange", "collective", "agreement"}) {
      const Outcome outcome = run_ranks(ranks, "throw", phase);
      SCOPED_TRACE(phase + ", " + std::to_string(outcome.seconds) + " s\n" + outcome.output);
      EXPECT_EQ(outcome.code, 7);
      EXPECT_LT(outcome.seconds, 20);
      EXPECT_EQ(outcome.errors, 1);
      EXPECT_THAT(outcome.output, AllOf(HasSubstr("numbers ran away"), HasSubstr("rank 1")));
    }
  }
}

// The others wait in a collective call, where no agreement comes about.
TEST_F(FaultTest, ARankThatThrowsInTheMiddleOfAnAgreedPartEndsAllWithItsError) {
  const Outcome outcome = run_ranks(4, "throw", "agreed_rounds");
  SCOPED_TRACE(std::to_string(outcome.seconds) + " s\n" + outcome.output);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_EQ(outcome.errors, 1);
  EXPECT_THAT(outcome.output, HasSubstr("numbers ran away"));
}

TEST_F(FaultTest, RanksThatMpiDoesNotConnectAreRefused) {
  const std::string command = std::string("SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0 ") +
                              FLOTILLA_FAULT_PROGRAM + " none agreement > /dev/null 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace flotilla::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  flotilla::comm::set_up_mpirun();
  return RUN_ALL_TESTS();
}
