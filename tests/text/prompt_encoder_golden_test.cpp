// Features, connectors and contexts of both model generations against the reference.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/golden.h"
#include "text/prompt_encoder.h"

namespace flotilla::text {
namespace {

constexpr double kAtol = 5e-5;

// The golden file and the checkpoint of one model generation.
struct Generation {
  const char* golden;
  const char* checkpoint;
  FeatureVersion version;
};

class PromptEncoderGoldenTest : public ::testing::TestWithParam<Generation> {
 protected:
  PromptEncoderGoldenTest()
      : golden_(GetParam().golden),
        encoder_(test::open_tiny(GetParam().checkpoint), test::tiny_dir() / "gemma", at::kFloat,
                 at::kCPU) {
    encoder_.load();
    for (const auto& prompt : golden_.params().at("prompts")) {
      prompts_.push_back(prompt.get<std::string>());
    }
  }

  test::Golden golden_;
  PromptEncoder encoder_;
  std::vector<std::string> prompts_;
};

TEST_P(PromptEncoderGoldenTest, FeatureVersionFollowsTheConfiguration) {
  EXPECT_EQ(encoder_.contexts().feature_config().version, GetParam().version);
}

TEST_P(PromptEncoderGoldenTest, FeaturesMatchTheReference) {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const TokenizedPrompt tokens = encoder_.tokenizer().encode(prompts_[i]);
    const TextFeatures features =
        encoder_.contexts().features(encoder_.gemma().forward(tokens.ids, tokens.mask));
    const at::Tensor video = golden_[fmt::format("prompt{}.features.video", i)];
    const at::Tensor audio = golden_[fmt::format("prompt{}.features.audio", i)];
    EXPECT_TRUE(test::all_close(features.video[0].narrow(0, 0, video.size(0)), video, kAtol)) << i;
    EXPECT_TRUE(test::all_close(features.audio[0].narrow(0, 0, audio.size(0)), audio, kAtol)) << i;
  }
}

TEST_P(PromptEncoderGoldenTest, ContextsMatchTheReference) {
  const at::Tensor rows = golden_["rows"];
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const PromptEmbedding result = encoder_.encode(prompts_[i]);
    const std::string prompt = fmt::format("prompt{}.", i);
    // The reference's own run of its whole block stays this close to the stored rows.
    const double slack = golden_["check.same_as_block"][static_cast<int64_t>(i)].item<double>();
    EXPECT_TRUE(test::all_close(result.video_context[0].index_select(0, rows),
                                golden_[prompt + "video_context"], kAtol + slack))
        << prompt;
    EXPECT_TRUE(test::all_close(result.audio_context[0].index_select(0, rows),
                                golden_[prompt + "audio_context"], kAtol + slack))
        << prompt;
    // Every row counts for the diffusion model, padding included.
    EXPECT_EQ(result.video_context.size(1), golden_[prompt + "mask_sum"].item<int64_t>());
    EXPECT_EQ(result.audio_context.size(1), result.video_context.size(1));
    const at::Tensor mean_std =
        at::stack({result.video_context.mean(), result.video_context.std()});
    EXPECT_TRUE(test::all_close(mean_std, golden_[prompt + "video_context.mean_std"], kAtol));
  }
}

TEST_P(PromptEncoderGoldenTest, ConnectorsAloneMatchTheReference) {
  for (const auto& [kind, name] :
       {std::pair{ConnectorKind::video, std::string("connector.video.")},
        std::pair{ConnectorKind::audio, std::string("connector.audio.")}}) {
    const at::Tensor x = golden_[name + "x"];
    const at::Tensor mask = at::arange(x.size(1)).lt(golden_[name + "valid"]).unsqueeze(0);
    EXPECT_TRUE(test::all_close(encoder_.contexts().connect(kind, x, mask, x.size(1)),
                                golden_[name + "y"], kAtol))
        << name;
  }
}

TEST_P(PromptEncoderGoldenTest, LeftAndRightPaddedFeaturesGiveTheSameContext) {
  const at::Tensor x = golden_["connector.video.x"];
  const int64_t rows = x.size(1);
  const auto valid = golden_["connector.video.valid"].item<int64_t>();
  const at::Tensor left = at::roll(x, rows - valid, 1);
  const at::Tensor left_mask = at::arange(rows).ge(rows - valid).unsqueeze(0);
  EXPECT_TRUE(
      test::all_close(encoder_.contexts().connect(ConnectorKind::video, left, left_mask, rows),
                      golden_["connector.video.y"], kAtol));
}

TEST_P(PromptEncoderGoldenTest, SamePromptGivesTheSameBytes) {
  const PromptEmbedding first = encoder_.encode(prompts_[0]);
  const PromptEmbedding again = encoder_.encode("  " + prompts_[0] + "\n");
  EXPECT_TRUE(test::same_bytes(first.video_context, again.video_context));
  EXPECT_TRUE(test::same_bytes(first.audio_context, again.audio_context));
}

INSTANTIATE_TEST_SUITE_P(Generations, PromptEncoderGoldenTest,
                         ::testing::Values(Generation{"prompt_encoder_ltx20",
                                                      "ltx20-dev.safetensors", FeatureVersion::v1},
                                           Generation{"prompt_encoder_ltx23",
                                                      "ltx23-dev.safetensors", FeatureVersion::v2}),
                         [](const auto& param) {
                           return std::string(param.param.golden).substr(15);
                         });

}  // namespace
}  // namespace flotilla::text
