// One job from its loaded configuration to its files: the path behind `flotilla run`, `decode` and
// `bench pipeline`. Everything that can be refused is refused by prepare_job(), before the first
// weight is read.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/load.h"
#include "io/events.h"
#include "io/latents_file.h"
#include "pipeline/fault.h"
#include "pipeline/model_files.h"
#include "pipeline/phases.h"
#include "pipeline/plan.h"
#include "pipeline/ranks.h"
#include "pipeline/residents.h"
#include "pipeline/resume.h"
#include "pipeline/run_state.h"
#include "pipeline/stages.h"
#include "pipeline/stop.h"

namespace flotilla::pipeline {

// What the program knows of its surroundings; only app/ reads the environment.
struct Host {
  std::string search_path;                           // of programs: PATH
  std::function<const char*(const char*)> variable;  // getenv
  std::optional<Fault> fault = {};                   // of tests; see fault.h
  io::EventSink* events = nullptr;                   // told on the driver; see job_events.h
  // Previews after each so many steps; 0: none. The same on all ranks.
  int64_t preview_every = 0;
  // Gets on the driver what was made, once it is written.
  std::function<void(const RunState&)> results = {};
};

struct PreparedJob {
  config::Job job;  // resolved: no `auto` in device and precision, seed and model's defaults set
  std::filesystem::path ffmpeg;
  std::unique_ptr<ModelFiles> files;
  Plan plan;
  // What earlier jobs of the process have left, and what this one leaves.
  std::shared_ptr<Residents> residents;
  // Of a job with text.enhance, after run_job(): `job` has the new prompt and text.enhance: false,
  // so what is stored of it makes the same clip again.
  std::optional<std::string> original_prompt;
};

enum class Outputs { checked, ignored };
// Alike on all ranks but for what `outputs` checks and the plan's own device. Collective, and
// begins with work that can fail on one rank: call it inside an agreement. `assumed`: the ranks to
// plan for where they are not those that run this. `residents`: of a process that runs several
// jobs, the same for all of them; null: every model is loaded for the job, and goes with the stage
// that needs it. Errors, in this order: ErrorKind::config (not supported), ErrorKind::machine (no
// such device), ErrorKind::input (missing, damaged or unfitting files), ErrorKind::output (with
// Outputs::checked).
PreparedJob prepare_job(const config::LoadedJob& loaded, const Host& host,
                        Outputs outputs = Outputs::checked, const Ranks& ranks = {},
                        const std::vector<comm::RankFacts>& assumed = {},
                        std::shared_ptr<Residents> residents = nullptr);

// A seed for a job that has none: 32 random bits, all that the CPU generator uses.
uint64_t draw_seed();

// Where a run begins and what may end it early; both count with checkpoint.path only, unless
// `always_stops`.
struct RunControl {
  StopSources stop;
  std::optional<FoundCheckpoint> resume;  // given on the driver; the state reaches all ranks
  // stop.signal counts without checkpoint.path too; nothing is kept then.
  bool always_stops = false;
};

// Runs it; the driver decodes and writes all outputs. Returns this rank's times. Collective. The
// job is the same on all ranks, its seed set. Errors of preparing and loading are agreed, and so
// are ErrorKind::stopped and a checkpoint that is of another job (ErrorKind::input) or cannot be
// written (ErrorKind::output); one inside a stage leaves the other ranks waiting and is for
// comm::run_on_ranks() to end.
Phases run_job(PreparedJob& prepared, const Host& host, const Ranks& ranks = {},
               RunControl control = {});

// Decodes the latents of `file` (written by run_job) and writes the clip of `prepared`. Errors
// (ErrorKind::input): the file lacks latents, or they are of another size. Collective.
Phases decode_job(const PreparedJob& prepared, const io::LatentsFile& file, const Host& host,
                  const Ranks& ranks = {});

// The latents of the clip alone. Collective.
ClipLatents run_latents(const PreparedJob& prepared, const Ranks& ranks);

// Runs it and drops the frames; for benchmarks.
Phases run_without_outputs(const PreparedJob& prepared);

// "text 0.41 s (12 %)" and so on, one line a phase, then the total.
std::vector<std::string> phase_table(const Phases& phases);

}  // namespace flotilla::pipeline
