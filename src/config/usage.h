// Required keys that are missing, and given keys that the job's pipeline does not use.
#pragma once

#include "config/job.h"
#include "config/origins.h"
#include "config/problems.h"

namespace flotilla::config {

void check_usage(const Job& job, const Origins& origins, Problems& problems);

}  // namespace flotilla::config
