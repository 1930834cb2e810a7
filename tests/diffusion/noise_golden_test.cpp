// Random draws and noised latents against the LTX-2 Python reference, commit 400fd31.
#include <ATen/Version.h>
#include <gtest/gtest.h>

#include <string>

#include "diffusion/noise.h"
#include "diffusion/patchify.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::diffusion {
namespace {

constexpr double kAtol = 1e-6;
// The seed of every draw of noiser.safetensors.
constexpr uint64_t kSeed = 42;

// Draws are equal to the bit where the vector code of the reference runs; the scalar code rounds
// logarithm and cosine differently.
::testing::AssertionResult same_draw(const at::Tensor& actual, const at::Tensor& expected) {
  if (at::get_cpu_capability() == "DEFAULT") return test::all_close(actual, expected, 5e-6);
  return test::same_bytes(actual, expected);
}

TEST(NoiseGoldenTest, DrawsOfEachDtype) {
  const test::Golden golden("noiser");
  const std::vector<std::string> names = golden.names("randn.seed");
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const at::Tensor expected = golden[name];
    NoiseGenerator generator(std::stoull(name.substr(std::string("randn.seed").size())));
    EXPECT_TRUE(same_draw(generator.draw(expected.sizes(), expected.scalar_type()), expected))
        << name;
  }
}

TEST(NoiseGoldenTest, NoisedLatents) {
  const test::Golden golden("noiser");
  int num_cases = 0;
  for (const std::string& name : golden.names()) {
    if (!name.ends_with(".in")) continue;
    ++num_cases;
    const std::string key = name.substr(0, name.size() - 3);  // "bf16.scale0.625"
    const double scale = std::stod(key.substr(key.find("scale") + 5));
    const LatentState state{.latent = golden[name],
                            .clean = golden[key + ".clean"],
                            .denoise_mask = golden[key + ".mask"]};
    NoiseGenerator generator(kSeed);
    EXPECT_TRUE(same_draw(generator.draw(state.latent.sizes(), state.latent.scalar_type()),
                          golden[key + ".noise"]))
        << key;
    NoiseGenerator again(kSeed);
    const LatentState noised = add_noise(state, again, scale);
    EXPECT_EQ(noised.latent.scalar_type(), state.latent.scalar_type());
    EXPECT_TRUE(test::all_close(noised.latent, golden[key + ".out"], kAtol)) << key;
  }
  EXPECT_GT(num_cases, 0);
}

// The whole job's noise: stage 1 video and audio at half size, then stage 2, from one generator.
TEST(NoiseGoldenTest, OrderOfDrawsOverAJob) {
  const test::Golden golden("e2e_distilled_t2v");
  NoiseGenerator generator(golden.params().at("seed").get<uint64_t>());
  const VideoPixelSize full{.frames = golden.params().at("frames").get<int64_t>(),
                            .height = golden.params().at("height").get<int64_t>(),
                            .width = golden.params().at("width").get<int64_t>(),
                            .frame_rate = golden.params().at("fps").get<double>()};
  VideoPixelSize half = full;
  half.height /= 2;
  half.width /= 2;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);
  const auto expect_stage = [&](const VideoPixelSize& pixels, const std::string& stage) {
    const VideoGrid grid{.size = video_latent_size(pixels), .frame_rate = pixels.frame_rate};
    AvLatents latents{.video = make_video_state(grid, options),
                      .audio = make_audio_state(audio_latent_size(pixels), options)};
    latents = add_noise(latents, generator, 1.0);
    EXPECT_TRUE(same_draw(latents.video.latent, golden["noise." + stage + ".video"])) << stage;
    EXPECT_TRUE(same_draw(latents.audio.latent, golden["noise." + stage + ".audio"])) << stage;
  };
  expect_stage(half, "stage1");
  expect_stage(full, "stage2");
}

}  // namespace
}  // namespace flotilla::diffusion
