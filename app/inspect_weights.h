// What inspect tells of files with weights; headers and configurations are read, weights are not.
#pragma once

#include <filesystem>

#include "app/report.h"
#include "loader/checkpoint.h"

namespace flotilla::app {

// A checkpoint of LTX-2 or of one of its components, or a LoRA. What this version does not
// implement is told beside the part; damage is an error (ErrorKind::input).
Report inspect_weights(const std::filesystem::path& path);

// A Hugging Face folder of the text encoder. Errors (ErrorKind::input): incomplete or damaged.
Report inspect_text_encoder(const std::filesystem::path& folder);

// Name, type, shape and bytes of every tensor of the file or folder.
Report list_tensors(const loader::Checkpoint& file);

}  // namespace flotilla::app
