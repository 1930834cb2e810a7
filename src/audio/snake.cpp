#include "audio/snake.h"

#include <ATen/ATen.h>

#include "audio/fir_bank.h"
#include "base/error.h"
#include "ops/snake.h"

namespace flotilla::audio {
namespace {

constexpr int64_t kRatio = 2;
constexpr int64_t kTaps = 12;
// Tap that falls onto the sample itself: an even filter leans to the left when it lowers the rate
// and, mirrored by the transposed convolution, the same way when it raises it.
constexpr int64_t kCenter = kTaps / 2 - 1;
constexpr double kBetaEps = 1e-9;

// The decimating filter sees the signal go on with its first and its last sample. In phases these
// are the first of phase 0 and the last of phase 1, for both phases alike.
void hold_edges(const at::Tensor& y, int64_t reach) {  // [R, 2, reach + L + reach]
  const int64_t length = y.size(2);
  const at::Tensor first = y.select(1, 0).select(1, reach).clone();
  const at::Tensor last = y.select(1, kRatio - 1).select(1, length - reach - 1).clone();
  y.narrow(2, 0, reach).copy_(first.view({-1, 1, 1}).expand({-1, kRatio, reach}));
  y.narrow(2, length - reach, reach).copy_(last.view({-1, 1, 1}).expand({-1, kRatio, reach}));
}

}  // namespace

void AntiAliasedSnake::prepare() {
  alpha = at::exp(log_alpha).view({-1, 1, 1});
  inverse_beta = at::reciprocal(at::exp(log_beta) + kBetaEps).view({-1, 1, 1});
  up_bank = make_interpolation_bank(up_filter, kRatio, kCenter);
  down_bank = make_decimation_bank(down_filter, kRatio, kCenter);
}

AntiAliasedSnake bind_snake(loader::WeightBinder binder, int64_t channels) {
  AntiAliasedSnake snake;
  snake.log_alpha = binder.take("act.alpha", {channels});
  snake.log_beta = binder.take("act.beta", {channels});
  snake.up_filter = binder.take("upsample.filter", {1, 1, kTaps});
  snake.down_filter = binder.take("downsample.lowpass.filter", {1, 1, kTaps});
  return snake;
}

at::Tensor apply_snake(const at::Tensor& x, const AntiAliasedSnake& snake) {
  FLOTILLA_ASSERT(x.dim() == 3 && x.size(1) == snake.alpha.size(0));
  if (ops::has_snake_kernel(x))
    return ops::fused_snake(x, {snake.alpha, snake.inverse_beta, snake.up_bank, snake.down_bank});
  return apply_snake_aten(x, snake);
}

at::Tensor apply_snake_aten(const at::Tensor& x, const AntiAliasedSnake& snake) {
  const int64_t batch = x.size(0), channels = x.size(1), length = x.size(2);
  const int64_t reach = fir_reach(kTaps, kCenter, kRatio);
  // One reach for each filter: the raised signal comes out with room for its own edges.
  const at::Tensor held = at::replication_pad1d(x, {2 * reach, 2 * reach});
  const at::Tensor rows = held.view({batch * channels, 1, length + 4 * reach});
  const at::Tensor y = apply_fir_bank(rows, snake.up_bank);  // [B*C, 2, L + 2 reach]

  const at::Tensor by_channel = y.view({batch, channels, kRatio, length + 2 * reach});
  const at::Tensor sine = (by_channel * snake.alpha).sin_();
  by_channel.addcmul_(sine * snake.inverse_beta, sine);
  hold_edges(y, reach);
  return apply_fir_bank(y, snake.down_bank).view({batch, channels, length});
}

}  // namespace flotilla::audio
