// What the environment says of a launch, and launches that are refused.
#include "comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "comm/agreement.h"
#include "comm/rank_context.h"

namespace flotilla::comm {
namespace {

using Table = std::map<std::string, std::string>;
using testing::AllOf;
using testing::HasSubstr;

Environment environment_of(const Table& table) {
  return [table](const char* name) -> const char* {
    const auto entry = table.find(name);
    return entry == table.end() ? nullptr : entry->second.c_str();
  };
}

int launched_world(const Table& table) {
  const auto launch = find_launch(environment_of(table));
  return launch ? launch->world_size : 0;
}

TEST(LaunchTest, NothingIsClaimedWithoutALauncher) { EXPECT_EQ(launched_world({}), 0); }

TEST(LaunchTest, LaunchersAreRecognised) {
  EXPECT_EQ(launched_world({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}}), 4);
  EXPECT_EQ(launched_world({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}}), 3);
  EXPECT_EQ(launched_world({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}}), 2);
}

TEST(LaunchTest, ABatchScriptIsNoLaunch) {
  EXPECT_EQ(launched_world({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}}), 0);
  EXPECT_EQ(launched_world({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}),
            0);
  EXPECT_EQ(launched_world({{"SLURM_NTASKS", "8"}}), 0);
  // The batch script's own step id, and that of an interactive shell.
  for (const char* step : {"4294967291", "4294967290"}) {
    EXPECT_EQ(launched_world({{"SLURM_JOB_ID", "77"},
                              {"SLURM_STEP_ID", step},
                              {"SLURM_NTASKS", "8"},
                              {"SLURM_PROCID", "0"}}),
              0);
  }
}

TEST(LaunchTest, AStepOfSrunIsALaunch) {
  EXPECT_EQ(launched_world({{"SLURM_JOB_ID", "77"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_NTASKS", "4"},
                            {"SLURM_PROCID", "0"}}),
            4);
  EXPECT_EQ(launched_world({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}), 4);
}

TEST(LaunchTest, TheInnerLauncherCounts) {
  EXPECT_EQ(launched_world({{"SLURM_PROCID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "1"},
                            {"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"}}),
            4);
}

TEST(LaunchTest, ValuesThatAreNoNumbersAreIgnored) {
  EXPECT_EQ(launched_world({{"PMI_RANK", "0"}, {"PMI_SIZE", "four"}}), 0);
  EXPECT_EQ(launched_world({{"PMI_RANK", "-1"}, {"PMI_SIZE", "4"}}), 0);
}

TEST(LaunchTest, CopiesThatMpiDoesNotConnectAreRefusedOnce) {
  const auto refusal = [](int rank) {
    try {
      check_launch(Launch{rank, 4, "SLURM_NTASKS"}, 1);
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("4 ranks (SLURM_NTASKS)"), HasSubstr("MPI sees 1")));
      return error.speaks();
    }
    ADD_FAILURE() << "not refused";
    return false;
  };
  EXPECT_TRUE(refusal(0));
  EXPECT_FALSE(refusal(3));
  EXPECT_NO_THROW(check_launch(Launch{0, 4, "SLURM_NTASKS"}, 4));
  EXPECT_NO_THROW(check_launch(std::nullopt, 4));
}

TEST(LaunchTest, RanksOnTwoHostsAreRefusedNamingBoth) {
  EXPECT_NO_THROW(check_one_machine({"alpha", "alpha"}, {2, 2}, true));
  try {
    check_one_machine({"alpha", "alpha", "beta"}, {2, 2, 1}, true);
    FAIL() << "not refused";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::machine);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("alpha, beta"), HasSubstr("3 ranks")));
  }
}

}  // namespace
}  // namespace flotilla::comm
