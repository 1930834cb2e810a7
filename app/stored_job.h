// The job in force that a run has put into its files: flotilla run --from, --resume.
#pragma once

#include <string>
#include <vector>

#include "config/load.h"

namespace flotilla::app {

// The job of a checkpoint, to go on with it.
config::LoadedJob load_checkpoint_job(const std::string& path,
                                      const std::vector<config::Override>& overrides);

// The job of a clip (.mp4) or of a latents file, told apart by their content, to make the clip once
// more. Only output.path is taken over of where files went and when to stop, and the permission to
// overwrite is not; `overrides` come after that. Errors (ErrorKind::input): the file is neither, is
// damaged, or another program made it.
config::LoadedJob load_job_from(const std::string& path,
                                const std::vector<config::Override>& overrides);

}  // namespace flotilla::app
