// Fleets for tests: a mark in the environment by which a test finds its processes, and the look
// that nothing of them is left.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fleet/controller.h"
#include "support/temp_dir.h"

namespace flotilla::fleet {

class FleetFixture : public testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;

  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return processes().empty(); })) << "processes are left";
    EXPECT_TRUE(eventually([&] { return left_shared_memory().empty(); }))
        << "shared memory is left";
  }

  template <typename Condition>
  static bool eventually(Condition condition, double limit_s = 10) {
    const auto start = Clock::now();
    while (!condition()) {
      if (Clock::now() - start > std::chrono::duration<double>(limit_s)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  }

  // Options for ranks that run `program`, with the mark of this test; each of them notes its
  // number of Open MPI's job and its process on its way.
  ControllerOptions marked(const std::string& program,
                           const std::vector<std::string>& arguments = {}) const {
    ControllerOptions options;
    options.worker = {"/bin/sh", "-c",
                      "echo $OMPI_MCA_ess_base_jobid $$ >> \"$FLEET_TEST_NOTES\"; exec \"$@\"",
                      "sh", program};
    options.worker.insert(options.worker.end(), arguments.begin(), arguments.end());
    options.environment = {{"FLEET_TEST_MARK", mark_}, {"FLEET_TEST_NOTES", notes().string()}};
    return options;
  }
  // Ranks and launchers with the mark of this test.
  std::vector<pid_t> processes() const {
    std::vector<pid_t> found;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
      std::ifstream in(entry.path() / "environ");
      const std::string variables((std::istreambuf_iterator<char>(in)), {});
      if (variables.find(mark_) != std::string::npos)
        found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
  }
  // Of the fleets of this test; others may run beside them.
  std::set<std::string> left_shared_memory() const {
    std::set<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename();
      for (const std::string& part : names_of_shared_memory()) {
        if (name.find(part) != std::string::npos) left.insert(name);
      }
    }
    return left;
  }
  // What the names have in them: Open MPI's and our own.
  std::set<std::string> names_of_shared_memory() const {
    std::set<std::string> parts;
    std::ifstream in(notes());
    uint32_t job = 0;
    pid_t rank = 0;
    while (in >> job >> rank) {
      parts.insert(fmt::format(".{}.{:x}.", ::getuid(), job));  // vader_segment.HOST.USER.JOB.RANK
      parts.insert(fmt::format("flotilla.{}.{}.", ::getuid(), rank));
    }
    return parts;
  }
  std::filesystem::path notes() const { return folder_ / "ranks"; }

  const test::TempDir folder_;
  const std::string mark_ =
      fmt::format("fleet-test-{}-{}", ::getpid(), Clock::now().time_since_epoch().count());
};

}  // namespace flotilla::fleet
