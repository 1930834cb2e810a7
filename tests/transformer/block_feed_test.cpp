// Weights that come to the device block by block, against weights that lie there: equal numbers,
// less memory, also after LoRAs, errors and files that turn out to be damaged.
#include "transformer/block_feed.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "base/error.h"
#include "support/compare.h"
#include "support/device.h"
#include "support/golden.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"
#include "transformer/velocity_model.h"

namespace flotilla {
namespace {

using loader::StoragePolicy;
using ::testing::HasSubstr;
using transformer::Modality;
using transformer::Transformer;
using transformer::Velocity;
using transformer::WeightHome;

constexpr int64_t kVideoTokens = 21;
constexpr int64_t kAudioTokens = 5;

// Fails in its second call for video: in the second block.
class FailingAttention final : public transformer::VideoTokenAttention {
 public:
  at::Tensor self_attention(const ops::AttentionCall& call) const override {
    if (++calls_ == 2) fail(ErrorKind::internal, "on purpose");
    return ops::attend(call);
  }
  at::Tensor video_to_audio(const ops::AttentionCall& call) const override {
    return ops::attend(call);
  }

 private:
  mutable int calls_ = 0;
};

class BlockFeedTest : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA) FLOTILLA_REQUIRE_GPU();
    use(at::kFloat);
  }
  static at::Device device() {
    return GetParam() == at::kCPU ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
  }

  // The demo model, which has four blocks.
  static std::shared_ptr<const loader::Checkpoint> checkpoint() {
    return loader::Checkpoint::open(test::source_dir() / "models/demo/ltx-demo-dev.safetensors");
  }
  static Transformer load(StoragePolicy policy, WeightHome home) {
    return Transformer(checkpoint(), policy, device(), loader::load_alone, home);
  }

  void use(StoragePolicy policy) {
    const transformer::TransformerConfig config =
        transformer::TransformerConfig::from_checkpoint(*checkpoint());
    const auto options = at::TensorOptions(device()).dtype(policy.dtype);
    rope_ = transformer::make_rope_tables(config, spans({1, 3, kVideoTokens}),
                                          spans({1, 1, kAudioTokens}), policy.dtype);
    video_ = modality(kVideoTokens, config.video, options);
    audio_ = modality(kAudioTokens, config.audio, options);
  }
  static at::Tensor spans(const std::vector<int64_t>& sizes) {
    const at::Tensor begin = at::rand(sizes, at::TensorOptions(device())) * 10;
    return at::stack({begin, begin + 0.5}, -1);
  }
  static Modality modality(int64_t tokens, const transformer::StreamConfig& config,
                           const at::TensorOptions& options) {
    Modality made;
    made.latent = at::randn({1, tokens, config.in_channels}, options);
    made.sigma = at::full({1}, 0.7, options.dtype(at::kFloat));
    made.timesteps.values = made.sigma;
    made.context = at::randn({1, 12, config.context_dim}, options);
    return made;
  }
  Velocity forward(const Transformer& model) const {
    return model.forward(&video_, &audio_, rope_);
  }
  static void expect_equal(const Velocity& actual, const Velocity& expected) {
    for (const auto& [ours, theirs] :
         {std::pair(actual.video, expected.video), std::pair(actual.audio, expected.audio)}) {
      EXPECT_TRUE(GetParam() == at::kCPU ? test::same_bytes(ours, theirs)
                                         : test::all_close(ours, theirs, 1e-5));
    }
  }

  transformer::RopeTables rope_;
  Modality video_, audio_;
};

TEST_P(BlockFeedTest, VelocitiesAreThoseOfWeightsAtHand) {
  for (const StoragePolicy& policy : {StoragePolicy(at::kFloat), StoragePolicy(at::kBFloat16),
                                      StoragePolicy::fp8_cast(), StoragePolicy::fp8_scaled_mm()}) {
    SCOPED_TRACE(policy.name());
    use(policy);
    const Velocity expected = forward(load(policy, WeightHome::device));
    for (const WeightHome home : {WeightHome::host, WeightHome::file}) {
      const Transformer model = load(policy, home);
      for (int pass = 0; pass < 3; ++pass) expect_equal(forward(model), expected);
    }
  }
}

