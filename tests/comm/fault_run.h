// Runs fault_program under mpirun and tells how it ended; for the tests of ranks that go wrong.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "support/left_memory.h"

namespace flotilla::comm {

struct Outcome {
  int code = -1;
  std::string output;
  double seconds = 0;
  int errors = 0;  // lines of ours that report one
};

inline Outcome run_ranks(int ranks, const std::string& fault, const std::string& phase) {
  const std::string command = std::string("timeout 60 ") + FLOTILLA_MPIEXEC + " -n " +
                              std::to_string(ranks) + " " + FLOTILLA_FAULT_PROGRAM + " " + fault +
                              " " + phase + " 2>&1";
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
    const std::string line = buffer.data();
    outcome.errors += line.find("ERROR ") != std::string::npos ? 1 : 0;
    outcome.output += line;
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

// Nothing of ours may stay in /dev/shm.
class FaultTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(test::left_shared_memory(), before_); }
  std::set<std::string> before_ = test::left_shared_memory();
};

// As in the test presets: also as root, with more ranks than cores.
inline void set_up_mpirun() {
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe", "OMP_NUM_THREADS"})
    setenv(name, "1", /*overwrite=*/1);
  setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
}

}  // namespace flotilla::comm
