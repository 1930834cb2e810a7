// Choice of the next token from its scores: greedy, or drawn by temperature, top-k and top-p. The
// random numbers are its own, so the same seed gives the same choices whatever else is drawn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

namespace flotilla::text {

struct Sampling {
  double temperature = 0.0;  // scores are divided by it; 0: the best token, nothing is drawn
  int64_t top_k = 0;         // so many best tokens are kept; 0: all
  double top_p = 1.0;        // then the best ones whose probabilities reach this sum
};

class TokenSampler {
 public:
  TokenSampler(const Sampling& sampling, uint64_t seed) : sampling_(sampling), random_(seed) {}

  // scores: float [num_tokens] on the CPU. Of equal scores the lower id counts as the better one.
  // Errors (ErrorKind::non_finite): a score is NaN.
  int64_t pick(const at::Tensor& scores);

 private:
  // In [0, 1), 53 random bits: the standard's distributions differ between libraries.
  double draw() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  Sampling sampling_;
  std::mt19937_64 random_;
};

}  // namespace flotilla::text
