#include "pipeline/distilled.h"

#include <ATen/ATen.h>

namespace flotilla::pipeline {

ClipLatents run_distilled(const Session& session, uint64_t seed, io::LatentsFile* record) {
  namespace names = io::latents;
  const Plan& plan = session.plan;
  diffusion::NoiseGenerator noise = make_noise(session, seed);

  const PromptContexts contexts{encode_prompts(session, {{"prompt", session.job.prompt}})[0], {}};
  keep(record, names::kVideoContext, contexts.positive.video);
  keep(record, names::kAudioContext, contexts.positive.audio);
  const auto items = encode_images(session, {&plan.stage_1, &plan.stage_2});

  const LoadedTransformer loaded = load_transformer(session);
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

  const StageLatents second = denoise(session, {.stage = plan.stage_2,
                                                .model = loaded.model,
                                                .contexts = contexts,
                                                .items = items[1],
                                                .noise = noise,
                                                .initial_video = upscaled,
                                                .initial_audio = first.audio});
  keep(record, names::kStage2Video, second.video);
  keep(record, names::kStage2Audio, second.audio);
  return {second.video, second.audio};
}

}  // namespace flotilla::pipeline
