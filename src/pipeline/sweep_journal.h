// What the driver of a sweep keeps on disk: the locks on its points, the manifest, each point's own
// job file, the checkpoints of points under way. Only the driver has one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/sweep.h"
#include "io/name_locks.h"
#include "io/sweep_manifest.h"
#include "pipeline/run_job.h"
#include "pipeline/sweep.h"

namespace flotilla::pipeline {

class SweepJournal {
 public:
  // Checks all that can be checked before the work, see run_sweep(), and takes the locks.
  SweepJournal(const config::Sweep& sweep, const SweepSettings& settings, int64_t world);

  // The next point to make, with its seed drawn when it has none, and output.overwrite set for
  // files of the sweep's own; nothing when all are made.
  std::optional<config::SweepPoint> next();

  // Each is on disk when it returns. Errors: ErrorKind::output.
  void note_start(const config::SweepPoint& point);
  // The files of the point are there; its job file is written here.
  void note_done(const config::SweepPoint& point, const PreparedJob& prepared);
  void note_failed(const config::SweepPoint& point, const Error& error);
  // Stays to be made, from its checkpoint if it has one.
  void note_stopped(const config::SweepPoint& point, const Error& error);

  const std::vector<PointOutcome>& outcomes() const { return outcomes_; }  // of the selection
  int64_t count(PointState state) const;

 private:
  void check_inputs() const;
  void check_places() const;
  void take_locks();
  void remove_leftovers() const;
  PointOutcome& outcome_of(const config::SweepPoint& point);
  io::PointRecord record_of(const config::SweepPoint& point, io::PointEvent event) const;
  bool may_overwrite(size_t position) const;

  const config::Sweep& sweep_;
  const int64_t world_;
  std::vector<size_t> order_;               // the selection
  std::map<size_t, PointStatus> statuses_;  // of the selection
  std::vector<size_t> todo_;
  size_t next_ = 0;
  double started_s_ = 0;  // when the point under way was started
  std::vector<PointOutcome> outcomes_;
  std::unique_ptr<io::NameLocks> locks_;
  std::unique_ptr<io::SweepManifest> manifest_;
};

}  // namespace flotilla::pipeline
