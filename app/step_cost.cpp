#include "app/step_cost.h"

namespace flotilla::app {
namespace {

// Multiplied by 2 where it is used: a multiplication and an addition.
double product(int64_t rows, int64_t in, int64_t out) {
  return static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
}

constexpr int64_t kFeedForwardMultiple = 4;

}  // namespace

PassCost cost_of_pass(const transformer::TransformerConfig& config, const PassSizes& sizes) {
  const int64_t video = config.video.dim();
  const int64_t audio = config.audio.dim();
  const auto [samples, whole, own, sound, text, ranks] = sizes;
  double gemm = 0;
  double attention = 0;
  // Self-attention: q, k, v, out; then scores and values of the heads that are here.
  gemm += 4 * product(own, video, video) + 4 * product(sound, audio, audio);
  attention += 2 * product(whole, whole, video / ranks) + 2 * product(sound, sound, audio);
  // Text attention: q and out of the stream; k and v of the text, of which each rank makes its
  // heads.
  gemm +=
      2 * product(own, video, video) + 2 * product(text, config.video.context_dim, video / ranks);
  gemm += 2 * product(sound, audio, audio);
  gemm += 2 * product(text, config.audio.context_dim, audio / ranks);
  attention += 2 * product(own, text, video) + 2 * product(sound, text, audio);
  // Both cross-modal attentions have the width of the sound.
  gemm += 2 * product(own, video, audio) + 2 * product(sound, audio, audio);
  gemm += 2 * product(sound, audio, audio) + 2 * product(own, video, audio);
  attention += 2 * product(own, sound, audio) + 2 * product(sound, whole, audio / ranks);
  gemm += 2 * product(own, video, kFeedForwardMultiple * video);
  gemm += 2 * product(sound, audio, kFeedForwardMultiple * audio);
  const double scale = 2.0 * static_cast<double>(config.num_layers * samples);
  return {scale * gemm, scale * attention};
}

}  // namespace flotilla::app
