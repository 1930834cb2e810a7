// The latent upsamplers x2 and x1.5 against the LTX-2 Python reference, commit 400fd31.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/compare.h"
#include "support/golden.h"
#include "upsampler/latent_upsampler.h"

namespace flotilla::upsampler {
namespace {

using test::all_close;

constexpr double kTolerance = 2e-5;

// The statistics of the video VAE in `ltx23-dev`, without the room that owns them.
at::Tensor statistic(const std::string& name) {
  return test::open_tiny("ltx23-dev.safetensors")->read("vae.per_channel_statistics." + name);
}

class LatentUpsamplerGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  LatentUpsampler upsampler() const {
    const std::string file = std::string("ltx23-spatial-upscaler-") + GetParam() + ".safetensors";
    return LatentUpsampler::from_checkpoint(test::open_tiny(file), at::kFloat, at::kCPU);
  }
  std::string name(const char* tensor) const { return std::string(GetParam()) + "." + tensor; }

  const test::Golden golden_{"upsampler"};
};

TEST_P(LatentUpsamplerGoldenTest, ModelAgrees) {
  const LatentUpsampler model = upsampler();
  const at::Tensor latent = golden_["latent"];
  const at::Tensor big = model.forward(latent);
  EXPECT_EQ(big.size(3), model.config().upsampled(latent.size(3)));
  EXPECT_EQ(big.size(4), model.config().upsampled(latent.size(4)));
  EXPECT_TRUE(all_close(big, golden_[name("model")], kTolerance));
}

TEST_P(LatentUpsamplerGoldenTest, NormalizedLatentsAgree) {
  const at::Tensor big = upsample_video(upsampler(), golden_["latent"], statistic("mean-of-means"),
                                        statistic("std-of-means"));
  EXPECT_TRUE(all_close(big, golden_[name("upsample_video")], kTolerance));
}

INSTANTIATE_TEST_SUITE_P(Scales, LatentUpsamplerGoldenTest, testing::Values("x2", "x1.5"),
                         [](const auto& scale) {
                           return std::string(scale.param) == "x2" ? "Double" : "OneAndAHalf";
                         });

}  // namespace
}  // namespace flotilla::upsampler
