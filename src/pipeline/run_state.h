// What a run has made so far, as a value: the results by the names of io/latents_file.h and, inside
// a denoise stage, where its loop stands. A run that goes on from a checkpoint starts with such a
// state and makes what is missing. checkpoint.h stores it.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "diffusion/denoise_state.h"
#include "io/latents_file.h"

namespace flotilla::pipeline {

struct RunState {
  // In dtype and on device of the run; float32 on the CPU when they come from a file, which holds
  // every dtype of a run without loss.
  std::map<std::string, at::Tensor> results;
  int64_t sample_rate = 0;  // of decoded/audio
  // Of the job's noise generator, between stages; uint8. Undefined: the job has not begun.
  at::Tensor generator;
  // Inside a stage; it has its own state of the generator.
  std::optional<diffusion::DenoiseState> loop;

  bool has(const std::string& name) const { return results.count(name) != 0; }
  void keep(const std::string& name, at::Tensor tensor) { results[name] = std::move(tensor); }
};

// The phase that makes the next result: "text", "stage_1", "upsample", "stage_2" or "decode".
std::string_view next_phase(const RunState& state);
// "after step 3 of stage_1", "before upsample".
std::string place_of(const RunState& state);

// Puts all results into `file`, as float32 on the CPU.
void put_results(io::LatentsFile& file, const RunState& state);

// The same with /resume, without what was decoded.
void put_state(io::LatentsFile& file, const RunState& state);
// The inverse. Errors (ErrorKind::input): the file has no state of a run, or one that does not fit
// its results.
RunState take_state(const io::LatentsFile& file);

}  // namespace flotilla::pipeline
