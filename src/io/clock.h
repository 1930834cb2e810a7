// The time of day for records: ISO 8601 with the offset of the local time zone.
#pragma once

#include <string>

namespace flotilla::io {

// Seconds since 1970 by the system's clock.
double wall_clock_s();
// "2026-11-29T23:20:22+01:00", whole seconds, local time.
std::string time_text(double wall_clock_s);

}  // namespace flotilla::io
