// Where a run goes on: finding the checkpoint that checkpoint.resume asks for, holding it against
// the job, and handing its state to all ranks.
#pragma once

#include <filesystem>
#include <optional>

#include "config/job.h"
#include "io/latents_file.h"
#include "pipeline/plan.h"
#include "pipeline/ranks.h"
#include "pipeline/run_state.h"

namespace flotilla::pipeline {

struct FoundCheckpoint {
  std::filesystem::path path;
  io::LatentsFile file;  // whole, its checksums and its state checked
  // The newest file is damaged, this is the one before it.
  bool is_previous = false;
};

// The checkpoint to go on from; nothing: from the beginning. Warns when a damaged one is passed
// over. Errors (ErrorKind::input): `must` and there is none; all that is there is damaged (with
// `auto` and output.overwrite that is a warning).
std::optional<FoundCheckpoint> find_checkpoint(const config::Job& job);

// The job as a checkpoint stores it: what is chosen by the number of ranks and changes the result,
// the grid of tiles, is written out.
config::Job stored_job(config::Job job, const Plan& plan);

// Errors (ErrorKind::input): the checkpoint is of another job or of other models; names every key
// that differs. Keys that change no result (outputs, limits, threads) or only the order of sums
// (those of sequence parallelism) may differ, and so may the number of ranks.
void check_same_job(const FoundCheckpoint& found, const config::Job& job, const Plan& plan,
                    const std::string& digest);

// The state on all ranks; the driver gives it. Collective.
RunState share_state(const std::optional<FoundCheckpoint>& found, const Ranks& ranks);

}  // namespace flotilla::pipeline
