// Ranks that die or hang while the others wait for them on the GPU: in a kernel of the exchange
// through the peers' memory, or in NCCL. The others end within seconds and name the rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "comm/fault_run.h"

namespace flotilla::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// fault_program's way of saying that this machine cannot show a phase.
constexpr int kCannotRun = 77;

std::string first_line(const Outcome& outcome) {
  return outcome.output.substr(0, outcome.output.find('\n'));
}

class GpuFaultTest : public FaultTest, public testing::WithParamInterface<const char*> {};

TEST_P(GpuFaultTest, ARankThatIsKilledIsNamed) {
  const Outcome outcome = run_ranks(2, "kill", GetParam());
  if (outcome.code == kCannotRun) GTEST_SKIP() << first_line(outcome);
  SCOPED_TRACE(std::to_string(outcome.seconds) + " s\n" + outcome.output);
  EXPECT_NE(outcome.code, 0);
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_EQ(outcome.errors, 1);
  // mpirun itself gives the code of the rank that was killed.
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("ERROR communication"), HasSubstr("rank 1 "),
                                    HasSubstr("with errorcode 6")));
}

TEST_P(GpuFaultTest, ARankThatHangsIsNamedAtTheDeadline) {
  const Outcome outcome = run_ranks(2, "hang", GetParam());
  if (outcome.code == kCannotRun) GTEST_SKIP() << first_line(outcome);
  SCOPED_TRACE(std::to_string(outcome.seconds) + " s\n" + outcome.output);
  EXPECT_EQ(outcome.code, 6);
  EXPECT_LT(outcome.seconds, 50);
  EXPECT_EQ(outcome.errors, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("rank 1 did not come"), HasSubstr(" within ")));
}

INSTANTIATE_TEST_SUITE_P(Phases, GpuFaultTest,
                         testing::Values("gpu_exchange", "gpu_nccl_exchange", "gpu_collective"),
                         [](const auto& phase) {
                           const std::string name = phase.param;
                           return name == "gpu_exchange"        ? "PeerExchange"
                                  : name == "gpu_nccl_exchange" ? "NcclExchange"
                                                                : "NcclCollective";
                         });

}  // namespace
}  // namespace flotilla::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  flotilla::comm::set_up_mpirun();
  return RUN_ALL_TESTS();
}
