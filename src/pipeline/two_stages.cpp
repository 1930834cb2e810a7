#include "pipeline/two_stages.h"

#include <ATen/ATen.h>

namespace flotilla::pipeline {
namespace {

// The negative prompt only where a pass reads it.
PromptContexts encode_both_prompts(const Session& session) {
  std::vector<NamedPrompt> prompts = {{"prompt", session.job.prompt}};
  if (session.plan.stage_1.guidance.needs_negative_prompt()) {
    prompts.push_back({"negative_prompt", session.job.negative_prompt});
  }
  const auto contexts = encode_prompts(session, prompts);
  return {contexts.front(), contexts.size() > 1 ? contexts.back() : text::TextContext{}};
}

}  // namespace

ClipLatents run_two_stages(const Session& session, uint64_t seed, io::LatentsFile* record) {
  namespace names = io::latents;
  const Plan& plan = session.plan;
  diffusion::NoiseGenerator noise = make_noise(session, seed);

  const PromptContexts contexts = encode_both_prompts(session);
  keep(record, names::kVideoContext, contexts.positive.video);
  keep(record, names::kAudioContext, contexts.positive.audio);
  const auto items = encode_images(session, {&plan.stage_1, &plan.stage_2});

  LoadedTransformer loaded = load_transformer(session);
  const StageLatents first = denoise(session, {.stage = plan.stage_1,
                                               .model = loaded.model,
                                               .contexts = contexts,
                                               .items = items[0],
                                               .noise = noise,
                                               .on_start = keep_start(record)});
  keep(record, names::kStage1Video, first.video);
  keep(record, names::kStage1Audio, first.audio);

  const at::Tensor upscaled = upsample(session, first.video);
  keep(record, names::kUpscaledVideo, upscaled);

  fuse_stage_2_loras(session, loaded);
  const StageLatents second = denoise(session, {.stage = plan.stage_2,
                                                .model = loaded.model,
                                                .contexts = contexts,
                                                .items = items[1],
                                                .noise = noise,
                                                .initial_video = upscaled,
                                                .initial_audio = first.audio});
  keep(record, names::kStage2Video, second.video);
  keep(record, names::kStage2Audio, first.audio);  // what is decoded
  return {second.video, first.audio};
}

}  // namespace flotilla::pipeline
