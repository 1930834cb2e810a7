// What the benchmarks of single models share: random weights in place of a file's, and times of
// work on a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "loader/weight_arena.h"

namespace flotilla::app {

// A LoadArena that reads nothing: weights of a size that keeps activations near 1 (standard
// deviation 0.02), drawn where they lie; scales of norms and of rows are 1.
void draw_weights(loader::WeightArena& arena);

// The dtype that --precision names, of models without other policies. Errors (ErrorKind::usage):
// neither bf16 nor fp32.
at::ScalarType bench_dtype(const std::string& precision);

// Of `work` from an idle device to an idle device.
double seconds_of(at::Device device, const std::function<void()>& work);

// FLOP/s of sustained work of `flop` a call: as many calls as fill a quarter of a second.
double rate_of(at::Device device, double flop, const std::function<void()>& work);

struct TimeSummary {
  double min_ms = 0, p50_ms = 0, max_ms = 0;
};
// `warmup` calls that are not counted, then `iters`, each from an idle device.
TimeSummary time_calls(at::Device device, int warmup, int iters, const std::function<void()>& work);
// Sorts; at least one.
TimeSummary summary_of(std::vector<double> milliseconds);

// As a whole or not at all, over what is there. Errors: ErrorKind::output.
void write_bench_json(const std::string& file, const nlohmann::ordered_json& json);

}  // namespace flotilla::app
