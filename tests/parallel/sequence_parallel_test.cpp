// Sequence parallelism against the same model on one rank: any token count, guidance batches,
// masks, single streams, both RoPE layouts; what is refused; equal bytes in fixed row blocks.
#include "parallel/sequence_parallel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/agreement.h"
#include "ops/linear.h"
#include "parallel/sliced_model.h"
#include "support/compare.h"
#include "support/mpi_main.h"

namespace flotilla::parallel {
namespace {

using test::same_bytes;
using testing::AllOf;
using testing::HasSubstr;
using transformer::LocalVelocityModel;
using transformer::Modality;
using transformer::Perturbations;
using transformer::SamplePerturbation;
using transformer::Transformer;
using transformer::Velocity;

// DESIGN: another world is equal up to the order of reductions.
constexpr double kRelative = 1e-4;

comm::Communicator& world() { return test::ranks().transformer(); }
int64_t world_size() { return world().world_size(); }
// 8, the heads of the tiny models, or what this world divides.
int64_t usable_heads() {
  for (const int64_t heads : {8, 6}) {
    if (heads % world_size() == 0) return heads;
  }
  return world_size();
}

// Inputs of one clip, the same on all ranks.
struct Clip {
  transformer::TokenPositions positions;
  Modality video;
  Modality audio;
  Perturbations perturbations;

  const Modality* video_or_null() const { return video.latent.defined() ? &video : nullptr; }
  const Modality* audio_or_null() const { return audio.latent.defined() ? &audio : nullptr; }
  int64_t samples() const { return any().latent.size(0); }
  at::ScalarType dtype() const { return any().latent.scalar_type(); }
  int64_t text_tokens() const { return any().context.size(1); }

 private:
  const Modality& any() const { return video.latent.defined() ? video : audio; }
};

Modality random_modality(const transformer::StreamConfig& config, int64_t context_channels,
                         int64_t samples, int64_t tokens) {
  Modality modality;
  modality.latent = at::randn({samples, tokens, config.in_channels});
  modality.sigma = at::full({samples}, 0.7);
  // Some tokens are conditioning, nearly clean.
  const at::Tensor mask = at::rand({samples, tokens, 1}).lt(0.2);
  modality.timesteps = ops::make_timestep_table(
      at::where(mask, at::full({}, 0.1), at::full({}, 0.7)).expand({samples, tokens, 1}));
  modality.context = at::randn({samples, 6, context_channels});
  return modality;
}

Clip random_clip(const Transformer& model, int64_t samples, int64_t video_tokens,
                 int64_t audio_tokens) {
  at::manual_seed(video_tokens * 100 + audio_tokens);
  const auto& config = model.config();
  const auto channels = [&](const transformer::StreamConfig& stream) {
    return config.caption_projection ? config.caption_channels : stream.context_dim;
  };
  Clip clip;
  const at::Tensor starts = at::rand({1, 3, video_tokens, 1}) * at::full({1}, 10.0);
  clip.positions.video = at::cat({starts, starts + 1}, -1);
  const at::Tensor times = at::arange(audio_tokens, at::kFloat).view({1, 1, -1, 1}) * 0.04;
  clip.positions.audio = at::cat({times, times + 0.04}, -1);
  clip.video = random_modality(config.video, channels(config.video), samples, video_tokens);
  clip.audio = random_modality(config.audio, channels(config.audio), samples, audio_tokens);
  return clip;
}

SequenceExchange exchange_for(const Transformer& model, const Clip& clip) {
  const Modality* video = clip.video_or_null();
  const Modality* audio = clip.audio_or_null();
  return make_sequence_exchange(
      world(), model.config(),
      {.max_tokens = video != nullptr ? video->latent.size(1) : 1,
       .max_batch = clip.samples(),
       .audio_tokens = audio != nullptr ? audio->latent.size(1) : 0,
       .text_tokens = ops::FixedRowBlocks::active() ? 0 : clip.text_tokens(),
       .dtype = clip.dtype()});
}

testing::AssertionResult relatively_close(const at::Tensor& actual, const at::Tensor& expected,
                                          double relative = kRelative) {
  if (!expected.defined() || !actual.defined()) {
    return actual.defined() == expected.defined() ? testing::AssertionSuccess()
                                                  : testing::AssertionFailure() << "undefined";
  }
  return test::all_close(actual, expected, relative * expected.abs().max().item<double>(), 0.0);
}

bool equal_on_all_ranks(const at::Tensor& tensor) {
  const at::Tensor all = world().all_gather(tensor.contiguous());
  for (int64_t rank = 1; rank < world_size(); ++rank) {
    if (!same_bytes(all[rank], all[0])) return false;
  }
  return true;
}

class SequenceParallelTest : public ::testing::Test {
 protected:
  SequenceParallelTest() : model_(test::sliced_model("ltx23", usable_heads())) {}

