// What a pass of the transformer costs at least: multiplications of its matrix products and
// attentions, by formula from the configuration; benchmarks hold measured times against it.
#pragma once

#include "transformer/config.h"

namespace flotilla::app {

struct PassSizes {
  int64_t samples = 1;
  int64_t video_tokens = 0;  // of the clip
  int64_t own_tokens = 0;    // of this rank
  int64_t audio_tokens = 0;
  int64_t text_tokens = 0;
  int64_t ranks = 1;  // over which heads are spread
};

struct PassCost {
  double gemm_flop = 0;  // 2 per multiplication and addition
  double attention_flop = 0;
};

PassCost cost_of_pass(const transformer::TransformerConfig& config, const PassSizes& sizes);

}  // namespace flotilla::app
