// Tiled denoising over several ranks, which take turns in this process: what each gives to the sum,
// and that the result does not depend on their number, nor on what is batched.
#include "parallel/tiled_velocity_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "diffusion/positions.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::parallel {
namespace {

using test::all_close;
using test::same_bytes;
using transformer::LocalVelocityModel;
using transformer::Modality;
using transformer::Perturbations;
using transformer::Velocity;

// Two batchings of the same products differ by float32 rounding only.
constexpr double kRounding = 2e-5;

// A clip with a keyframe and a reference before its start, for B samples with unlike text and
// noise.
class TiledVelocityModelTest : public ::testing::Test {
 protected:
  TiledVelocityModelTest()
      : model_(test::open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU) {
    at::manual_seed(7);
    const diffusion::VideoLatentSize still{.frames = 1, .height = 7, .width = 8};
    positions_.video =
        at::cat({diffusion::video_positions(clip_), diffusion::keyframe_positions(clip_, still, 0),
                 diffusion::keyframe_positions(clip_, still, -1)},
                2);
    positions_.audio = diffusion::audio_positions({.frames = 5});
    make_inputs(1);
  }

  void make_inputs(int64_t samples) {
    const auto& config = model_.config();
    const int64_t tokens = positions_.video.size(2);
    const at::Tensor sigma = at::linspace(0.625, 0.5, samples);
    const at::Tensor timesteps = sigma.view({-1, 1, 1}).repeat({1, tokens, 1});
    timesteps.slice(1, clip_.size.num_tokens()).mul_(0.2);  // conditioning is nearly clean
    video_ = modality(config.video, sigma, timesteps);
    audio_ = modality(config.audio, sigma,
                      sigma.view({-1, 1, 1}).repeat({1, positions_.audio.size(2), 1}));
  }

  static Modality modality(const transformer::StreamConfig& config, const at::Tensor& sigma,
                           const at::Tensor& timesteps) {
    const int64_t samples = timesteps.size(0);
    Modality made;
    made.latent = at::randn({samples, timesteps.size(1), config.in_channels});
    made.sigma = sigma;
    made.timesteps = ops::make_timestep_table(timesteps);
    made.context = at::randn({samples, 6, config.context_dim});
    return made;
  }

  TileGrid grid(TileCounts counts = {1, 2, 2}, int64_t overlap = 5) const {
    return make_tile_grid(clip_.size, counts, overlap);
  }
  Velocity alone(const TileGrid& grid, TilePositions mode = TilePositions::normalized) const {
    return TiledVelocityModel(model_, grid, positions_, at::kFloat, {}, mode)
        .forward(&video_, &audio_, perturbations_);
  }

  // What each of `world_size` ranks gives to the sum.
  std::vector<at::Tensor> contributions(const TileGrid& grid, int64_t world_size) const {
    std::vector<at::Tensor> given;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      run(grid, {rank, world_size, [&](at::Tensor& buffer) { given.push_back(buffer.clone()); }});
    }
    return given;
  }
  Velocity run(const TileGrid& grid, TileOwner owner) const {
    return TiledVelocityModel(model_, grid, positions_, at::kFloat, std::move(owner))
        .forward(&video_, &audio_, perturbations_);
  }
  // The result of rank 0, the sum taken from the last rank to the first.
  Velocity together(const TileGrid& grid, int64_t world_size) const {
    const auto given = contributions(grid, world_size);
    return run(grid, {0, world_size, [&](at::Tensor& buffer) {
                        buffer.zero_();
                        for (auto it = given.rbegin(); it != given.rend(); ++it) buffer.add_(*it);
                      }});
  }

  const diffusion::VideoGrid clip_{.size = {.frames = 2, .height = 7, .width = 8}};
  transformer::Transformer model_;
  transformer::TokenPositions positions_;
  Modality video_;
  Modality audio_;
  Perturbations perturbations_;
};

TEST_F(TiledVelocityModelTest, OneTileIsTheUntiledPass) {
  const Velocity tiled = alone(grid({1, 1, 1}));
  const Velocity whole =
      LocalVelocityModel(model_, positions_, at::kFloat).forward(&video_, &audio_, perturbations_);
  EXPECT_TRUE(all_close(tiled.video, whole.video, kRounding));
  EXPECT_TRUE(all_close(tiled.audio, whole.audio, kRounding));
}

TEST_F(TiledVelocityModelTest, EveryNumberOfTheSumHasOneContributor) {
  for (const int64_t world_size : {2, 3, 4}) {
    at::Tensor contributors;
    for (const at::Tensor& given : contributions(grid(), world_size)) {
      const at::Tensor is_given = given.ne(0).to(at::kLong);
      contributors = contributors.defined() ? contributors + is_given : is_given;
    }
    EXPECT_EQ(contributors.max().item<int64_t>(), 1) << world_size;
    EXPECT_GT(contributors.to(at::kDouble).mean().item<double>(), 0.99) << world_size;
  }
}

