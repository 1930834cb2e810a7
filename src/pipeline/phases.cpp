#include "pipeline/phases.h"

#include <algorithm>

#include "gpu/device.h"

namespace flotilla::pipeline {

Phases::Scope::Scope(Phases& phases, std::string name)
    : phases_(phases), name_(std::move(name)), start_(Clock::now()) {}

Phases::Scope::~Scope() {
  gpu::synchronize(phases_.device_);
  phases_.add(name_, std::chrono::duration<double>(Clock::now() - start_).count());
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
