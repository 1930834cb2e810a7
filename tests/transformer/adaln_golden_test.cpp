// Timestep embedding and every AdaLN module of the 2.3 transformer.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/golden.h"
#include "transformer/transformer.h"

namespace flotilla {
namespace {

constexpr double kTolerance = 1e-5;

class AdalnGoldenTest : public ::testing::Test {
 protected:
  test::Golden golden_{"timestep_adaln"};
  transformer::Transformer model_{test::open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU};
};

// Math libraries differ in the last bit of a frequency; times a timestep of 1000 that is more than
// the suggested bound, so the bound grows with the angle.
TEST_F(AdalnGoldenTest, SinusoidalEmbeddingMatches) {
  constexpr double kUlp = 1.2e-7;
  const at::Tensor timesteps = golden_["timesteps"];
  const at::Tensor actual = transformer::sinusoidal_embedding(timesteps);
  ASSERT_EQ(actual.sizes(), golden_["sinusoidal"].sizes());
  const at::Tensor bound = kTolerance + kUlp * timesteps.unsqueeze(1);
  EXPECT_TRUE((actual - golden_["sinusoidal"]).abs().le(bound).all().item<bool>());
}

TEST_F(AdalnGoldenTest, EveryModuleMatches) {
  const auto& video = model_.weights().video;
  const auto& audio = model_.weights().audio;
  const std::vector<std::pair<std::string, const transformer::AdaLnWeights*>> modules = {
      {"adaln_single", &video.adaln},
      {"audio_adaln_single", &audio.adaln},
      {"prompt_adaln_single", &video.prompt_adaln},
      {"audio_prompt_adaln_single", &audio.prompt_adaln},
      {"av_ca_video_scale_shift_adaln_single", &video.cross_scale_shift},
      {"av_ca_audio_scale_shift_adaln_single", &audio.cross_scale_shift},
      {"av_ca_a2v_gate_adaln_single", &video.cross_gate},
      {"av_ca_v2a_gate_adaln_single", &audio.cross_gate},
  };
  for (const auto& [name, weights] : modules) {
    const auto out = transformer::adaln(*weights, golden_["timesteps"]);
    EXPECT_TRUE(test::all_close(out.rows.flatten(1), golden_[name + ".out"], kTolerance)) << name;
    EXPECT_TRUE(test::all_close(out.embedded, golden_[name + ".embedded"], kTolerance)) << name;
  }
}

}  // namespace
}  // namespace flotilla
