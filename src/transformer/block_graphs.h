// The blocks of a pass as CUDA graphs. A forward of 48 blocks is some thousands of kernel launches;
// where a rank has few tokens, launching them takes longer than running them. One graph stands for
// all blocks of one kind of pass (shapes, types, perturbations, attention); its inputs are copied
// into buffers that stay where they are. Whatever depends on the step alone (AdaLN, RoPE tables,
// patchify) stays outside. A kind runs eagerly the first time, is captured the second time, and
// replayed from then on. Weights are read where they lie, so LoRAs may change in between.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "transformer/block.h"

namespace flotilla::transformer {

class BlockFeed;

struct BlockPass {
  const TransformerConfig& config;
  const std::vector<BlockWeights>& blocks;
  const VideoTokenAttention& attention;
  const Perturbations& perturbations;
  const StreamInputs* video;  // null: absent
  const StreamInputs* audio;
  BlockFeed* feed = nullptr;  // brings the weights of each block; null: they are there
};

// Every block in turn; x_video [B, Tv, video dim] and x_audio [B, Ta,
// audio dim] are replaced.
void run_blocks(const BlockPass& pass, at::Tensor& x_video, at::Tensor& x_audio,
                const Branches& beside_video = Branches());

class BlockGraphs {
 public:
  BlockGraphs();
  ~BlockGraphs();
  BlockGraphs(const BlockGraphs&) = delete;
  BlockGraphs& operator=(const BlockGraphs&) = delete;

  // As run_blocks(), through a graph where tokens and weights are on a GPU and the attention can be
  // captured.
  // Results are valid until the next call. Tensors of `pass` must not be changed in place between
  // calls; weights may be.
  void run(const BlockPass& pass, at::Tensor& x_video, at::Tensor& x_audio);

  int64_t num_captured() const;
  int64_t num_replays() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flotilla::transformer
