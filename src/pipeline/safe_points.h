// The places of a run where it may stop: after each denoise step, between phases, between batches
// of decoded frames. There all ranks agree whether to go on, and the driver writes the checkpoint
// that is due.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "config/job.h"
#include "diffusion/denoise_loop.h"
#include "io/latents_file.h"
#include "pipeline/ranks.h"
#include "pipeline/run_state.h"
#include "pipeline/stop.h"

namespace flotilla::pipeline {

struct SafePointSettings {
  config::Checkpoint checkpoint;  // without a path nothing is written
  io::LatentsFile header;         // the attributes of the file
  bool resumed = false;           // the state comes from a file and has nothing new yet
  // False when the file at checkpoint.path is damaged and the one before it was used: the good one
  // stays.
  bool keep_previous = true;
};

struct CheckpointWrites {
  int64_t count = 0;
  double seconds = 0;  // on the driver, which writes
};

// Every call is collective. Errors, agreed on all ranks: ErrorKind::output (the checkpoint cannot
// be written; the one before it is whole), ErrorKind::stopped, ErrorKind::communication.
class SafePoints {
 public:
  // All must outlive this object; `state` is the run's, and the same on all ranks.
  SafePoints(const Ranks& ranks, const RunState& state, StopWatch& stop,
             SafePointSettings settings);

  // After each step, before its result is in state.loop: whether it is finite on all ranks. The
  // rank where it is not brings the `error`. When there is one, all throw it
  // (ErrorKind::non_finite), and the state before the step is in the checkpoint.
  void check_finite(const std::optional<Error>& error = std::nullopt);
  // After a step that is in state.loop. Writes where one is due. After `stop` the caller ends what
  // it has open and then calls end_run().
  diffusion::SafePoint after_step(int64_t steps);
  // Outside of denoise stages: writes when there are new results, and ends the run when asked to.
  void between();
  // In the decode, which ends in order on all ranks when one of them throws: looks at this rank's
  // own reasons to stop, and throws. Not collective; nothing is written, the latents are on disk.
  void alone() const;
  // Throws the error of an agreed stop, on all ranks; the checkpoint is written by then.
  [[noreturn]] void end_run() const;
  // So far.
  const CheckpointWrites& writes() const { return writes_; }

 private:
  void write();
  [[noreturn]] void end_non_finite(const std::string& text);
  std::string end_text(const std::string& reason) const;

  const Ranks& ranks_;
  const RunState& state_;
  StopWatch& stop_;
  SafePointSettings settings_;
  bool is_written_;           // a file with a state of this job is there
  size_t num_written_ = 0;    // results in it
  int64_t written_step_ = 0;  // of the stage's loop; 0: it was written between stages
  std::string reason_;        // of an agreed stop
  CheckpointWrites writes_;
};

}  // namespace flotilla::pipeline
