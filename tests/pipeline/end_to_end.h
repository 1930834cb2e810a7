// What the end-to-end goldens of all pipelines have in common: the job that their parameters
// describe, and the comparison of noise, steps, latents, frames and sound in float32.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "diffusion/patchify.h"
#include "pipeline/jobs.h"
#include "support/compare.h"
#include "support/golden.h"
#include "vae/decoder.h"

namespace flotilla::test {

struct EndToEndCase {
  std::string golden;
  double cpu_tolerance;
  config::Device device = config::Device::cpu;

  // Another device sums in another order: ten times the CPU's bound, as the goldens suggest.
  double tolerance() const { return (device == config::Device::cpu ? 1 : 10) * cpu_tolerance; }
};

// Size, prompt, seed and image of a golden's job; `base` has the models and the pipeline.
inline config::Job end_to_end_job(config::Job base, const nlohmann::json& params) {
  base.prompt = params.at("prompt").get<std::string>();
  base.seed = params.at("seed").get<uint64_t>();
  base.video.width = params.at("width").get<int64_t>();
  base.video.height = params.at("height").get<int64_t>();
  base.video.num_frames = params.at("frames").get<int64_t>();
  base.video.frame_rate =
      config::parse_frame_rate(fmt::format("{}", params.at("fps").get<double>())).value();
  if (!params.at("image").is_null()) {
    base.images.push_back({.path = tiny_dir() / params.at("image").get<std::string>(),
                           .frame = 0,
                           .strength = 1.0,
                           .crf = 0});
  }
  return base;
}

// The grid over the ranks in which a golden's frames were decoded.
inline config::DecoderTiles decoder_tiles_of(const nlohmann::json& params) {
  const auto overlap = params.at("decoder_overlap").get<int64_t>();
  return {params.at("decoder_grid").get<config::TileGrid>(), {{overlap, overlap, overlap}}};
}

class EndToEndTest : public ::testing::TestWithParam<EndToEndCase> {
 protected:
  using Pipeline = pipeline::ClipLatents (&)(const pipeline::Session&, uint64_t,
                                             pipeline::RunState&);

  void check(const std::string& name, const at::Tensor& actual) {
    EXPECT_TRUE(all_close(actual, golden_[name], GetParam().tolerance())) << name;
  }

  // Runs the job and compares what the golden has of each step and of the latents.
  pipeline::ClipLatents check_latents(PieceRunner& runner, Pipeline run) {
    pipeline::Session session = runner.session();
    at::Tensor last_audio;  // of stage 2, kept by the pipeline or not
    session.after_step = [&](const diffusion::DenoiseState& state) {
      check_step(state);
      last_audio = diffusion::unpatchify_audio(state.audio, runner.plan.audio);
    };
    pipeline::RunState state;
    const auto latents = run(session, *runner.job.seed, state);
    EXPECT_EQ(steps_checked_, static_cast<int64_t>(golden_.names("stage1.step").size()) / 2);
    const auto recorded = [&](const char* name) { return state.results.at(name).cpu(); };
    check("stage1.video_latent", recorded(io::latents::kStage1Video));
    check("stage1.audio_latent", recorded(io::latents::kStage1Audio));
    check("upscaled.video_latent", recorded(io::latents::kUpscaledVideo));
    check("stage2.video_latent", recorded(io::latents::kStage2Video));
    check("stage2.audio_latent", last_audio);
    // What is decoded is what the file calls the latents of stage 2.
    EXPECT_TRUE(same_bytes(latents.video.cpu(), recorded(io::latents::kStage2Video)));
    EXPECT_TRUE(same_bytes(latents.audio.cpu(), recorded(io::latents::kStage2Audio)));
    const bool keeps_stage_1_audio = golden_["audio_latent_decoded"].item<int64_t>() == 1;
    EXPECT_EQ(at::equal(latents.audio.cpu(), recorded(io::latents::kStage1Audio)),
              keeps_stage_1_audio);
    return latents;
  }

  void check_frames(const at::Tensor& frames) {  // uint8 [F, H, W, 3]
    EXPECT_TRUE(frames_close(frames.index_select(0, golden_["frame_indices"]),
                             golden_["frames_u8_subset"]));
    if (golden_.has("frames_u8_all_every4px")) {
      const at::Tensor every4 =
          frames.slice(1, 0, frames.size(1), 4).slice(2, 0, frames.size(2), 4);
      EXPECT_TRUE(frames_close(every4, golden_["frames_u8_all_every4px"]));
    }
    // Half a uint8 step would show here; the mean over a frame hides single roundings.
    EXPECT_TRUE(all_close(frames.to(at::kFloat).div(255).mean({1, 2, 3}),
                          golden_["frames_mean_per_frame"], 1e-4));
  }

