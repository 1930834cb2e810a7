// The parts of a pipeline, wrapped for all ranks, against the same parts on one device: velocities,
// contexts, frames; what carries over; and what is refused.
#include "parallel/wrap.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "diffusion/positions.h"
#include "parallel/tiled_velocity_model.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/mpi_main.h"

namespace flotilla::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// DESIGN: another world is equal up to the order of reductions.
constexpr double kRelative = 1e-4;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.message();
  }
  return "nothing was refused";
}

bool relatively_close(const at::Tensor& actual, const at::Tensor& expected) {
  const double bound = kRelative * expected.abs().max().item<double>();
  return test::all_close(actual, expected, bound, 0.0);
}

std::shared_ptr<const loader::Checkpoint> checkpoint() {
  return test::open_tiny("ltx23-dev.safetensors");
}
DiffusionModel::Setup model_setup(double strength) {
  return {.checkpoint = checkpoint(),
          .precision = at::kFloat,
          .device = at::kCPU,
          .loras = {{std::make_shared<loader::LoraFile>(
                         test::open_tiny("ltx23-distilled-lora.safetensors")),
                     strength}}};
}

// A clip of 2 x 3 x 6 cells, the same on all ranks.
struct Clip {
  explicit Clip(const transformer::TransformerConfig& config) {
    at::manual_seed(3);
    grid.size.frames = 2;
    grid.size.height = 3;
    grid.size.width = 6;
    positions = {diffusion::video_positions(grid), diffusion::audio_positions({.frames = 5})};
    video = modality(config, config.video, grid.size.num_tokens());
    audio = modality(config, config.audio, 5);
  }

  static transformer::Modality modality(const transformer::TransformerConfig& config,
                                        const transformer::StreamConfig& stream, int64_t tokens) {
    transformer::Modality made;
    made.latent = at::randn({1, tokens, stream.in_channels});
    made.sigma = at::full({1}, 0.6);
    made.timesteps = ops::make_timestep_table(at::full({1, tokens, 1}, 0.6));
    made.context =
        at::randn({1, 6, config.caption_projection ? config.caption_channels : stream.context_dim});
    return made;
  }

  diffusion::VideoGrid grid;
  transformer::TokenPositions positions;
  transformer::Modality video, audio;
};

class WrapTest : public ::testing::Test {
 protected:
  // On one device, without wrappers.
  static at::Tensor alone(const DiffusionModel::Setup& setup) {
    DiffusionModel model(setup);
    model.load();
    const Clip clip(model.transformer().config());
    return model.begin(clip.positions).forward(&clip.video, &clip.audio, {}).video;
  }
  static at::Tensor velocity(DiffusionModel& model) {
    const Clip clip(model.transformer().config());
    const at::Tensor video =
        model.begin(clip.positions).forward(&clip.video, &clip.audio, {}).video.clone();
    model.end();
    return video;
  }
  static TileGrid two_tiles() {
    diffusion::VideoLatentSize size;
    size.frames = 2;
    size.height = 3;
    size.width = 6;
    return make_tile_grid(size, {1, 1, 2}, /*overlap=*/2);
  }
};

TEST_F(WrapTest, SequenceParallelismCarriesLorasAndPrecisionOver) {
  DiffusionModel model = sequence_parallel(DiffusionModel(model_setup(0.8)), test::ranks(),
                                           {.max_tokens = 64, .audio_tokens = 5});
  EXPECT_EQ(model.wrapper(), "sequence parallelism");
  EXPECT_EQ(model.setup().precision.dtype, at::kFloat);
  model.load();
  EXPECT_TRUE(relatively_close(velocity(model), alone(model_setup(0.8))));
  // A second stage, and other LoRAs.
  model.set_loras(model_setup(-0.5).loras);
  EXPECT_TRUE(relatively_close(velocity(model), alone(model_setup(-0.5))));
  EXPECT_FALSE(relatively_close(alone(model_setup(-0.5)), alone(model_setup(0.8))));
}

TEST_F(WrapTest, TilesEqualTheTilesOfOneRank) {
  DiffusionModel model = tiled(DiffusionModel(model_setup(1.0)), test::ranks(), two_tiles());
  model.load();
  const Clip clip(model.transformer().config());
  const TiledVelocityModel expected(model.transformer(), two_tiles(), clip.positions, at::kFloat);
  EXPECT_TRUE(
      relatively_close(velocity(model), expected.forward(&clip.video, &clip.audio, {}).video));
}

