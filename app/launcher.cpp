#include "app/launcher.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "comm/launch.h"

namespace flotilla::app {
LaunchedRanks launched_ranks() {
  const auto launch = comm::find_launch(host().variable);
  return launch ? LaunchedRanks{launch->rank, launch->world_size} : LaunchedRanks{};
}

void require_one_rank() {
  const LaunchedRanks ranks = launched_ranks();
  log::configure({.level = log::Level::info, .rank = ranks.rank, .world_size = ranks.world_size});
  if (ranks.world_size <= 1) return;
  // One message, not one a rank.
  if (ranks.rank != 0) std::exit(exit_code(ErrorKind::usage));
  fail(ErrorKind::usage,
       fmt::format("started with {} ranks, but this command works on one; start it without a "
                   "launcher, or with mpirun -n 1",
                   ranks.world_size));
}

std::optional<std::chrono::steady_clock::time_point> allocation_end() {
  constexpr int64_t kMarginSeconds = 60;
  const char* text = std::getenv("SLURM_JOB_END_TIME");  // seconds since 1970
  if (text == nullptr) return std::nullopt;
  const std::string_view digits(text);
  const char* end_of_text = digits.data() + digits.size();
  uint32_t end_s = 0;
  const auto [stop, code] = std::from_chars(digits.data(), end_of_text, end_s);
  if (code != std::errc() || stop != end_of_text) {
    log::warn("run", "SLURM_JOB_END_TIME is \"{}\", not a time: it is passed over", text);
    return std::nullopt;
  }
  const int64_t left_s = end_s - kMarginSeconds - std::time(nullptr);
  return std::chrono::steady_clock::now() + std::chrono::seconds(left_s);
}

std::optional<pipeline::Fault> test_fault() {
  const char* text = std::getenv("FLOTILLA_TEST_FAULT");
  if (text == nullptr) return std::nullopt;
  auto fault = pipeline::parse_fault(text);
  if (fault.rank < launched_ranks().world_size) return fault;
  fail(ErrorKind::usage, fmt::format("FLOTILLA_TEST_FAULT is for rank {} of {} ranks", fault.rank,
                                     launched_ranks().world_size));
}

pipeline::Host host() {
  const char* path = std::getenv("PATH");
  return {path == nullptr ? "" : path, [](const char* name) { return std::getenv(name); }};
}

}  // namespace flotilla::app
