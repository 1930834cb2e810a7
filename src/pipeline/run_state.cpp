#include "pipeline/run_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::pipeline {
namespace {

namespace names = io::latents;

// What each phase makes, in their order; the last result of a phase completes it.
struct PhaseResults {
  std::string_view phase;
  std::vector<const char*> results;
};
std::span<const PhaseResults> phase_results() {
  static const std::vector<PhaseResults> table = {
      {"text", {names::kVideoContext, names::kAudioContext}},
      {"stage_1",
       {names::kInitialVideo, names::kInitialAudio, names::kStage1Video, names::kStage1Audio}},
      {"upsample", {names::kUpscaledVideo}},
      {"stage_2", {names::kStage2Video, names::kStage2Audio}},
  };
  return table;
}

constexpr const char* kStage = "stage";
constexpr const char* kStep = "step";
constexpr const char* kGenerator = "generator";

at::Tensor bytes_of(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  return bytes;
}

// Complete phases first, then none.
void check_order(const RunState& state, std::string_view stage) {
  if (stage != next_phase(state)) {
    fail(ErrorKind::input, fmt::format("the saved state is of {}, but its results reach up to {}",
                                       excerpt(std::string(stage)), next_phase(state)));
  }
  bool complete = true;
  for (const auto& [phase, results] : phase_results()) {
    complete = complete && phase != stage;
    const bool in_loop = phase == stage && state.loop.has_value();
    for (const char* name : results) {
      const bool initial = name == std::string_view(names::kInitialVideo) ||
                           name == std::string_view(names::kInitialAudio);
      const bool expected = complete || (in_loop && initial);
      if (state.has(name) == expected) continue;
      fail(ErrorKind::input, fmt::format("the saved state of {} {} \"{}\"", stage,
                                         expected ? "lacks" : "should not have", name));
    }
  }
}

}  // namespace

std::string_view next_phase(const RunState& state) {
  for (const auto& [phase, results] : phase_results()) {
    if (!state.has(results.back())) return phase;
  }
  return "decode";
}

std::string place_of(const RunState& state) {
  if (state.loop) return fmt::format("after step {} of {}", state.loop->step, state.loop->stage);
  return fmt::format("before {}", next_phase(state));
}

void put_results(io::LatentsFile& file, const RunState& state) {
  for (const auto& [name, tensor] : state.results) {
    const auto type = tensor.is_floating_point() ? at::kFloat : tensor.scalar_type();
    file.tensors[name] = tensor.to(at::kCPU, type);
  }
  file.sample_rate = state.sample_rate;
}

void put_state(io::LatentsFile& file, const RunState& state) {
  put_results(file, state);
  file.tensors.erase(names::kDecodedVideo);
  file.tensors.erase(names::kDecodedAudio);
  file.resume_texts[kStage] = std::string(next_phase(state));
  file.resume_integers[kStep] = state.loop ? state.loop->step : 0;
  if (!state.loop) {
    file.tensors[names::kResumeGenerator] = state.generator;
    return;
  }
  FLOTILLA_ASSERT(state.loop->stage == next_phase(state));
  for (auto& [name, tensor] : diffusion::to_tensors(*state.loop)) {
    if (name != kStage && name != kStep) file.tensors[names::kResumeGroup + name] = tensor;
  }
}

RunState take_state(const io::LatentsFile& file) {
  const auto stage = file.resume_texts.find(kStage);
  const auto step = file.resume_integers.find(kStep);
  if (stage == file.resume_texts.end() || step == file.resume_integers.end()) {
    fail(ErrorKind::input, "it holds no state of a stopped run (no attributes of /resume)");
  }
  RunState state;
  diffusion::NamedTensors loop;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with(names::kResumeGroup)) {
      loop[name.substr(std::strlen(names::kResumeGroup))] = tensor;
    } else if (!name.starts_with("decoded/")) {
      state.keep(name, tensor);
    }
  }
  if (step->second != 0) {
    loop[kStage] = bytes_of(stage->second);
    loop[kStep] = at::scalar_tensor(step->second, at::kLong);
    state.loop = diffusion::state_from_tensors(loop);
  } else {
    const auto generator = loop.find(kGenerator);
    if (generator == loop.end() || loop.size() != 1)
      fail(ErrorKind::input, "between stages, /resume has to hold the generator and nothing else");
    state.generator = generator->second;
  }
  check_order(state, stage->second);
  return state;
}

}  // namespace flotilla::pipeline