TEST_F(WrapTest, AnotherStageSharesTheWeightsOfTheFirst) {
  DiffusionModel first = sequence_parallel(DiffusionModel(model_setup(1.0)), test::ranks(),
                                           {.max_tokens = 64, .audio_tokens = 5});
  EXPECT_THAT(refusal([&] { first.with_same_weights(); }), HasSubstr("not loaded"));
  first.load();
  const int64_t read = first.setup().checkpoint->bytes_read();
  DiffusionModel second = tiled(first.with_same_weights(), test::ranks(), two_tiles());
  second.load();
  EXPECT_EQ(first.setup().checkpoint->bytes_read(), read);
  EXPECT_EQ(&first.transformer(), &second.transformer());
  second.set_loras(model_setup(-0.5).loras);
  EXPECT_TRUE(relatively_close(velocity(first), alone(model_setup(-0.5))));
}

TEST_F(WrapTest, TextReachesAllRanksWithTheBytesOfOne) {
  const TextEncoder::Setup setup{checkpoint(), test::tiny_dir() / "gemma"};
  const std::vector<std::string> prompts = {"a red kite", "the sea"};
  TextEncoder one(setup);
  one.load(2);
  const auto expected = one.encode(prompts);
  for (const auto split : {config::TextParallel::shard, config::TextParallel::replicate}) {
    TextEncoder all = distributed(TextEncoder(setup), test::ranks(), split);
    all.load(2);
    const auto contexts = all.encode(prompts);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_TRUE(test::same_bytes(contexts[i].video, expected[i].video)) << all.wrapper();
      EXPECT_TRUE(test::same_bytes(contexts[i].audio, expected[i].audio)) << all.wrapper();
    }
  }
}

TEST_F(WrapTest, FramesOfTilesAreThoseOfOneRankWithTheSameTiles) {
  const DecoderGrid grid{{1, 1, 2}, {1, 1, 1}};
  ClipDecoder decoder = distributed(ClipDecoder({.checkpoint = checkpoint()}), test::ranks(), grid);
  decoder.load();
  const auto single = vae::VideoDecoder::from_checkpoint(checkpoint(), at::kFloat, at::kCPU);
  at::manual_seed(4);
  const at::Tensor latent = at::randn({1, single.config().latent_channels, 2, 2, 5});
  std::vector<at::Tensor> frames;
  decoder.decode(latent, [&](const at::Tensor& batch) { frames.push_back(batch.clone()); });
  if (!test::ranks().is_driver()) {
    EXPECT_TRUE(frames.empty());
    return;
  }
  const DecodePlan plan =
      plan_decode(plan_decoder_grid(grid, {.frames = 2, .height = 2, .width = 5}, single.scale()),
                  {}, single.scale(), 1);
  std::vector<at::Tensor> expected;
  DistributedDecoder(plan).decode(
      &single, latent, [&](const at::Tensor& batch) { expected.push_back(batch.clone()); });
  EXPECT_TRUE(test::same_bytes(at::cat(frames), at::cat(expected)));
}

TEST_F(WrapTest, ASecondWrapperIsRefused) {
  const auto wrapped = [] {
    return sequence_parallel(DiffusionModel(model_setup(1.0)), test::ranks(), {.max_tokens = 64});
  };
  EXPECT_THAT(refusal([&] { sequence_parallel(wrapped(), test::ranks(), {.max_tokens = 64}); }),
              AllOf(HasSubstr("wrapped already (sequence parallelism)"), HasSubstr("setup()")));
  EXPECT_THAT(refusal([&] { tiled(wrapped(), test::ranks(), two_tiles()); }),
              HasSubstr("cannot be wrapped again (tiles)"));

  const auto text = [] {
    return distributed(TextEncoder({checkpoint(), test::tiny_dir() / "gemma"}), test::ranks(),
                       config::TextParallel::shard);
  };
  EXPECT_THAT(refusal([&] { distributed(text(), test::ranks(), config::TextParallel::replicate); }),
              HasSubstr("the text encoder is wrapped already (shard)"));
  const auto decoder = [] {
    return distributed(ClipDecoder({.checkpoint = checkpoint()}), test::ranks());
  };
  EXPECT_THAT(refusal([&] { distributed(decoder(), test::ranks()); }),
              HasSubstr("the decoder is wrapped already (tiles)"));
}

TEST_F(WrapTest, TheOrderOfWrappingAndLoadingIsHeld) {
  DiffusionModel model(model_setup(1.0));
  EXPECT_THAT(refusal([&] { model.begin({}); }), HasSubstr("not loaded"));
  model.load();
  EXPECT_THAT(refusal([&] { model.load(); }), HasSubstr("loaded already"));
  EXPECT_THAT(refusal([&] { tiled(std::move(model), test::ranks(), two_tiles()); }),
              HasSubstr("before load()"));
  const TextEncoder text({checkpoint(), test::tiny_dir() / "gemma"});
  EXPECT_THAT(refusal([&] { text.encode({"a"}); }), HasSubstr("not loaded"));
  const ClipDecoder decoder({.checkpoint = checkpoint()});
  EXPECT_THAT(refusal([&] { decoder.decode({}, {}); }), HasSubstr("not loaded"));
}

}  // namespace
}  // namespace flotilla::parallel
