// Which attentions a sample of the batch leaves out: spatio-temporal guidance (STG) skips
// self-attention in some blocks, the isolated-modality pass skips all cross-modal attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace flotilla::transformer {

struct BlockSet {
  bool all = false;
  std::vector<int64_t> blocks;

  bool contains(int64_t block) const;
};

// One sample.
struct SamplePerturbation {
  BlockSet video_self;
  BlockSet audio_self;
  BlockSet audio_to_video;
  BlockSet video_to_audio;
};

// Empty: nothing is skipped. Else one entry a sample.
using Perturbations = std::vector<SamplePerturbation>;

// How one kind of attention of one block is treated over the batch.
struct Skip {
  bool all = false;  // every sample skips it
  at::Tensor keep;   // [B, 1, 1] of 0 and 1 when some do; undefined otherwise
};

// `like` gives dtype and device of the mask.
Skip skip_in_block(const Perturbations& perturbations, BlockSet SamplePerturbation::*kind,
                   int64_t block, const at::Tensor& like);

}  // namespace flotilla::transformer
