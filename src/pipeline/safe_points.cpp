#include "pipeline/safe_points.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace flotilla::pipeline {

SafePoints::SafePoints(const Ranks& ranks, const RunState& state, StopWatch& stop,
                       SafePointSettings settings)
    : ranks_(ranks),
      state_(state),
      stop_(stop),
      settings_(std::move(settings)),
      is_written_(settings_.resumed),
      num_written_(settings_.resumed ? state.results.size() : 0),
      written_step_(settings_.resumed && state.loop ? state.loop->step : 0) {}

void SafePoints::check_finite(const std::optional<Error>& error) {
  if (ranks_.context == nullptr) {
    if (error) end_non_finite(error->what());
    return;
  }
  std::string text;
  try {
    comm::agree(ranks_.context->world(), error);
    return;
  } catch (const comm::AgreedError& agreed) {
    text = agreed.what();
  }
  end_non_finite(text);
}

void SafePoints::end_non_finite(const std::string& text) {
  // A state between stages is there already, and that of a step perhaps.
  if (state_.loop && state_.loop->step != written_step_) write();
  std::string whole = text;
  if (!settings_.checkpoint.path.empty())
    whole += fmt::format("; the state {} is in \"{}\"", place_of(state_),
                         settings_.checkpoint.path.string());
  if (ranks_.context == nullptr) fail(ErrorKind::non_finite, std::move(whole));
  throw comm::AgreedError(ErrorKind::non_finite, std::move(whole), ranks_.is_driver());
}

diffusion::SafePoint SafePoints::after_step(int64_t steps) {
  const int64_t step = state_.loop->step;
  if (step == steps) return diffusion::SafePoint::go_on;  // the border comes next, with the results
  const auto reason = stop_.agreed_reason(ranks_);
  const int64_t every = settings_.checkpoint.every_steps;
  if (reason || (every > 0 && step % every == 0)) write();
  if (!reason) return diffusion::SafePoint::go_on;
  reason_ = *reason;
  return diffusion::SafePoint::stop;
}

void SafePoints::between() {
  const auto reason = stop_.agreed_reason(ranks_);
  if (state_.results.size() > num_written_ || (reason && !is_written_)) write();
  if (!reason) return;
  reason_ = *reason;
  end_run();
}

void SafePoints::alone() const {
  if (const auto reason = stop_.own_reason(ranks_)) fail(ErrorKind::stopped, end_text(*reason));
}

void SafePoints::end_run() const {
  if (ranks_.context == nullptr) fail(ErrorKind::stopped, end_text(reason_));
  throw comm::AgreedError(ErrorKind::stopped, end_text(reason_), ranks_.is_driver());
}

std::string SafePoints::end_text(const std::string& reason) const {
  const std::string path = settings_.checkpoint.path.string();
  if (path.empty())
    return fmt::format("stopped by {} {}; without checkpoint.path nothing of it is kept", reason,
                       place_of(state_));
  return fmt::format(
      "stopped by {} {}; the state is in \"{}\"; go on with: flotilla run --resume '{}'", reason,
      place_of(state_), path, path);
}

void SafePoints::write() {
  if (settings_.checkpoint.path.empty()) return;
  ranks_.agreed([&] {
    if (!ranks_.is_driver()) return;
    const auto start = std::chrono::steady_clock::now();
    io::LatentsFile file = settings_.header;
    put_state(file, state_);
    with_context("checkpoint", [&] {
      io::write_latents(settings_.checkpoint.path, file, /*overwrite=*/true,
                        settings_.keep_previous);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    log::debug("checkpoint", "written {} in {:.3f} s", place_of(state_), seconds.count());
    ++writes_.count;
    writes_.seconds += seconds.count();
  });
  settings_.keep_previous = true;
  is_written_ = true;
  num_written_ = state_.results.size();
  written_step_ = state_.loop ? state_.loop->step : 0;
}

}  // namespace flotilla::pipeline
