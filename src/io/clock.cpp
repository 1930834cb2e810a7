#include "io/clock.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <ctime>

namespace flotilla::io {

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string time_text(double wall_clock_s) {
  const auto seconds = static_cast<std::time_t>(wall_clock_s);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  const long minutes = std::labs(local.tm_gmtoff) / 60;
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{}{:02}:{:02}", local.tm_year + 1900,
                     local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec,
                     local.tm_gmtoff < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

}  // namespace flotilla::io
