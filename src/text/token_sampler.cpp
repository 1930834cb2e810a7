#include "text/token_sampler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace flotilla::text {

int64_t TokenSampler::pick(const at::Tensor& scores) {
  if (at::isnan(scores).any().item<bool>()) {
    fail(ErrorKind::non_finite, "the text model gives scores that are not numbers");
  }
  const at::Tensor contiguous = scores.contiguous();
  const float* score = contiguous.const_data_ptr<float>();
  std::vector<int64_t> ids(static_cast<size_t>(scores.size(0)));
  std::iota(ids.begin(), ids.end(), 0);
  const auto is_better = [&](int64_t a, int64_t b) {
    return score[a] > score[b] || (score[a] == score[b] && a < b);
  };
  if (sampling_.temperature == 0.0) return *std::min_element(ids.begin(), ids.end(), is_better);

  const auto top_k = static_cast<size_t>(sampling_.top_k);
  const size_t num_kept = top_k == 0 ? ids.size() : std::min(top_k, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(num_kept), ids.end(),
                    is_better);
  ids.resize(num_kept);

  std::vector<double> weights;  // probabilities but for a factor, falling
  for (const int64_t id : ids) {
    weights.push_back(
        std::exp((static_cast<double>(score[id]) - score[ids[0]]) / sampling_.temperature));
  }
  const double goal = sampling_.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t num_likely = 0;
  double sum = 0.0;
  while (num_likely < weights.size() && (num_likely == 0 || sum < goal)) {
    sum += weights[num_likely++];
  }

  double left = draw() * sum;
  size_t chosen = 0;
  while (chosen + 1 < num_likely && left >= weights[chosen]) left -= weights[chosen++];
  return ids[chosen];
}

}  // namespace flotilla::text
