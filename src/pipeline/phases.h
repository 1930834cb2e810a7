// The phases of a job and the steps of its stages: how long they take, which logs, metrics and
// benchmarks read, and where this rank is, which the other ranks say should it die or hang.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/clock.h"
#include "io/events.h"
#include "pipeline/fault.h"
#include "pipeline/ranks.h"
#include "pipeline/step_watch.h"

namespace flotilla::pipeline {

// What helps when memory is short in a phase, and whether more ranks would.
std::string_view memory_advice(std::string_view phase);

// One run of a phase on this rank.
struct PhaseSpan {
  std::string phase;
  double start_s = 0;  // since the start of the job here
  double end_s = 0;
};
// The most that was held in a phase.
struct PeakMemory {
  std::optional<int64_t> host_bytes;  // nothing: the system counts no peaks of phases
  int64_t device_bytes = 0;           // 0 on the CPU
};

class Phases {
 public:
  // `ranks` are told where this one is; `fault` is of tests.
  explicit Phases(at::Device device, const Ranks& ranks = {},
                  const std::optional<Fault>& fault = std::nullopt)
      : device_(device),
        ranks_(ranks),
        fault_(fault, ranks.rank()),
        watch_(std::make_unique<StepWatch>(ranks, fault && fault->patience_s
                                                      ? *fault->patience_s
                                                      : StepWatch::kLeastPatienceSeconds)) {}

  // From now on the driver tells `events` of phases and steps; null: nobody.
  void tell(io::EventSink* events) { events_ = ranks_.is_driver() ? events : nullptr; }

  // Runs `work`, waits for the device and adds the time to `name`; errors get the name as context.
  // Torch's and the standard library's ways to run out of memory become ErrorKind::memory, with
  // what helps in this phase.
  template <typename Work>
  auto run(const std::string& name, Work&& work);
  void add(const std::string& name, double seconds);
  // This rank works on `name` now; run() says so too.
  void enter(const std::string& name);
  // In the phase that was entered: before `step`, from 1, of `steps`. `unit`: "step", "tile". From
  // here to end_step() the rank's computation is watched, see step_watch.h.
  void at_step(int64_t step, int64_t steps, std::string_view unit = "step");
  // The work of the step is done; what comes next, until the next step, may take its time.
  void end_step();
  // `step` of `steps` is done; `eta_s`: seconds to the end of the stage. For events only.
  void tell_step(std::string_view stage, int64_t step, int64_t steps, double eta_s,
                 std::string_view unit = "step") const;
  FaultHook& fault() { return fault_; }
  // The latents are in this file now: said when memory runs out later.
  void note_latents(std::filesystem::path file) { latents_ = std::move(file); }
  void add_step(const std::string& stage, double seconds) { steps_[stage].push_back(seconds); }

  // Phases in the order of their first run, seconds.
  const std::vector<std::pair<std::string, double>>& seconds() const { return seconds_; }
  const std::map<std::string, std::vector<double>>& steps() const { return steps_; }
  double total_s() const;
  // In the order of their ends.
  const std::vector<PhaseSpan>& spans() const { return spans_; }
  const std::map<std::string, PeakMemory>& memory() const { return memory_; }
  // Of the whole job so far: the peaks of its phases and what is held now.
  PeakMemory peak_memory() const;
  // Since this object was made; and when that was, in seconds of the system's clock, by which times
  // of ranks of one machine can be compared.
  double elapsed_s() const { return seconds_since(start_); }
  double start_time_s() const { return start_time_s_; }
  // What went to other ranks, and the seconds that it took.
  void add_exchange(int64_t bytes, double seconds) {
    exchange_bytes_ += bytes;
    exchange_s_ += seconds;
  }
  // Whether the transformer was there from an earlier job of the process.
  void note_warm(bool warm) { warm_ = warm; }
  bool warm() const { return warm_; }
  // Of each prompt that was encoded: whether it was too long and got cut.
  void add_prompt(bool truncated) { truncated_ = truncated || truncated_.value_or(false); }
  // Nothing when no prompt was encoded.
  std::optional<bool> prompt_truncated() const { return truncated_; }
  int64_t exchange_bytes() const { return exchange_bytes_; }
  double exchange_s() const { return exchange_s_; }

 private:
  using Clock = std::chrono::steady_clock;
  class Scope {
   public:
    Scope(Phases& phases, std::string name);
    ~Scope();  // adds the time also when the work throws
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Phases& phases_;
    std::string name_;
    Clock::time_point start_;
  };

  static double seconds_since(Clock::time_point start);
  // Peaks of memory are those of the process, counted anew in each phase and between phases.
  void start_peaks();
  PeakMemory peaks() const;
  void end_span(const std::string& name, Clock::time_point start);
  // Called in a catch block: throws an Error when the exception there means a lack of memory.
  void rethrow_memory_error(const std::string& phase) const;

  at::Device device_;
  Ranks ranks_;
  FaultHook fault_;
  std::unique_ptr<StepWatch> watch_;
  std::optional<Clock::time_point> step_start_;  // inside a step
  std::map<std::string, double> slowest_steps_;  // by phase, seconds
  io::EventSink* events_ = nullptr;
  Clock::time_point start_ = Clock::now();
  double start_time_s_ = io::wall_clock_s();
  std::string current_;
  std::filesystem::path latents_;
  std::vector<std::pair<std::string, double>> seconds_;
  std::vector<PhaseSpan> spans_;
  std::map<std::string, PeakMemory> memory_;
  PeakMemory between_;  // most outside of phases
  bool counts_host_peaks_ = false;
  std::map<std::string, std::vector<double>> steps_;
  int64_t exchange_bytes_ = 0;
  double exchange_s_ = 0.0;
  std::optional<bool> truncated_;
  bool warm_ = false;
};

}  // namespace flotilla::pipeline

#include "base/error.h"

template <typename Work>
auto flotilla::pipeline::Phases::run(const std::string& name, Work&& work) {
  const Scope scope(*this, name);
  return with_context(name, [&] {
    try {
      enter(name);
      return std::forward<Work>(work)();
    } catch (...) {
      rethrow_memory_error(name);
      throw;
    }
  });
}
