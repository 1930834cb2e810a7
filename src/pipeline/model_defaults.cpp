#include "pipeline/model_defaults.h"

#include <cstdio>
#include <utility>

namespace flotilla::pipeline {

ModelDefaults model_defaults(const std::string& model_version) {
  ModelDefaults defaults;
  std::pair<int, int> version{0, 0};
  if (std::sscanf(model_version.c_str(), "%d.%d", &version.first, &version.second) != 2) {
    return defaults;
  }
  if (version >= std::pair(2, 3)) {
    defaults.steps = 30;
    defaults.stg_blocks = {28};
  }
  if (version >= std::pair(2, 4)) defaults.image_crf = 18;
  return defaults;
}

config::Job with_model_defaults(config::Job job, const std::string& model_version) {
  const ModelDefaults defaults = model_defaults(model_version);
  for (auto& image : job.images) {
    if (!image.crf) image.crf = defaults.image_crf;
  }
  if (job.pipeline != config::Pipeline::ti2vid_two_stages) return job;
  auto& stage = job.stage_1;
  if (!stage.steps) stage.steps = defaults.steps;
  for (auto* guidance : {&stage.guidance.video, &stage.guidance.audio}) {
    if (!guidance->stg_blocks) guidance->stg_blocks = defaults.stg_blocks;
  }
  return job;
}

}  // namespace flotilla::pipeline