  void check_sound(const audio::Waveform& waveform) {
    EXPECT_EQ(waveform.sample_rate, golden_["audio.sampling_rate"].item<int64_t>());
    EXPECT_EQ(waveform.samples.size(-1), golden_["audio.num_samples"].item<int64_t>());
    if (golden_.has("audio.waveform")) {
      check("audio.waveform", waveform.samples[0]);
    } else {
      check("audio.waveform_every8", waveform.samples[0].slice(1, 0, waveform.samples.size(-1), 8));
    }
  }

  // The draws of the job in their order; the noise is the CPU's on every device.
  void check_noise(const PieceRunner& runner) {
    diffusion::NoiseGenerator generator(*runner.job.seed);
    for (const auto* stage : {&runner.plan.stage_1, &runner.plan.stage_2}) {
      const std::string base = stage == &runner.plan.stage_1 ? "noise.stage1." : "noise.stage2.";
      check_draw(generator, base + "video", stage->grid.size.num_tokens());
      check_draw(generator, base + "audio", runner.plan.audio.num_tokens());
    }
  }

  Golden golden_{GetParam().golden};

 private:
  void check_step(const diffusion::DenoiseState& state) {
    const std::string stage = state.stage == "stage_1" ? "stage1" : "stage2";
    const std::string base = fmt::format("{}.step{}.", stage, state.step - 1);
    if (!golden_.has(base + "video_tokens")) return;
    check(base + "video_tokens", state.video);
    check(base + "audio_tokens", state.audio);
    ++steps_checked_;
  }

  void check_draw(diffusion::NoiseGenerator& generator, const std::string& name, int64_t tokens) {
    const at::Tensor noise = generator.draw({1, tokens, 128}, at::kFloat);
    const at::Tensor first16 = noise.flatten().narrow(0, 0, 16);
    // Below AVX2 Torch draws other bits: 5e-6 apart at most.
    if (at::globalContext().hasMKL() || __builtin_cpu_supports("avx2")) {
      EXPECT_TRUE(same_bytes(first16, golden_[name + ".first16"])) << name;
      if (!golden_.has(name)) return;
      EXPECT_TRUE(same_bytes(noise, golden_[name])) << name;
    } else {
      EXPECT_TRUE(all_close(first16, golden_[name + ".first16"], 5e-6)) << name;
    }
  }

  int64_t steps_checked_ = 0;
};

// "t2v", "i2vOnCuda": the end of the golden's name.
inline std::string case_name(const ::testing::TestParamInfo<EndToEndCase>& info) {
  const std::string& golden = info.param.golden;
  return golden.substr(golden.rfind('_') + 1) +
         (info.param.device == config::Device::cuda ? "OnCuda" : "");
}

// The first frame before it is rounded to bytes.
inline void check_float_frame(const std::string& name, double tolerance) {
  const Golden golden(name);
  const auto decoder =
      vae::VideoDecoder::from_checkpoint(open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU);
  const at::Tensor pixels = decoder.decode(golden["stage2.video_latent"]);  // [1, 3, F, H, W]
  const at::Tensor first = vae::to_unit_range(pixels)[0].select(1, 0).permute({1, 2, 0});
  const at::Tensor every4 = first.slice(0, 0, first.size(0), 4).slice(1, 0, first.size(1), 4);
  EXPECT_TRUE(all_close(every4, golden["frames_f32.0_every4px"], tolerance));
}

// The encoded image at the sizes of both stages.
inline void check_image_latents(PieceRunner& runner, const Golden& golden, double tolerance) {
  const auto items =
      pipeline::encode_images(runner.session(), {&runner.plan.stage_1, &runner.plan.stage_2});
  ASSERT_EQ(items.size(), 2U);
  for (size_t stage = 0; stage < 2; ++stage) {
    ASSERT_EQ(items[stage].size(), 1U);
    const auto& item = std::get<diffusion::ReplaceFrame>(items[stage][0]);
    EXPECT_TRUE(
        all_close(item.latent, golden[fmt::format("image.stage{}.latent", stage + 1)], tolerance))
        << stage;
  }
}

}  // namespace flotilla::test
