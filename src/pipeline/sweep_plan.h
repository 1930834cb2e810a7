// Before a sweep runs: which points a process works on, in which order, and what became of them in
// earlier runs. Next: sweep.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/sweep.h"
#include "io/sweep_manifest.h"

namespace flotilla::pipeline {

// The points that this process is to make.
struct SweepSelection {
  enum class What { all, shard, point };
  What what = What::all;
  int64_t number = 0;  // the point, from 0; the shard, from 1
  int64_t count = 1;   // of shards
};

// Positions in sweep.points: points of the same models follow each other, inside of these those of
// the same LoRAs, then those of the same prompts, so that each is loaded, fused or encoded once;
// groups in the order of their first points.
std::vector<size_t> order_points(const config::Sweep& sweep);

// The part of that order which `selection` names; shards are slices of nearly equal length. Errors
// (ErrorKind::usage): there is no such point or shard.
std::vector<size_t> select_points(const config::Sweep& sweep, const SweepSelection& selection);

// The manifest of a process with that selection: "sweep.jsonl", "sweep.2-of-3.jsonl",
// "sweep.point-7.jsonl".
std::string manifest_name(const SweepSelection& selection);

enum class PointState { pending, started, done, failed };
std::string_view to_string(PointState state);

struct PointStatus {
  PointState state = PointState::pending;
  // The record that says so; nothing for a pending point, unless its outputs are gone or changed.
  std::optional<io::PointRecord> record;
  std::string note;    // why a point that was done counts no more
  bool known = false;  // some record has this point, so files under its name are the sweep's
};

// The files of a point by their names in the sweep's folder, without its own job file; the clip is
// the first one.
std::vector<std::string> output_names(const config::SweepPoint& point);

// Of the points at `positions`, in that order, by all manifests of the folder. A point counts as
// done when one of its records says so and every file that it has to have is there as recorded:
// reads these files. Errors (ErrorKind::input): a manifest cannot be read.
std::vector<PointStatus> survey(const config::Sweep& sweep, const std::vector<size_t>& positions);

}  // namespace flotilla::pipeline
