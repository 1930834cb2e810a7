#include "parallel/tiled_velocity_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "ops/token_rows.h"

namespace flotilla::parallel {
namespace {

using transformer::Modality;

// The samples of a batch: all samples of the caller for the first tile, then for the second ...
struct BatchShape {
  std::vector<const TileTokens*> tiles;
  int64_t num_samples;  // of the caller, B

  int64_t num_tiles() const { return static_cast<int64_t>(tiles.size()); }

  // [B or 1, ...] -> [tiles * B, ...], a part of the tensor for each tile.
  template <typename Take>
  at::Tensor stack(const at::Tensor& tensor, Take take) const {
    if (!tensor.defined()) return tensor;
    std::vector<at::Tensor> parts;
    for (const TileTokens* tile : tiles) {
      const at::Tensor part = take(tensor, tile->keep);
      auto sizes = part.sizes().vec();
      sizes[0] = num_samples;
      parts.push_back(part.expand(sizes));
    }
    return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
  }
};

at::Tensor all_of(const at::Tensor& tensor, const at::Tensor&) { return tensor; }

at::Tensor tokens_of(const at::Tensor& tensor, const at::Tensor& keep) {
  return tensor.index_select(1, keep);
}

// [B, T, T], where a T of 1 stands for all tokens.
at::Tensor mask_of(const at::Tensor& mask, const at::Tensor& keep) {
  const at::Tensor rows = mask.size(1) == 1 ? mask : mask.index_select(1, keep);
  return rows.size(2) == 1 ? rows : rows.index_select(2, keep);
}

// [B, Ta, T], where a T of 1 stands for all video tokens.
at::Tensor video_mask_of(const at::Tensor& mask, const at::Tensor& keep) {
  return mask.size(2) == 1 ? mask : mask.index_select(2, keep);
}

// `values` stay those of the whole clip, so a token's modulation does not depend on its tile.
template <typename Take>
ops::TimestepTable stack_timesteps(const ops::TimestepTable& table, const BatchShape& shape,
                                   Take take) {
  if (table.index.defined()) return {table.values, shape.stack(table.index, take)};
  if (table.values.size(0) == 1) return table;
  return {shape.stack(table.values, all_of), {}};
}

Modality stack_video(const Modality& video, const BatchShape& shape) {
  Modality stacked = video;
  stacked.latent = shape.stack(video.latent, tokens_of);
  stacked.sigma = shape.stack(video.sigma, all_of);
  stacked.timesteps = stack_timesteps(video.timesteps, shape, tokens_of);
  stacked.context = shape.stack(video.context, all_of);
  stacked.context_mask = shape.stack(video.context_mask, all_of);
  stacked.attention_mask = shape.stack(video.attention_mask, mask_of);
  stacked.keyframes_mask = shape.stack(video.keyframes_mask, tokens_of);
  return stacked;
}

// Every tile goes with the whole sound, which sees the tile's tokens only.
Modality stack_audio(const Modality& audio, const BatchShape& shape) {
  Modality stacked = audio;
  stacked.latent = shape.stack(audio.latent, all_of);
  stacked.sigma = shape.stack(audio.sigma, all_of);
  stacked.timesteps = stack_timesteps(audio.timesteps, shape, all_of);
  stacked.context = shape.stack(audio.context, all_of);
  stacked.context_mask = shape.stack(audio.context_mask, all_of);
  stacked.attention_mask = shape.stack(audio.attention_mask, all_of);
  stacked.video_mask = shape.stack(audio.video_mask, video_mask_of);
  stacked.keyframes_mask = shape.stack(audio.keyframes_mask, all_of);
  return stacked;
}

transformer::Perturbations repeat(const transformer::Perturbations& samples, int64_t times) {
  transformer::Perturbations repeated;
  for (int64_t i = 0; i < times; ++i)
    repeated.insert(repeated.end(), samples.begin(), samples.end());
  return repeated;
}

// A table with a sample for each tile -> one with B samples for each tile.
ops::RopeTable repeat_samples(ops::RopeTable table, int64_t num_samples) {
  if (num_samples == 1 || table.cos.size(0) == 1) return table;
  table.cos = table.cos.repeat_interleave(num_samples, 0);
  table.sin = table.sin.repeat_interleave(num_samples, 0);
  return table;
}

// Positions of tiles with one number of tokens: [1, 3, K, 2] where they are all equal, as those of
// normalised tiles without conditioning are, else [tiles, 3, K, 2].
at::Tensor stack_positions(const std::vector<TileTokens>& all, const std::vector<size_t>& tiles) {
  const at::Tensor& first = all[tiles.front()].positions;
  std::vector<at::Tensor> parts;
  for (const size_t tile : tiles) parts.push_back(all[tile].positions);
  const bool equal = std::all_of(parts.begin(), parts.end(),
                                 [&](const at::Tensor& other) { return at::equal(first, other); });
  return equal ? first : at::cat(parts, 0);
}

int64_t count_unseen_tokens(const std::vector<TileTokens>& tiles, int64_t num_tokens) {
  at::Tensor seen = at::zeros({num_tokens}, tiles.front().keep.options());
  for (const TileTokens& tile : tiles) seen.index_fill_(0, tile.keep, 1);
  return num_tokens - seen.sum().item<int64_t>();
}

}  // namespace

// What the tiles computed: one buffer with a place for each token of each tile, zero where another
// rank computes.
struct TiledVelocityModel::Results {
  at::Tensor buffer;  // [all elements]
  at::Tensor video;   // [tokens of all tiles, B, C], a view
  at::Tensor audio;   // [tiles, B, Ta, Ca], a view; undefined without audio

