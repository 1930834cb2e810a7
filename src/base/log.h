// Messages to standard error, one line each, flushed: "[   12.431 rank 3/8] warn comm: ...".
// Rank 0 speaks; other ranks only warn. Results go to standard output and never through here.
// The log is the one process-wide object of the program: it is configured once, by app/.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace flotilla::log {

enum class Level { debug, info, warn, error, off };

struct Settings {
  Level level = Level::info;
  int rank = 0;
  int world_size = 1;
};

void configure(const Settings& settings);
// Seconds since the process started logging.
double elapsed_s();
bool enabled(Level level);
// Writes one line; thread-safe.
void write(Level level, std::string_view room, std::string_view text);

template <typename... Args>
void debug(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::debug))
    write(Level::debug, room, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::info))
    write(Level::info, room, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::warn))
    write(Level::warn, room, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(std::string_view room, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::error))
    write(Level::error, room, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flotilla::log