TEST_P(BlockFeedTest, TakesTheMemoryOfTwoBlocksAndWhatIsAroundThem) {
  const bool on_gpu = GetParam() == at::kCUDA;
  for (const StoragePolicy& policy :
       {StoragePolicy(at::kBFloat16), StoragePolicy::fp8_scaled_mm()}) {
    for (const WeightHome home : {WeightHome::device, WeightHome::host, WeightHome::file}) {
      const auto foretold = transformer::held_weights(checkpoint(), policy, home, on_gpu);
      EXPECT_EQ(load(policy, home).held(), foretold);
      const int64_t all = transformer::weight_bytes(checkpoint(), policy);
      if (home == WeightHome::device) {
        EXPECT_EQ(foretold, (transformer::HeldWeights{all, 0}));
        continue;
      }
      EXPECT_LT(foretold.device_bytes, all * 3 / 4) << "two of four blocks";
      if (home == WeightHome::host) {
        EXPECT_EQ(foretold.host_bytes, all);
      } else {
        EXPECT_LT(foretold.host_bytes, all * 3 / 4);
      }
    }
  }
}

// Inside and outside of blocks, as LoRAs do it.
TEST_P(BlockFeedTest, WeightsThatChangeOnTheHostAreTheNextPasses) {
  Transformer model = load(at::kFloat, WeightHome::host);
  const Velocity before = forward(model);
  const Transformer at_hand = load(at::kFloat, WeightHome::device);
  for (const auto* arena : {model.arena().get(), at_hand.arena().get()}) {
    for (const auto& [name, view] : arena->views()) {
      if (name.ends_with("attn1.to_q.weight") || name.ends_with("proj_out.weight"))
        at::Tensor(view).mul_(1.5);
    }
  }
  model.refresh();
  const Velocity after = forward(model);
  expect_equal(after, forward(at_hand));
  EXPECT_FALSE(test::same_bytes(after.video.cpu(), before.video.cpu()));
}

TEST_P(BlockFeedTest, PassAfterOneThatFailedStartsAnew) {
  const Velocity expected = forward(load(at::kFloat, WeightHome::device));
  for (const WeightHome home : {WeightHome::host, WeightHome::file}) {
    const Transformer model = load(at::kFloat, home);
    const FailingAttention attention;
    EXPECT_THROW(model.forward(&video_, &audio_, rope_, {}, attention), Error);
    expect_equal(forward(model), expected);
  }
}

TEST_P(BlockFeedTest, DamagedWeightOfABlockEndsThePassByItsName) {
  const test::TempDir folder;
  const auto original = checkpoint();
  std::map<std::string, at::Tensor> tensors;
  const std::string prefix = "model.diffusion_model.";
  for (const auto& [name, info] : original->tensors())
    if (name.starts_with(prefix)) tensors.emplace(name, original->read(name));
  const std::string damaged = prefix + "transformer_blocks.2.attn1.to_q.bias";
  tensors.at(damaged)[0] = std::numeric_limits<float>::quiet_NaN();
  test::write_safetensors(folder / "damaged.safetensors", tensors,
                          {{"config", original->config().dump()}});
  const Transformer model(loader::Checkpoint::open(folder / "damaged.safetensors"), at::kFloat,
                          device(), loader::load_alone, WeightHome::file);
  for (int pass = 0; pass < 2; ++pass) {
    try {
      forward(model);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      EXPECT_THAT(error.what(), HasSubstr(damaged));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, BlockFeedTest, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& test) { return test.param == at::kCPU ? "Cpu" : "Gpu"; });

}  // namespace
}  // namespace flotilla