TEST_F(TiledVelocityModelTest, ResultDoesNotDependOnTheNumberOfRanks) {
  const Velocity one = alone(grid());
  for (const int64_t world_size : {2, 3, 4, 8}) {
    const Velocity many = together(grid(), world_size);
    EXPECT_TRUE(all_close(many.video, one.video, kRounding)) << world_size;
    EXPECT_TRUE(all_close(many.audio, one.audio, kRounding)) << world_size;
  }
}

TEST_F(TiledVelocityModelTest, IdleRanksChangeNoByte) {
  const Velocity four = together(grid(), 4);
  const Velocity eight = together(grid(), 8);
  EXPECT_TRUE(same_bytes(eight.video, four.video));
  EXPECT_TRUE(same_bytes(eight.audio, four.audio));
}

// Samples and tiles share the batch axis: each sample must meet its own text, noise level,
// perturbation and mask. Conditioning makes the positions of the tiles differ.
TEST_F(TiledVelocityModelTest, SamplesOfABatchAreComputedAsIfAlone) {
  make_inputs(2);
  const int64_t tokens = positions_.video.size(2);
  const at::Tensor mask = at::rand({2, tokens, tokens});
  const at::Tensor context_mask = at::ones({2, 6}, at::kLong);
  context_mask[1][5] = 0;
  const transformer::SamplePerturbation isolated{.audio_to_video = {.all = true},
                                                 .video_to_audio = {.all = true}};
  for (const TilePositions mode : {TilePositions::normalized, TilePositions::absolute}) {
    video_.attention_mask = mask;
    video_.context_mask = context_mask;
    perturbations_ = {{}, isolated};
    const Velocity both = alone(grid(), mode);
    const Modality video = video_, audio = audio_;
    for (int64_t i = 0; i < 2; ++i) {
      const auto only = [i](Modality m) {
        for (at::Tensor* t :
             {&m.latent, &m.sigma, &m.context, &m.context_mask, &m.attention_mask}) {
          if (t->defined()) *t = t->narrow(0, i, 1);
        }
        if (m.timesteps.index.defined())
          m.timesteps.index = m.timesteps.index.narrow(0, i, 1);
        else
          m.timesteps.values = m.timesteps.values.narrow(0, i, 1);
        return m;
      };
      video_ = only(video);
      audio_ = only(audio);
      perturbations_ = {i == 0 ? transformer::SamplePerturbation{} : isolated};
      const Velocity one = alone(grid(), mode);
      EXPECT_TRUE(all_close(both.video.narrow(0, i, 1), one.video, kRounding)) << i;
      EXPECT_TRUE(all_close(both.audio.narrow(0, i, 1), one.audio, kRounding)) << i;
    }
    video_ = video;
    audio_ = audio;
  }
}

TEST_F(TiledVelocityModelTest, MaskReachesTheTiles) {
  const Velocity free = alone(grid());
  const int64_t tokens = positions_.video.size(2);
  video_.attention_mask = at::ones({1, tokens, tokens});
  video_.attention_mask.slice(2, clip_.size.num_tokens()).zero_();  // conditioning is not seen
  const Velocity masked = alone(grid());
  EXPECT_GT((free.video - masked.video).abs().max().item<double>(), 1e-3);
}

TEST_F(TiledVelocityModelTest, OneModalityIsEnough) {
  const TiledVelocityModel model(model_, grid(), positions_, at::kFloat);
  const Velocity video_only = model.forward(&video_, nullptr, {});
  EXPECT_EQ(video_only.video.sizes(), video_.latent.sizes());
  EXPECT_FALSE(video_only.audio.defined());

  const Velocity audio_only = model.forward(nullptr, &audio_, {});
  const Velocity local =
      LocalVelocityModel(model_, positions_, at::kFloat).forward(nullptr, &audio_, {});
  EXPECT_FALSE(audio_only.video.defined());
  EXPECT_TRUE(same_bytes(audio_only.audio, local.audio));
}

TEST_F(TiledVelocityModelTest, FrameTilesWork) {
  const Velocity velocity = alone(grid({2, 1, 2}, 0));
  EXPECT_TRUE(velocity.video.isfinite().all().item<bool>());
  EXPECT_GT(velocity.video.abs().amin({0, 2}).min().item<double>(), 0.0);
}

TEST_F(TiledVelocityModelTest, NonFiniteVelocitiesAreNotHidden) {
  video_.latent[0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(together(grid(), 2).video.isnan().any().item<bool>());
}

TEST_F(TiledVelocityModelTest, HalfPrecisionIsBlendedInFloat32) {
  const transformer::Transformer model(test::open_tiny("ltx23-dev.safetensors"), at::kBFloat16,
                                       at::kCPU);
  const Velocity expected = alone(grid());
  for (Modality* m : {&video_, &audio_}) {
    m->latent = m->latent.to(at::kBFloat16);
    m->context = m->context.to(at::kBFloat16);
  }
  const Velocity half =
      TiledVelocityModel(model, grid(), positions_, at::kBFloat16).forward(&video_, &audio_, {});
  EXPECT_EQ(half.video.scalar_type(), at::kBFloat16);
  EXPECT_EQ(half.audio.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(all_close(half.video.to(at::kFloat), expected.video, 0.15));
}

}  // namespace
}  // namespace flotilla::parallel
