// The stock runner: jobs as `flotilla run` takes them, with models that stay loaded between them.
//
//   {"job_yaml": "prompt: ...", "base_folder": "/data", "return": ["latents", "audio", "frames"],
//    "preview_every": 2}
//
// Relative paths of the job count from `base_folder` (must be absolute; "/" without it). Previews
// come after each so many steps; without it there are none. Items: an event each (io/events.h:
// accepted, phase, step, ..., done), and before "done", with "return", one
// {"event": "results", "sample_rate": ...} with the tensors
//   latents: video_latent [B, C, F, H, W], audio_latent [B, C, T, mel], float32
//   audio:   audio [channels, samples], float32       frames: frames [F, H, W, 3], uint8
// The job's own end, {"event": "done"}, follows them, and with "residents" in "return"
//   {"event": "residents", "models": ["transformer", ...], "host_bytes": [...],
//    "device_bytes": [...]}   of each rank: what it holds now; the job's most, 0 on the CPU
// A job stops at its next safe point also without checkpoint.path: ErrorKind::stopped.
#pragma once

#include <memory>

#include "fleet/worker.h"
#include "pipeline/residents.h"
#include "pipeline/run_job.h"

namespace flotilla::fleet {

struct JobRequest;

class JobRunner final : public Runner {
 public:
  JobRunner(comm::RankContext& ranks, pipeline::Host host);

  // Errors, all agreed on: those of config::load_job_text(), pipeline::prepare_job() and
  // pipeline::run_job(); ErrorKind::config: the message itself.
  void run(const Message& job, JobScope& scope) override;
  void close() override { residents_.reset(); }

 private:
  // The most device memory that it took on this rank.
  int64_t run_request(const JobRequest& request, JobScope& scope);
  void tell_residents(JobScope& scope, int64_t device_bytes);

  comm::RankContext& ranks_;
  pipeline::Host host_;
  std::shared_ptr<pipeline::Residents> residents_ = std::make_shared<pipeline::Residents>();
};

}  // namespace flotilla::fleet
