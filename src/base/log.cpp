#include "base/log.h"

#include <chrono>
#include <cstdio>
#include <mutex>

namespace flotilla::log {
namespace {

using Clock = std::chrono::steady_clock;

struct State {
  std::mutex mutex;
  Settings settings;
  Clock::time_point start = Clock::now();
};

State& state() {
  static State instance;
  return instance;
}

std::string_view name_of(Level level) {
  switch (level) {
    case Level::debug:
      return "debug ";
    case Level::warn:
      return "WARNING ";
    case Level::error:
      return "ERROR ";
    default:
      return "";
  }
}

}  // namespace

void configure(const Settings& settings) {
  const std::lock_guard lock(state().mutex);
  state().settings = settings;
}

double elapsed_s() { return std::chrono::duration<double>(Clock::now() - state().start).count(); }

bool enabled(Level level) {
  const Settings& settings = state().settings;
  if (level < settings.level) return false;
  return settings.rank == 0 || level >= Level::warn;
}

void write(Level level, std::string_view room, std::string_view text) {
  State& log = state();
  const std::lock_guard lock(log.mutex);
  const std::string who =
      log.settings.world_size > 1
          ? fmt::format(" rank {}/{}", log.settings.rank, log.settings.world_size)
          : std::string();
  const std::string line =
      fmt::format("[{:9.3f}{}] {}{}: {}\n", elapsed_s(), who, name_of(level), room, text);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace flotilla::log
