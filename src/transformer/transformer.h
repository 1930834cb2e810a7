// The audio-video diffusion transformer (DiT): velocities of video and audio latents from noisy
// latents, timesteps, positions and text. Single-device mathematics; what reads all video tokens
// goes through VideoTokenAttention (block.h). Next: prepare.cpp, block.cpp.
#pragma once

#include <memory>
#include <vector>

#include "loader/lora.h"
#include "transformer/block.h"
#include "transformer/prepare.h"
#include "transformer/weights.h"

namespace flotilla::transformer {

struct Velocity {
  at::Tensor video;  // [B, Tv, out_channels]; undefined when there is no video
  at::Tensor audio;
};

class Transformer {
 public:
  // Reads the configuration, audits the names and shapes of the file, then (unless `device` is
  // at::kMeta) loads the weights with `loras` fused in. The audit covers the LoRAs. Errors
  // (ErrorKind::input): see TransformerConfig, WeightBinder, LoraSet.
  Transformer(std::shared_ptr<const loader::Checkpoint> checkpoint, at::ScalarType dtype,
              at::Device device, const std::vector<loader::LoraWithStrength>& loras = {});
  // With a configuration of the caller's; for tests and for files without metadata.
  Transformer(std::shared_ptr<const loader::Checkpoint> checkpoint, TransformerConfig config,
              at::ScalarType dtype, at::Device device,
              const std::vector<loader::LoraWithStrength>& loras = {});

  const TransformerConfig& config() const { return config_; }
  const TransformerWeights& weights() const { return weights_; }
  int64_t weight_bytes() const { return arena_->bytes(); }
  // Makes the loaded weights the clean ones with exactly these LoRAs fused in, in place. Not while
  // a forward runs. Errors (ErrorKind::input): see fuse_loras(); the clean weights are left.
  void fuse_loras(const std::vector<loader::LoraWithStrength>& loras);
  // One entry a LoRA, in their order.
  const std::vector<loader::LoraCounts>& lora_counts() const { return lora_counts_; }

  // One pass. Either modality may be null. `rope` comes from make_rope_tables with the positions of
  // these tokens. Asynchronous on the current stream; collective if `attention` is.
  Velocity forward(const Modality* video, const Modality* audio, const RopeTables& rope,
                   const Perturbations& perturbations = {},
                   const VideoTokenAttention& attention = LocalVideoTokenAttention()) const;

 private:
  TransformerConfig config_;
  std::shared_ptr<loader::WeightArena> arena_;
  TransformerWeights weights_;
  std::vector<loader::LoraCounts> lora_counts_;
};

}  // namespace flotilla::transformer
