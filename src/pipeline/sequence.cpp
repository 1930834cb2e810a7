#include "pipeline/sequence.h"

#include <ATen/ATen.h>

namespace flotilla::pipeline {
namespace {

namespace names = io::latents;

// A result in dtype and on device of the run.
at::Tensor result(const Session& session, const RunState& state, const char* name) {
  return state.results.at(name).to(session.plan.device, session.plan.dtype);
}

void encode_text(const Session& session, const Sequence& sequence, RunState& state) {
  std::vector<NamedPrompt> prompts = {{"prompt", session.job.prompt}};
  if (sequence.encodes_negative_prompt)
    prompts.push_back({"negative_prompt", session.job.negative_prompt});
  const auto contexts = encode_prompts(session, prompts);
  state.keep(names::kVideoContext, contexts[0].video);
  state.keep(names::kAudioContext, contexts[0].audio);
  if (!sequence.encodes_negative_prompt) return;
  state.keep(names::kNegativeVideoContext, contexts[1].video);
  state.keep(names::kNegativeAudioContext, contexts[1].audio);
}

PromptContexts contexts_of(const Session& session, const Sequence& sequence,
                           const RunState& state) {
  PromptContexts contexts;
  contexts.positive = {result(session, state, names::kVideoContext),
                       result(session, state, names::kAudioContext)};
  if (sequence.encodes_negative_prompt) {
    contexts.negative = {result(session, state, names::kNegativeVideoContext),
                         result(session, state, names::kNegativeAudioContext)};
  }
  return contexts;
}

// Everything that the transformer is loaded for.
void denoise_stages(const Session& session, const Sequence& sequence,
                    diffusion::NoiseGenerator& noise, RunState& state) {
  const Plan& plan = session.plan;
  const PromptContexts contexts = contexts_of(session, sequence, state);
  const auto items = encode_images(session, {&plan.stage_1, &plan.stage_2});
  session.safe_point();
  const auto transformer = load_transformer(session);
  session.safe_point();

  if (!state.has(names::kStage1Video)) {
    const StageLatents first = denoise(session,
                                       {.stage = plan.stage_1,
                                        .model = transformer->model,
                                        .contexts = contexts,
                                        .items = items[0],
                                        .noise = noise,
                                        .on_start =
                                            [&](const diffusion::AvLatents& start) {
                                              state.keep(names::kInitialVideo, start.video.latent);
                                              state.keep(names::kInitialAudio, start.audio.latent);
                                            }},
                                       state);
    state.keep(names::kStage1Video, first.video);
    state.keep(names::kStage1Audio, first.audio);
    session.safe_point();
  }
  if (!state.has(names::kUpscaledVideo)) {
    state.keep(names::kUpscaledVideo,
               upsample(session, result(session, state, names::kStage1Video)));
    session.safe_point();
  }
  if (sequence.fuses_stage_2_loras) {
    fuse_stage_2_loras(session, transformer);
    session.safe_point();
  }
  const at::Tensor audio = result(session, state, names::kStage1Audio);
  const StageLatents second =
      denoise(session,
              {.stage = plan.stage_2,
               .model = transformer->model,
               .contexts = contexts,
               .items = items[1],
               .noise = noise,
               .initial_video = result(session, state, names::kUpscaledVideo),
               .initial_audio = audio},
              state);
  state.keep(names::kStage2Video, second.video);
  state.keep(names::kStage2Audio, sequence.ends_sound_in_stage_1 ? audio : second.audio);
}

}  // namespace

ClipLatents run_sequence(const Session& session, uint64_t seed, const Sequence& sequence,
                         RunState& state) {
  diffusion::NoiseGenerator noise = make_noise(session, seed);
  if (state.generator.defined()) noise.restore(state.generator);
  state.generator = noise.state();
  session.safe_point();
  if (!state.has(names::kVideoContext)) {
    encode_text(session, sequence, state);
    session.safe_point();
  }
  if (!state.has(names::kStage2Video)) {
    denoise_stages(session, sequence, noise, state);
    session.safe_point();
  }
  return {result(session, state, names::kStage2Video), result(session, state, names::kStage2Audio)};
}

}  // namespace flotilla::pipeline
