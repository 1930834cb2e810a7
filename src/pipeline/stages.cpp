#include "pipeline/stages.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "diffusion/noise.h"
#include "diffusion/patchify.h"
#include "diffusion/sampler.h"
#include "io/image_resize.h"
#include "ops/linear.h"
#include "parallel/replicated.h"
#include "pipeline/precision.h"
#include "pipeline/preview.h"
#include "pipeline/stage_runner.h"
#include "vae/encoder.h"

namespace flotilla::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

void report_loras(const std::vector<loader::LoraWithStrength>& loras,
                  const std::vector<loader::LoraCounts>& counts, std::string_view where) {
  for (size_t i = 0; i < loras.size(); ++i) {
    log::info("lora", "\"{}\" at strength {}{}: {} layers applied, {} skipped",
              loras[i].file->checkpoint().path().string(), loras[i].strength, where,
              counts[i].applied, counts[i].skipped);
  }
}

// With the statistics of the VAE's latents.
struct LoadedUpsampler {
  vae::LatentStatistics statistics;
  upsampler::LatentUpsampler model;
};

std::shared_ptr<LoadedTransformer> read_transformer(const Session& session) {
  const auto& [files, plan, ranks] = std::tie(session.files, session.plan, session.ranks);
  session.make_room("load_transformer");
  return ranks.agreed([&] {
    return session.phases.run("load_transformer", [&] {
      transformer::Transformer model(files.transformer(), storage_policy(session.job.precision),
                                     plan.device, ranks.load_arena(), plan.weight_home);
      parallel::SharedWeightsOptions options;
      if (session.job.models.fixed_loras) options.clean = loader::FusedShare::Clean::read_again;
      if (plan.clean_on_device) options.clean_device = plan.device;
      parallel::SharedWeights weights(model.arena(), ranks.world(), options);
      return std::make_shared<LoadedTransformer>(
          LoadedTransformer{std::move(model), std::move(weights)});
    });
  });
}

// Without a clean copy the LoRAs belong to the model.
std::string transformer_key(const Session& session) {
  std::string key = session.key_of(*session.files.transformer()) + session.plan.precision +
                    fmt::format(" {}", static_cast<int>(session.plan.weight_home));
  if (!session.job.models.fixed_loras) return key;
  key += " fixed";
  for (const auto& [file, strength] : session.files.loras())
    key += fmt::format(" {} * {}", strength, file->checkpoint().identity());
  return key;
}

// Frame 0 replaces the first latent; later frames, and negative ones (before the clip), are
// appended.
diffusion::ConditioningItem item_of(const config::Image& image, at::Tensor latent) {
  if (image.frame == 0) return diffusion::ReplaceFrame{std::move(latent), 0, image.strength};
  return diffusion::AppendKeyframe{std::move(latent), image.frame, image.strength};
}

diffusion::AvLatents noised_start(const Session& session, const DenoiseRequest& request) {
  const at::TensorOptions options =
      at::TensorOptions(session.plan.device).dtype(session.plan.dtype);
  diffusion::AvLatents latents;
  latents.video = diffusion::apply_conditioning(
      diffusion::make_video_state(request.stage.grid, options, request.initial_video),
      request.stage.grid, request.items);
  latents.audio = diffusion::make_audio_state(session.plan.audio, options, request.initial_audio,
                                              session.plan.audio_timing);
  // A stage that starts from noise alone does so at full strength, whatever its first sigma.
  const double noise_scale = request.initial_video.defined() ? request.stage.sigmas.front() : 1.0;
  return diffusion::add_noise(std::move(latents), request.noise, noise_scale);
}

// That of `run`, or the one before the first step. A stage that goes on has the same masks and
// positions; the noise that was drawn for it now is dropped, and so is the draw.
diffusion::DenoiseState first_state(const diffusion::DenoiseStage& stage,
                                    const DenoiseRequest& request, const RunState& run) {
  if (run.loop) {
    request.noise.restore(run.loop->generator);
    return *run.loop;
  }
  if (request.on_start) request.on_start(stage.latents);
  return diffusion::start_stage(stage, request.noise);
}

