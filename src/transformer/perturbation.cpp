#include "transformer/perturbation.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace flotilla::transformer {

bool BlockSet::contains(int64_t block) const {
  return all || std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

Skip skip_in_block(const Perturbations& perturbations, BlockSet SamplePerturbation::*kind,
                   int64_t block, const at::Tensor& like) {
  std::vector<bool> keep;
  int64_t skipped = 0;
  for (const auto& sample : perturbations) {
    const bool skip = (sample.*kind).contains(block);
    keep.push_back(!skip);
    skipped += skip ? 1 : 0;
  }
  if (skipped == 0) return {};
  if (skipped == static_cast<int64_t>(perturbations.size())) return {.all = true};
  // Made on the device: copies from the host cannot be captured in a graph.
  at::Tensor weights = at::ones({static_cast<int64_t>(keep.size()), 1, 1}, like.options());
  for (size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) weights.select(0, static_cast<int64_t>(i)).zero_();
  }
  return {.keep = weights};
}

}  // namespace flotilla::transformer
