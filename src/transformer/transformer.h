// The audio-video diffusion transformer (DiT): velocities of video and audio latents from noisy
// latents, timesteps, positions and text. Single-device mathematics; what reads all video tokens
// goes through VideoTokenAttention (block.h). Next: prepare.cpp, block.cpp.
#pragma once

#include <memory>
#include <span>

#include "loader/lora.h"
#include "transformer/block.h"
#include "transformer/block_feed.h"
#include "transformer/block_graphs.h"
#include "transformer/prepare.h"
#include "transformer/weights.h"

namespace flotilla::transformer {

struct Velocity {
  at::Tensor video;  // [B, Tv, out_channels]; undefined when there is no video
  at::Tensor audio;
};

class Transformer {
 public:
  // Reads the configuration, audits the names, shapes and types of the file, then (unless `device`
  // is at::kMeta) loads the weights. Collective if `load` is. Errors (ErrorKind::input): see
  // TransformerConfig, FileStorage::check(), WeightBinder, WeightArena::load(). `home`: of the
  // weights of blocks; nothing but the device where several ranks share the model.
  Transformer(std::shared_ptr<const loader::Checkpoint> checkpoint, loader::StoragePolicy policy,
              at::Device device, const loader::LoadArena& load = loader::load_alone,
              WeightHome home = WeightHome::device);
  // With a configuration of the caller's; for tests and for files without metadata.
  Transformer(std::shared_ptr<const loader::Checkpoint> checkpoint, TransformerConfig config,
              loader::StoragePolicy policy, at::Device device,
              const loader::LoadArena& load = loader::load_alone,
              WeightHome home = WeightHome::device);

  const TransformerConfig& config() const { return config_; }
  const TransformerWeights& weights() const { return weights_; }
  int64_t weight_bytes() const { return arena_->bytes(); }
  // What of them takes memory, and where.
  HeldWeights held() const;
  // The weights, for those who fuse LoRAs into them (loader/fused_share.h): not while a forward
  // runs, and refresh() before the next one. Of weights that stay in their file a table alone.
  const std::shared_ptr<loader::WeightArena>& arena() const { return arena_; }
  void refresh();
  // Checks LoRAs against this model, also on at::kMeta. Errors (ErrorKind::input): see LoraSet.
  loader::LoraSet lora_set(std::span<const loader::LoraWithStrength> loras) const;

  // One pass. Either modality may be null. `rope` comes from make_rope_tables with the positions of
  // these tokens. With `graphs`, of this model and one place that calls it, blocks run captured;
  // then `attention` must be as long-lived. Asynchronous on the current stream; collective if
  // `attention` is.
  Velocity forward(const Modality* video, const Modality* audio, const RopeTables& rope,
                   const Perturbations& perturbations = {},
                   const VideoTokenAttention& attention = LocalVideoTokenAttention(),
                   BlockGraphs* graphs = nullptr) const;

 private:
  TransformerConfig config_;
  std::shared_ptr<loader::WeightArena> arena_;
  TransformerWeights weights_;
  std::unique_ptr<BlockFeed> feed_;  // null: all weights lie on the device
};

// Bytes of all weights; from headers alone.
int64_t weight_bytes(std::shared_ptr<const loader::Checkpoint> checkpoint,
                     loader::StoragePolicy policy);
// What they take of memory.
HeldWeights held_weights(std::shared_ptr<const loader::Checkpoint> checkpoint,
                         loader::StoragePolicy policy, WeightHome home, bool on_gpu);

}  // namespace flotilla::transformer