  static Velocity on_one_rank(const Transformer& model, const Clip& clip) {
    return LocalVelocityModel(model, clip.positions, clip.dtype())
        .forward(clip.video_or_null(), clip.audio_or_null(), clip.perturbations);
  }
  static Velocity on_all_ranks(const Transformer& model, const Clip& clip) {
    auto exchange = exchange_for(model, clip);
    return SequenceParallelVelocityModel(model, clip.positions, clip.dtype(), world(), exchange)
        .forward(clip.video_or_null(), clip.audio_or_null(), clip.perturbations);
  }
  static void check(const Transformer& model, const Clip& clip, const std::string& what,
                    double relative = kRelative) {
    const Velocity expected = on_one_rank(model, clip);
    const Velocity actual = on_all_ranks(model, clip);
    EXPECT_TRUE(relatively_close(actual.video, expected.video, relative)) << what << ": video";
    EXPECT_TRUE(relatively_close(actual.audio, expected.audio, relative)) << what << ": audio";
    for (const at::Tensor& stream : {actual.video, actual.audio}) {
      if (!stream.defined()) continue;
      EXPECT_TRUE(equal_on_all_ranks(stream)) << what << ": ranks differ";
    }
  }

  std::unique_ptr<Transformer> model_;
};

TEST_F(SequenceParallelTest, AnyTokenCountEqualsOneRank) {
  for (const int64_t tokens : {1, 2, 7, 8, 9, 24, 61}) {
    check(*model_, random_clip(*model_, 1, tokens, 5), std::to_string(tokens) + " tokens");
  }
}

TEST_F(SequenceParallelTest, OneTokenAndOneAudioFrameWork) {
  check(*model_, random_clip(*model_, 1, 1, 1), "one token, one audio frame");
}

TEST_F(SequenceParallelTest, AHeadForEachRankWorks) {
  const auto model = test::sliced_model("ltx23", world_size());
  check(*model, random_clip(*model, 1, 13, 4), "one head a rank");
}

TEST_F(SequenceParallelTest, ModelsWithoutGatesAndBothRopeLayoutsWork) {
  for (const char* rope : {"split", "interleaved"}) {
    const auto model = test::sliced_model("ltx20", usable_heads(), {{"rope_type", rope}});
    check(*model, random_clip(*model, 1, 13, 4), rope);
  }
}

TEST_F(SequenceParallelTest, AGuidedBatchEqualsOneRank) {
  Clip clip = random_clip(*model_, 4, 23, 5);
  clip.perturbations.resize(4);
  clip.perturbations[2].video_self.blocks = {model_->config().num_layers - 1};
  clip.perturbations[3].audio_to_video.all = true;
  clip.perturbations[3].video_to_audio.all = true;
  check(*model_, clip, "conditional, unconditional, perturbed, isolated");
}

TEST_F(SequenceParallelTest, BlocksThatAllSamplesSkipExchangeNothing) {
  Clip clip = random_clip(*model_, 2, 23, 5);
  SamplePerturbation nothing;
  for (auto* kind : {&nothing.video_self, &nothing.audio_self, &nothing.video_to_audio})
    kind->all = true;
  clip.perturbations = {nothing, nothing};
  check(*model_, clip, "no attention over video tokens");
  auto exchange = exchange_for(*model_, clip);
  SequenceParallelVelocityModel(*model_, clip.positions, at::kFloat, world(), exchange)
      .forward(&clip.video, &clip.audio, clip.perturbations);
  EXPECT_EQ(exchange.video->stats().calls, 0);
}

TEST_F(SequenceParallelTest, RanksShareOutTheProjectionsOfTheText) {
  FLOTILLA_NEEDS_RANKS(2);
  const Clip clip = random_clip(*model_, 2, 23, 5);
  auto exchange = exchange_for(*model_, clip);
  const SequenceParallelVelocityModel model(*model_, clip.positions, at::kFloat, world(), exchange);
  model.forward(&clip.video, &clip.audio, {});
  const auto& config = model_->config();
  EXPECT_EQ(exchange.text->stats().calls, config.num_layers);
  // Keys and values of this rank's heads, of both streams, to all others.
  const int64_t row = 2 * (config.video.dim() + config.audio.dim()) / world_size() * 4;
  EXPECT_EQ(exchange.text->stats().bytes,
            config.num_layers * 2 * clip.text_tokens() * row * (world_size() - 1));
}

// Only the cross-modal attention carries video into audio: it must see all video tokens.
TEST_F(SequenceParallelTest, AudioHearsTheWholeVideo) {
  Clip clip = random_clip(*model_, 1, 23, 5);
  SamplePerturbation cross_only;
  cross_only.video_self.all = true;
  cross_only.audio_self.all = true;
  clip.perturbations = {cross_only};
  check(*model_, clip, "cross-modal attention only");
  const at::Tensor before = on_all_ranks(*model_, clip).audio;
  clip.video.latent.select(1, 22) += 1.0;  // the last token, beside the padding
  EXPECT_FALSE(at::equal(on_all_ranks(*model_, clip).audio, before));
}

TEST_F(SequenceParallelTest, MasksOfTheCallerAreAppliedWhole) {
  Clip clip = random_clip(*model_, 2, 23, 5);
  const Velocity unmasked = on_one_rank(*model_, clip);
  const auto random_mask = [](int64_t queries, int64_t keys) {  // a third hidden, the rest weighted
    const at::Tensor weights = at::rand({2, queries, keys});
    return at::where(weights.lt(0.33), at::zeros({}), weights);
  };
  clip.video.attention_mask = random_mask(23, 23);
  check(*model_, clip, "self-attention mask");
  EXPECT_FALSE(relatively_close(on_one_rank(*model_, clip).video, unmasked.video));
  clip.video.attention_mask = at::Tensor();
  clip.audio.video_mask = random_mask(5, 23);
  check(*model_, clip, "video-to-audio mask");
  EXPECT_FALSE(relatively_close(on_one_rank(*model_, clip).audio, unmasked.audio));
}

TEST_F(SequenceParallelTest, OneStreamAloneWorks) {
  Clip clip = random_clip(*model_, 1, 11, 5);
  clip.video.enabled = false;
  check(*model_, clip, "video that is read only");
  clip.video.enabled = true;
  Clip video_only = clip;
  video_only.audio = {};
  video_only.positions.audio = at::Tensor();
  check(*model_, video_only, "video only");
  clip.video = {};
  clip.positions.video = at::Tensor();
  check(*model_, clip, "audio only");
}

TEST_F(SequenceParallelTest, Bfloat16Works) {
  const auto model = test::sliced_model("ltx23", usable_heads(), {}, at::kBFloat16);
  Clip clip = random_clip(*model, 1, 23, 5);
  for (Modality* modality : {&clip.video, &clip.audio}) {
    modality->latent = modality->latent.to(at::kBFloat16);
    modality->context = modality->context.to(at::kBFloat16);
  }
  check(*model, clip, "bfloat16", /*relative=*/0.03);
}

// With rows in fixed blocks nothing depends on the world. Token counts on and beside the borders of
// the blocks and of the widest vector registers.
TEST_F(SequenceParallelTest, FixedRowBlocksGiveTheBytesOfOneRank) {
  const ops::FixedRowBlocks exact;
  const auto check_bytes = [](const Transformer& model, const Clip& clip, const std::string& what) {
    const Velocity expected = on_one_rank(model, clip);
    const Velocity actual = on_all_ranks(model, clip);
    EXPECT_TRUE(same_bytes(actual.video, expected.video)) << what << ": video";
    EXPECT_TRUE(same_bytes(actual.audio, expected.audio)) << what << ": audio";
  };
  for (const int64_t tokens : {1, 7, 27, 64, 130, 300}) {
    check_bytes(*model_, random_clip(*model_, 1, tokens, 5), std::to_string(tokens) + " tokens");
  }
  Clip clip = random_clip(*model_, 2, 67, 5);
  clip.perturbations.resize(2);
  clip.perturbations[1].video_self.blocks = {0};
  clip.video.attention_mask = at::rand({2, 67, 67});
  clip.audio.video_mask = at::rand({2, 5, 67});
  check_bytes(*model_, clip, "masks and perturbations");
  const auto older = test::sliced_model("ltx20", usable_heads());
  check_bytes(*older, random_clip(*older, 1, 67, 5), "2.0");
}

template <typename Body>
void expect_agreed(ErrorKind kind, const testing::Matcher<const std::string&>& message,
                   Body&& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_THAT(error.message(), message);
  }
}

TEST_F(SequenceParallelTest, TooManyTokensAreRefusedOnAllRanks) {
  const Clip clip = random_clip(*model_, 1, 24, 5);
  auto exchange =
      make_sequence_exchange(world(), model_->config(), {.max_tokens = 23, .audio_tokens = 5});
  const SequenceParallelVelocityModel model(*model_, clip.positions, at::kFloat, world(), exchange);
  expect_agreed(ErrorKind::config,
                AllOf(HasSubstr("Total video token count (24) exceeds attention_manager max_tokens "
                                "(23). Use a smaller resolution or fewer frames."),
                      HasSubstr("sp.max_tokens")),
                [&] { model.forward(&clip.video, &clip.audio, {}); });
}

TEST_F(SequenceParallelTest, HeadsThatDoNotDivideAreRefusedWithTheRanksThatWork) {
  FLOTILLA_NEEDS_RANKS(2);
  transformer::TransformerConfig config = model_->config();
  config.video.heads = config.audio.heads = 8 * world_size() + 1;
  const std::string message = fmt::format("heads ({}) must be divisible by world_size ({}); use 1",
                                          8 * world_size() + 1, world_size());
  const auto make = [&] { make_sequence_exchange(world(), config, {.max_tokens = 8}); };
  expect_agreed(ErrorKind::config, HasSubstr(message), make);
  config.video.heads = world_size();  // the cross-modal attention has audio heads
  expect_agreed(ErrorKind::config, HasSubstr(message), make);
}

TEST_F(SequenceParallelTest, RanksWithUnlikeWorkFailTogether) {
  FLOTILLA_NEEDS_RANKS(2);
  const Clip clip = random_clip(*model_, 1, 24, 5);
  auto exchange = exchange_for(*model_, clip);
  const SequenceParallelVelocityModel model(*model_, clip.positions, at::kFloat, world(), exchange);
  Perturbations perturbations(1);
  if (world().rank() == 1) perturbations[0].video_self.blocks = {0};
  expect_agreed(ErrorKind::internal, HasSubstr("the work of a pass"),
                [&] { model.forward(&clip.video, &clip.audio, perturbations); });
  // Nothing was exchanged, so the ranks can go on.
  EXPECT_NO_THROW(model.forward(&clip.video, &clip.audio, {}));
}

}  // namespace
}  // namespace flotilla::parallel
