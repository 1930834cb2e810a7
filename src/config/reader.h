// Fills a Job from a YAML tree by the table of keys.
#pragma once

#include <string>

#include "config/job.h"
#include "config/origins.h"
#include "config/problems.h"
#include "config/yaml_tree.h"

namespace flotilla::config {

// Keys that the tree lacks keep the value that `job` has. Unknown keys and values that do not fit
// go to `problems`; rules across keys are those of validate.h.
void read_job(const Node& tree, Job& job, Origins& origins, Problems& problems);

}  // namespace flotilla::config
