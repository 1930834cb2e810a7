// Values of a job that follow from the generation of its model where the job leaves them open.
// Numbers: ltx_pipelines/utils/constants.py of the LTX-2 reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/job.h"

namespace flotilla::pipeline {

struct ModelDefaults {
  int64_t steps = 40;                      // of a guided stage 1
  std::vector<int64_t> stg_blocks = {29};  // that its perturbed pass changes
  int64_t image_crf = 33;                  // H.264 quality expected of conditioning images
};

// "2.3.0" and the like; a model is of the newest generation that it is not older than. Files
// without a version, and versions that cannot be read, count as LTX-2.0.
ModelDefaults model_defaults(const std::string& model_version);

// The job with these values filled in; what it says itself stays.
config::Job with_model_defaults(config::Job job, const std::string& model_version);

}  // namespace flotilla::pipeline