// Numbers that run away on this rank are told to the others, which come to the end of the step.
diffusion::LoopEnd run_steps(const Session& session, const diffusion::DenoiseStage& stage,
                             diffusion::DenoiseState& state,
                             const diffusion::StepCallback& after_step) {
  try {
    return diffusion::run_denoise_loop(stage, state, after_step);
  } catch (const comm::AgreedError&) {
    throw;
  } catch (const Error& error) {
    session.phases.end_step();
    if (error.kind() == ErrorKind::non_finite && session.safe_points != nullptr)
      session.safe_points->check_finite(error);
    throw;
  }
}

}  // namespace

std::string Session::key_of(const loader::Checkpoint& file) const {
  return fmt::format("{} {} {} ", file.identity(), c10::toString(plan.dtype), plan.device.str());
}

diffusion::NoiseGenerator make_noise(const Session& session, uint64_t seed) {
  const bool on_device = session.job.noise_device == config::NoiseDevice::cuda;
  return diffusion::NoiseGenerator(seed, on_device ? session.plan.device : at::Device(at::kCPU));
}

std::vector<StageItems> encode_images(const Session& session,
                                      const std::vector<const StagePlan*>& stages) {
  std::vector<StageItems> items(stages.size());
  if (session.job.images.empty()) return items;
  session.make_room("encode_images");
  return session.phases.run("encode_images", [&] {
    const auto load = [&] {
      return std::make_shared<vae::VideoEncoder>(
          vae::VideoEncoder::from_checkpoint(session.files.video_vae(), session.plan.dtype,
                                             session.plan.device, session.ranks.load_arena()));
    };
    const auto encoder = session.residents->get<vae::VideoEncoder>(
        Kept::image_encoder, session.key_of(*session.files.video_vae()), session.ranks,
        [&] { return session.ranks.agreed(load); });
    for (size_t s = 0; s < stages.size(); ++s) {
      for (const auto& image : session.job.images) {
        FLOTILLA_ASSERT(image.crf.has_value());  // see with_model_defaults()
        const at::Tensor pixels = io::load_conditioning_image(
            image.path, stages[s]->pixels.height, stages[s]->pixels.width,
            static_cast<int>(*image.crf), session.ffmpeg);
        at::Tensor latent = encoder->encode(pixels.to(session.plan.device, session.plan.dtype));
        if (!at::isfinite(latent).all().item<bool>()) {
          fail(ErrorKind::non_finite,
               fmt::format("the video VAE encodes image \"{}\" to non-finite numbers; "
                           "text-to-video works without it",
                           image.path.string()));
        }
        items[s].push_back(item_of(image, std::move(latent)));
      }
    }
    return items;
  });
}

std::shared_ptr<LoadedTransformer> load_transformer(const Session& session) {
  const auto& files = session.files;
  const std::string key = transformer_key(session);
  // Back it goes when its LoRAs are in place; should that fail, it is not whole.
  auto loaded = session.residents->take<LoadedTransformer>(Kept::transformer, key, session.ranks);
  session.phases.note_warm(loaded != nullptr);
  if (!loaded) loaded = read_transformer(session);
  const auto set = loaded->model.lora_set(files.loras());
  session.phases.run("load_transformer", [&] {
    loaded->weights.release_factors_but(files.stage_2_loras());
    loaded->weights.read_factors(loaded->model.lora_set(files.stage_2_loras()));
    loaded->weights.set_loras(set);
    loaded->model.refresh();
  });
  session.residents->put(Kept::transformer, key, loaded);
  report_loras(files.loras(), set.counts(), "");
  return loaded;
}

void fuse_stage_2_loras(const Session& session,
                        const std::shared_ptr<LoadedTransformer>& transformer) {
  const auto& loras = session.files.stage_2_loras();
  const auto set = transformer->model.lora_set(loras);
  const std::string key = transformer_key(session);
  const auto kept =
      session.residents->take<LoadedTransformer>(Kept::transformer, key, session.ranks);
  session.phases.run("fuse_loras", [&] {
    transformer->weights.set_loras(set);
    transformer->model.refresh();
    // The next job of these LoRAs finds their factors.
    if (!kept) transformer->weights.release_factors();
  });
  if (kept) session.residents->put(Kept::transformer, key, kept);
  report_loras(loras, set.counts(), " in stage 2");
}

