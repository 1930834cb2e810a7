// A sweep: many jobs from one file, which names a job and what of it changes from point to point.
// load_sweep() gives every point as a checked job with its place in the sweep's folder; who runs
// them: pipeline/sweep.h. The file's format: docs/sweep.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/load.h"
#include "config/overrides.h"

namespace flotilla::config {

inline constexpr int64_t kMaxSweepPoints = 10000;

struct SweepPoint {
  int64_t index = 0;  // from 0, in the order of the file: explicit points come last
  std::string name;   // of its files, without folder and extension; no other point has it
  std::string hash;   // job_hash(): the same in every sweep that asks for the same clip
  // What the sweep sets for it: keys of the job, values as text.
  std::vector<std::pair<std::string, std::string>> values;
  // Outputs and checkpoint lie in the sweep's folder; checkpoint.resume is auto.
  LoadedJob loaded;
};

struct Sweep {
  std::filesystem::path folder;  // absolute
  std::vector<SweepPoint> points;
};

// Where a point's own job file lies, from which `flotilla run` makes the same clip again.
std::filesystem::path point_file(const Sweep& sweep, const SweepPoint& point);

// Reads `file` ("-": standard input); `overrides` change the job that it names. Relative paths of a
// file count from its folder. Errors (ErrorKind::config): all problems of the sweep and of every
// point together, each told once, with the points that it concerns.
Sweep load_sweep(const std::filesystem::path& file, std::span<const Override> overrides = {});

// The same with the text at hand; see load_job_text().
Sweep load_sweep_text(std::string_view text, const std::string& name,
                      const std::filesystem::path& base, std::span<const Override> overrides = {});

}  // namespace flotilla::config
