#include "diffusion/guided_denoiser.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

PassPredictions predictions_of(const PassRequest& request, std::span<const AvTokens> results,
                               at::Tensor AvTokens::*stream) {
  PassPredictions predictions;
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& result = results[i].*stream;
    switch (request.passes[i]) {
      case PassKind::conditional:
        predictions.cond = result;
        break;
      case PassKind::unconditional:
        predictions.uncond = result;
        break;
      case PassKind::perturbed:
        predictions.perturbed = result;
        break;
      case PassKind::isolated:
        predictions.isolated = result;
        break;
    }
  }
  return predictions;
}

// The remembered result of a stream that skips this step.
at::Tensor reuse(const at::Tensor& last, const LatentState& state) {
  FLOTILLA_ASSERT(last.defined());  // step 0 is never skipped, and a resumed run has a memory
  return last.to(state.latent.options());
}

}  // namespace

std::string_view to_string(PassKind kind) {
  switch (kind) {
    case PassKind::conditional:
      return "conditional";
    case PassKind::unconditional:
      return "unconditional";
    case PassKind::perturbed:
      return "perturbed";
    case PassKind::isolated:
      return "isolated";
  }
  fail(ErrorKind::internal, fmt::format("unknown pass {}", static_cast<int>(kind)));
}

PassRequest plan_passes(const GuiderParams& video, const GuiderParams& audio, int64_t step,
                        bool force_unconditional) {
  PassRequest request;
  request.video_enabled = !video.skips(step);
  request.audio_enabled = !audio.skips(step);
  if (!request.video_enabled && !request.audio_enabled) return request;

  request.passes.push_back(PassKind::conditional);
  if (force_unconditional || video.needs_unconditional() || audio.needs_unconditional()) {
    request.passes.push_back(PassKind::unconditional);
  }
  if (video.needs_perturbed() || audio.needs_perturbed()) {
    request.passes.push_back(PassKind::perturbed);
    if (video.needs_perturbed()) request.video_stg_blocks = video.stg_blocks;
    if (audio.needs_perturbed()) request.audio_stg_blocks = audio.stg_blocks;
  }
  if (video.needs_isolated() || audio.needs_isolated()) {
    request.passes.push_back(PassKind::isolated);
  }
  return request;
}

GuidedDenoiser::GuidedDenoiser(PassRunner& runner, GuiderSchedule video, GuiderSchedule audio,
                               bool force_unconditional)
    : runner_(runner),
      video_(std::move(video)),
      audio_(std::move(audio)),
      force_unconditional_(force_unconditional) {}

AvPrediction GuidedDenoiser::predict(const AvLatents& latents, double sigma, int64_t step) {
  const GuiderParams& video = video_.at(sigma);
  const GuiderParams& audio = audio_.at(sigma);
  const PassRequest request = plan_passes(video, audio, step, force_unconditional_);
  const std::vector<AvTokens> results =
      request.passes.empty() ? std::vector<AvTokens>() : runner_.run(request, latents, sigma);
  FLOTILLA_ASSERT(results.size() == request.passes.size());

  const PassPredictions of_video = predictions_of(request, results, &AvTokens::video);
  const PassPredictions of_audio = predictions_of(request, results, &AvTokens::audio);
  last_.video = request.video_enabled ? guide(video, of_video) : reuse(last_.video, latents.video);
  last_.audio = request.audio_enabled ? guide(audio, of_audio) : reuse(last_.audio, latents.audio);
  return {.video = {last_.video, request.video_enabled ? of_video.uncond : at::Tensor()},
          .audio = {last_.audio, request.audio_enabled ? of_audio.uncond : at::Tensor()}};
}

NamedTensors GuidedDenoiser::memory() const {
  NamedTensors memory;
  if (!video_.skips_steps() && !audio_.skips_steps()) return memory;
  if (last_.video.defined()) memory["video"] = last_.video;
  if (last_.audio.defined()) memory["audio"] = last_.audio;
  return memory;
}

void GuidedDenoiser::restore(const NamedTensors& memory) {
  last_ = {.video = recall(memory, "video"), .audio = recall(memory, "audio")};
}

}  // namespace flotilla::diffusion