StageLatents denoise(const Session& session, const DenoiseRequest& request, RunState& run) {
  session.make_room(request.stage.name);
  return session.phases.run(request.stage.name, [&] {
    diffusion::AvLatents start = noised_start(session, request);
    std::optional<ops::FixedRowBlocks> exact;
    if (session.job.reproducible == config::Reproducible::world) exact.emplace();
    const GuidancePlan& guidance = request.stage.guidance;
    StageRunner runner(session.job, session.plan, request.stage, session.ranks, request.model,
                       request.contexts, start);
    FaultyPasses passes(runner.passes(), session.phases.fault());
    diffusion::GuidedDenoiser denoiser(passes, diffusion::GuiderSchedule(guidance.video),
                                       diffusion::GuiderSchedule(guidance.audio));
    StagePreviews previews(denoiser, session, request.stage);
    diffusion::EulerSampler sampler;
    const diffusion::DenoiseStage stage{request.stage.name, request.stage.sigmas, std::move(start),
                                        previews, sampler};
    diffusion::DenoiseState state = first_state(stage, request, run);
    Progress progress(request.stage.name, stage.num_steps(), session.ranks.is_driver(), state.step);
    session.phases.at_step(state.step + 1, stage.num_steps());
    auto step_start = Clock::now();
    const auto after_step = [&](diffusion::DenoiseState& now_at, int64_t step, int64_t steps) {
      session.phases.end_step();
      if (session.safe_points != nullptr) session.safe_points->check_finite();
      if (session.plan.device.is_cuda() && session.ranks.world_size() > 1)
        parallel::take_drivers_audio(now_at, session.ranks.context->transformer());
      const auto now = Clock::now();
      session.phases.add_step(request.stage.name,
                              std::chrono::duration<double>(now - step_start).count());
      progress.update(step);
      session.phases.tell_step(request.stage.name, step, steps, progress.eta_s());
      if (session.after_step) session.after_step(now_at);
      run.loop = now_at;
      const auto answer = session.safe_points != nullptr ? session.safe_points->after_step(steps)
                                                         : diffusion::SafePoint::go_on;
      if (step < steps && answer == diffusion::SafePoint::go_on) {
        previews.after_step(step);
        session.phases.at_step(step + 1, steps);
      }
      step_start = Clock::now();
      return answer;
    };
    const auto end = run_steps(session, stage, state, after_step);
    runner.close(session.phases);
    if (end == diffusion::LoopEnd::stopped) session.safe_points->end_run();
    run.loop.reset();
    run.generator = request.noise.state();
    const diffusion::AvLatents latents = diffusion::latents_at(stage, state);
    return StageLatents{
        diffusion::unpatchify_video(diffusion::target_tokens(latents.video),
                                    request.stage.grid.size),
        diffusion::unpatchify_audio(diffusion::target_tokens(latents.audio), session.plan.audio)};
  });
}

at::Tensor upsample(const Session& session, const at::Tensor& video_latent) {
  session.make_room("upsample");
  return session.phases.run("upsample", [&] {
    const auto& [files, plan, ranks] = std::tie(session.files, session.plan, session.ranks);
    const auto load = [&] {
      const auto load_arena = ranks.load_arena();
      auto statistics = ranks.agreed([&] {
        return vae::load_statistics(files.video_vae(), plan.dtype, plan.device, load_arena);
      });
      auto model = ranks.agreed([&] {
        return upsampler::LatentUpsampler::from_checkpoint(files.upsampler(), plan.dtype,
                                                           plan.device, load_arena);
      });
      return std::make_shared<LoadedUpsampler>(
          LoadedUpsampler{std::move(statistics), std::move(model)});
    };
    const auto loaded = session.residents->get<LoadedUpsampler>(
        Kept::upsampler, session.key_of(*files.upsampler()) + session.key_of(*files.video_vae()),
        ranks, load);
    return upsampler::upsample_video(loaded->model, video_latent, loaded->statistics.mean,
                                     loaded->statistics.std);
  });
}

}  // namespace flotilla::pipeline
