// Fleets for tests: a mark in the environment by which a test finds its processes, and the look
// that nothing of them is left.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fleet/controller.h"

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

  void mark(ControllerOptions& options) const { options.environment["FLEET_TEST_MARK"] = mark_; }
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
  // New, and no process uses it.
  std::set<std::string> left_shared_memory() const {
    std::set<std::string> left;
    for (const auto& name : shared_memory()) {
      if (!before_.contains(name) && !is_mapped("/dev/shm/" + name)) left.insert(name);
    }
    return left;
  }
  static bool is_mapped(const std::string& path) {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
      std::ifstream in(entry.path() / "maps");
      const std::string maps((std::istreambuf_iterator<char>(in)), {});
      if (maps.find(path) != std::string::npos) return true;
    }
    return false;
  }
  static std::set<std::string> shared_memory() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      names.insert(entry.path().filename());
    return names;
  }

  const std::string mark_ =
      fmt::format("fleet-test-{}-{}", ::getpid(), Clock::now().time_since_epoch().count());
  const std::set<std::string> before_ = shared_memory();
};

}  // namespace flotilla::fleet
