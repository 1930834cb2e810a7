#include "transformer/perturbation.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace flotilla::transformer {

bool BlockSet::contains(int64_t block) const {
  return all || std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

Skip skip_in_block(const Perturbations& perturbations, BlockSet SamplePerturbation::*kind,
                   int64_t block, const at::Tensor& like) {
  std::vector<float> keep;
  int64_t skipped = 0;
  for (const auto& sample : perturbations) {
    const bool skip = (sample.*kind).contains(block);
    keep.push_back(skip ? 0.0F : 1.0F);
    skipped += skip ? 1 : 0;
  }
  if (skipped == 0) return {};
  if (skipped == static_cast<int64_t>(perturbations.size())) return {.all = true};
  return {.keep = at::tensor(keep, at::kFloat).view({-1, 1, 1}).to(like.options())};
}

}  // namespace flotilla::transformer