  Results(int64_t video_rows, at::IntArrayRef video_sizes, at::IntArrayRef audio_sizes,
          const at::TensorOptions& options) {
    const int64_t num_video = video_rows * c10::multiply_integers(video_sizes);
    const int64_t num_audio = audio_sizes.empty() ? 0 : c10::multiply_integers(audio_sizes);
    buffer = at::zeros({num_video + num_audio}, options);
    auto sizes = video_sizes.vec();
    sizes.insert(sizes.begin(), video_rows);
    video = buffer.narrow(0, 0, num_video).view(sizes);
    if (num_audio > 0) audio = buffer.narrow(0, num_video, num_audio).view(audio_sizes);
  }
};

TiledVelocityModel::TiledVelocityModel(const transformer::Transformer& model, const TileGrid& grid,
                                       const transformer::TokenPositions& positions,
                                       at::ScalarType dtype, TileOwner owner, TilePositions mode,
                                       transformer::BlockGraphs* graphs)
    : model_(model),
      tiles_(assign_tokens(grid, positions.video, mode)),
      num_tokens_(positions.video.size(2)),
      audio_rope_(make_rope_tables(model.config(), {}, positions.audio, dtype)),
      sum_(std::move(owner.sum)),
      graphs_(graphs) {
  FLOTILLA_ASSERT(owner.rank >= 0 && owner.rank < owner.world_size);
  FLOTILLA_ASSERT(owner.world_size == 1 || sum_);
  offsets_.push_back(0);
  for (const TileTokens& tile : tiles_) offsets_.push_back(offsets_.back() + tile.num_tokens());

  std::map<int64_t, std::vector<size_t>> by_length;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    if (static_cast<int64_t>(i) % owner.world_size == owner.rank)
      by_length[tiles_[i].num_tokens()].push_back(i);
  }
  for (auto& [length, tiles] : by_length) {
    auto rope =
        make_rope_tables(model.config(), stack_positions(tiles_, tiles), positions.audio, dtype);
    batches_.push_back({std::move(tiles), std::move(rope)});
  }
  const int64_t unseen = count_unseen_tokens(tiles_, num_tokens_);
  if (unseen > 0 && owner.rank == 0) {
    log::warn("parallel", "{} conditioning tokens lie outside the clip; no tile sees them", unseen);
  }
}

transformer::Velocity TiledVelocityModel::forward(
    const Modality* video, const Modality* audio,
    const transformer::Perturbations& perturbations) const {
  if (video == nullptr) return model_.forward(nullptr, audio, audio_rope_, perturbations);
  FLOTILLA_ASSERT(video->latent.size(1) == num_tokens_);
  const int64_t num_samples = video->latent.size(0);
  std::vector<int64_t> audio_sizes;  // [tiles, B, Ta, Ca]
  if (audio != nullptr) {
    audio_sizes = {static_cast<int64_t>(tiles_.size()), num_samples, audio->latent.size(1),
                   model_.config().audio.out_channels};
  }
  Results results(offsets_.back(), {num_samples, model_.config().video.out_channels}, audio_sizes,
                  video->latent.options());
  for (const Batch& batch : batches_) run_batch(batch, *video, audio, perturbations, results);
  if (sum_) sum_(results.buffer);

  transformer::Velocity velocity;
  velocity.video = blend_video(results);
  if (audio != nullptr)
    velocity.audio = results.audio.to(at::kFloat).mean(0).to(audio->latent.scalar_type());
  return velocity;
}

void TiledVelocityModel::run_batch(const Batch& batch, const Modality& video, const Modality* audio,
                                   const transformer::Perturbations& perturbations,
                                   const Results& results) const {
  BatchShape shape{{}, video.latent.size(0)};
  for (const size_t tile : batch.tiles) shape.tiles.push_back(&tiles_[tile]);
  const Modality tile_video = stack_video(video, shape);
  const Modality tile_audio = audio != nullptr ? stack_audio(*audio, shape) : Modality();
  transformer::RopeTables rope = batch.rope;
  rope.video = repeat_samples(rope.video, shape.num_samples);
  rope.video_cross = repeat_samples(rope.video_cross, shape.num_samples);

  const auto velocity =
      model_.forward(&tile_video, audio != nullptr ? &tile_audio : nullptr, rope,
                     repeat(perturbations, shape.num_tiles()), attention_, graphs_);
  for (int64_t i = 0; i < shape.num_tiles(); ++i) {
    const size_t tile = batch.tiles[static_cast<size_t>(i)];
    const auto own = [&](const at::Tensor& all) {
      return all.narrow(0, i * shape.num_samples, shape.num_samples);  // [B, K, C]
    };
    results.video.narrow(0, offsets_[tile], tiles_[tile].num_tokens())
        .copy_(own(velocity.video).transpose(0, 1));
    if (audio != nullptr) results.audio[static_cast<int64_t>(tile)].copy_(own(velocity.audio));
  }
}

at::Tensor TiledVelocityModel::blend_video(const Results& results) const {
  const int64_t num_samples = results.video.size(1);
  at::Tensor blended = at::zeros({num_tokens_, num_samples, results.video.size(2)},
                                 results.video.options().dtype(at::kFloat));
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const at::Tensor own = results.video.narrow(0, offsets_[i], tiles_[i].num_tokens());
    blended.index_add_(0, tiles_[i].keep, own * tiles_[i].weights.view({-1, 1, 1}));
  }
  return blended.transpose(0, 1).to(results.video.scalar_type()).contiguous();  // [B, T, C]
}

}  // namespace flotilla::parallel
