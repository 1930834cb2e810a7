#include "pipeline/phases.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "gpu/device.h"
#include "io/metrics.h"

namespace flotilla::pipeline {
namespace {

// What the exception of the catch block around it says about memory; nothing for other exceptions.
std::optional<std::string> memory_complaint() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return fmt::format("out of device memory ({})", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    // The CPU allocator has no exception type of its own.
    const std::string text = error.what_without_backtrace();
    if (text.find("DefaultCPUAllocator") == std::string::npos) return std::nullopt;
    return fmt::format("out of host memory ({})", text);
  } catch (const std::bad_alloc&) {
    return "out of host memory";
  } catch (...) {
    return std::nullopt;
  }
}

void take_larger(PeakMemory& most, const PeakMemory& memory) {
  if (memory.host_bytes)
    most.host_bytes = std::max(most.host_bytes.value_or(0), *memory.host_bytes);
  most.device_bytes = std::max(most.device_bytes, memory.device_bytes);
}

}  // namespace

std::string_view memory_advice(std::string_view phase) {
  if (phase.find("text") != std::string_view::npos) {
    return "use a lower precision (bf16), or more ranks with text.parallel: shard, which spread "
           "the text encoder";
  }
  if (phase.starts_with("load_") || phase.starts_with("enhance") || phase == "fuse_loras") {
    return "use a lower precision (bf16, fp8_cast), offload: cpu or disk on one rank, or a machine "
           "with more memory; more ranks do not help, each holds all weights";
  }
  if (phase == "decode_video")
    return "use smaller decoder tiles (decoder.tiling), or a smaller clip";
  return "use a smaller clip (video.width, video.height, video.num_frames), a lower precision, or "
         "offload: cpu or disk on one rank; more ranks share the activations, but each holds all "
         "weights";
}

void Phases::enter(const std::string& name) {
  if (events_ != nullptr && current_ != name)
    events_->emit({{"event", "phase"}, {"phase", name}, {"at_s", elapsed_s()}});
  end_step();
  current_ = name;
  if (ranks_.context != nullptr) ranks_.context->note_phase(name);
  fault_.reached(name, 0);
}

void Phases::at_step(int64_t step, int64_t steps, std::string_view unit) {
  end_step();
  const std::string place = fmt::format("{}, {} {} of {}", current_, unit, step, steps);
  if (ranks_.context != nullptr) ranks_.context->note_phase(place);
  step_start_ = Clock::now();
  const auto slowest = slowest_steps_.find(current_);
  if (slowest != slowest_steps_.end()) watch_->begin(place, slowest->second);
  fault_.reached(current_, step);
}

void Phases::end_step() {
  if (!step_start_) return;
  watch_->end();
  const std::chrono::duration<double> took =
      Clock::now() - *std::exchange(step_start_, std::nullopt);
  double& slowest = slowest_steps_[current_];
  slowest = std::max(slowest, took.count());
}

void Phases::tell_step(std::string_view stage, int64_t step, int64_t steps, double eta_s,
                       std::string_view unit) const {
  if (events_ == nullptr) return;
  events_->emit({{"event", "step"},
                 {"stage", stage},
                 {"step", step},
                 {"steps", steps},
                 {"unit", unit},
                 {"eta_s", eta_s},
                 {"at_s", elapsed_s()}});
}

void Phases::rethrow_memory_error(const std::string& phase) const {
  const auto complaint = memory_complaint();
  if (!complaint) return;
  std::string text = fmt::format("{}; {}", *complaint, memory_advice(phase));
  if (!latents_.empty())
    text += fmt::format("; the latents are in \"{0}\": flotilla decode \"{0}\"", latents_.string());
  fail(ErrorKind::memory, std::move(text));
}

Phases::Scope::Scope(Phases& phases, std::string name)
    : phases_(phases), name_(std::move(name)), start_(Clock::now()) {
  take_larger(phases_.between_, phases_.peaks());
  phases_.start_peaks();
}

Phases::Scope::~Scope() {
  gpu::synchronize(phases_.device_);
  phases_.end_span(name_, start_);
}

double Phases::seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

PeakMemory Phases::peaks() const {
  return {io::peak_host_bytes(), gpu::peak_device_bytes(device_)};
}

void Phases::start_peaks() {
  counts_host_peaks_ = io::start_host_peak();
  gpu::start_device_peak(device_);
}

void Phases::end_span(const std::string& name, Clock::time_point start) {
  const double seconds = seconds_since(start);
  const double end_s = elapsed_s();
  add(name, seconds);
  spans_.push_back({name, std::max(0.0, end_s - seconds), end_s});
  PeakMemory most = peaks();
  if (!counts_host_peaks_) most.host_bytes.reset();
  take_larger(memory_[name], most);
  start_peaks();
}

PeakMemory Phases::peak_memory() const {
  PeakMemory most = between_;
  for (const auto& [name, memory] : memory_) take_larger(most, memory);
  take_larger(most, peaks());
  return most;
}

void Phases::add(const std::string& name, double seconds) {
  const auto at = std::find_if(seconds_.begin(), seconds_.end(),
                               [&](const auto& phase) { return phase.first == name; });
  if (at == seconds_.end()) {
    seconds_.emplace_back(name, seconds);
  } else {
    at->second += seconds;
  }
}

double Phases::total_s() const {
  double total = 0.0;
  for (const auto& [name, seconds] : seconds_) total += seconds;
  return total;
}

}  // namespace flotilla::pipeline
