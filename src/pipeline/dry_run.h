// Everything of a job that can be known without its work: what a run would refuse is refused here
// with the same error, and the rest is told as a plan and a forecast. No weight is read, and
// neither GPUs nor ranks are needed.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/load.h"
#include "pipeline/forecast.h"
#include "pipeline/run_job.h"

namespace flotilla::pipeline {

struct DryRunOptions {
  int64_t world_size = 1;
  // Of each of the GPUs to plan for, one a rank; nothing: those of this machine, if the job has
  // any.
  std::optional<int64_t> gpu_memory_bytes;
  bool previews = false;
  // Metrics of a run of the same sizes: its times make estimates.
  std::filesystem::path measured;
};

struct DryRun {
  struct Prompt {
    std::string key;
    int64_t num_tokens = 0;
    int64_t num_dropped = 0;
  };
  struct Image {
    std::filesystem::path path;
    int64_t width = 0;
    int64_t height = 0;
    int64_t frame = 0;
  };
  PreparedJob prepared;
  std::vector<Prompt> prompts;
  std::vector<Image> images;
  std::optional<std::string> resumes;  // the checkpoint that a run would go on from
  Forecast forecast;
  std::vector<std::optional<double>> gap_seconds;  // one for each of forecast.gaps
};

// Errors: those of prepare_job() and find_checkpoint(); ErrorKind::config, a prompt that is cut
// though text.strict_length; ErrorKind::input, an image that cannot be read, or metrics of other
// sizes. Whether the job fits the memory is for check_fits().
DryRun dry_run_job(const config::LoadedJob& loaded, const Host& host, const DryRunOptions& options);

// For readers, and the same for programs (layout: docs/memory.md).
std::vector<std::string> describe(const DryRun& run);
nlohmann::ordered_json to_json(const DryRun& run);

}  // namespace flotilla::pipeline
