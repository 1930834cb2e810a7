// What a job takes of memory on its fullest rank, phase by phase, and what its ranks send each
// other: from the plan and the headers of the files alone, so it needs neither weights nor GPUs.
// One table in forecast.cpp says for each phase what it holds; each part of a phase is one formula
// (forecast_parts.h). More ranks make the activations smaller and never the weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/job.h"
#include "pipeline/model_files.h"
#include "pipeline/plan.h"

namespace flotilla::pipeline {

struct MemoryPart {
  std::string what;  // "weights of the transformer"
  int64_t bytes = 0;
};

// At the moment of the phase that needs most. A job on CPUs has everything on the host.
struct PhaseMemory {
  std::string phase;  // as in logs and metrics
  std::vector<MemoryPart> host;
  std::vector<MemoryPart> device;

  int64_t host_bytes() const;
  int64_t device_bytes() const;
};

// What one rank sends to others in a stage.
struct StageExchange {
  std::string stage;
  std::string method;              // "SP over 8 ranks"
  int64_t largest_call_bytes = 0;  // of one exchange
  int64_t step_bytes = 0;          // at most: perturbed passes may skip some exchanges
  int64_t stage_bytes = 0;
};

// Work between two safe points, where a run can stop and go on later.
struct SafeGap {
  std::string phase;  // of which it is the last part
  std::string work;   // "a step of 24576 video and 126 audio tokens, 1 pass"
};

struct Forecast {
  int64_t world_size = 1;
  int64_t host_limit_bytes = 0;    // of one rank; 0: not known
  int64_t device_limit_bytes = 0;  // 0 on CPUs
  std::vector<PhaseMemory> phases;
  std::vector<StageExchange> exchanges;  // of the stages that have any
  std::vector<SafeGap> gaps;

  const PhaseMemory& phase(std::string_view name) const;
  int64_t peak_host_bytes() const;
  int64_t peak_device_bytes() const;
};

// What the forecast cannot know from the job.
struct ForecastFacts {
  int64_t process_bytes = 0;      // that this process holds now, the models' files open
  int64_t host_memory_bytes = 0;  // of a machine; 0: not known
  int64_t ranks_on_host = 1;
  int64_t prompt_tokens = 0;  // of the longest prompt
  bool previews = false;      // the video decoder serves the stages too, see preview.h
};

// `job` as in PreparedJob. Errors: those of the model classes, see audit_models().
Forecast make_forecast(const config::Job& job, const ModelFiles& files, const Plan& plan,
                       const ForecastFacts& facts);

// Errors (ErrorKind::memory): a phase needs more than there is; names the phase, its largest part
// and what helps.
void check_fits(const Forecast& forecast);

}  // namespace flotilla::pipeline
