// main() of test programs that run under mpirun (and alone, as one rank). Every rank runs every
// test; rank 0 prints, the others only what fails; a failure on any rank fails the program.
#include "support/mpi_main.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/log.h"

namespace flotilla::test {
namespace {

comm::RankContext* open_ranks = nullptr;

class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  // Asking GoogleTest for the current test inside OnTestPartResult would wait for a lock for ever.
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = fmt::format("{}.{}", test.test_suite_name(), test.name());
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr, "[rank {}] {}:{}: {}: {}\n", rank_,
               result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
               test_, result.message());
    std::fflush(stderr);
  }

 private:
  int rank_;
  std::string test_;
};

int run_all(comm::RankContext& ranks) {
  open_ranks = &ranks;
  log::configure(
      {.level = log::Level::warn, .rank = ranks.rank(), .world_size = ranks.world_size()});
  if (!ranks.is_driver()) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(ranks.rank()));
  }
  return static_cast<int>(ranks.world().all_max(RUN_ALL_TESTS()));
}

}  // namespace

comm::RankContext& ranks() { return *open_ranks; }

}  // namespace flotilla::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const c10::InferenceMode no_gradients;
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  return flotilla::comm::run_on_ranks({environment, /*timeout_s=*/60}, flotilla::test::run_all);
}
