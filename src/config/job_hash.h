// A job's identity in records: two runs with the same hash were asked for the same clip.
#pragma once

#include <string>

#include "config/job.h"

namespace flotilla::config {

// 16 hexadecimal digits over every key of the job but those that only say where files go and when
// to stop (output.*, checkpoint.*, limits.*). Models count by their paths.
std::string job_hash(const Job& job);

}  // namespace flotilla::config
