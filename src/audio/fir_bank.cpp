#include "audio/fir_bank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"

namespace flotilla::audio {
namespace {

// out[t] += sum_k taps[k] * x[t + k]. A fixed number of taps in a local array stays in registers,
// so the loop over t becomes vector code that loads and stores each output once.
template <int64_t kTaps>
void accumulate_taps(const float* x, const float* taps_data, float* out, int64_t length) {
  std::array<float, kTaps> taps;
  std::copy_n(taps_data, kTaps, taps.begin());
  for (int64_t t = 0; t < length; ++t) {
    float sum = out[t];
    for (int64_t k = 0; k < kTaps; ++k) sum += taps[k] * x[t + k];
    out[t] = sum;
  }
}

// Runs one row in pieces of eight taps and a remainder of single ones.
void accumulate_row(const float* x, const float* taps, int64_t num_taps, float* out,
                    int64_t length) {
  int64_t k = 0;
  for (; k + 7 <= num_taps; k += 7) accumulate_taps<7>(x + k, taps + k, out, length);
  for (; k < num_taps; ++k) accumulate_taps<1>(x + k, taps + k, out, length);
}

at::Tensor apply_on_cpu(const at::Tensor& x_any, const at::Tensor& bank_any) {
  const at::Tensor x = x_any.contiguous();
  const at::Tensor bank = bank_any.contiguous();
  const int64_t num_in = x.size(1), num_out = bank.size(0), taps = bank.size(2);
  const int64_t length = x.size(2) - taps + 1;
  at::Tensor out = at::zeros({x.size(0), num_out, length}, x.options());
  const float* x_data = x.const_data_ptr<float>();
  const float* bank_data = bank.const_data_ptr<float>();
  float* out_data = out.mutable_data_ptr<float>();
  for (int64_t row = 0; row < x.size(0); ++row) {
    for (int64_t o = 0; o < num_out; ++o) {
      float* out_row = out_data + (row * num_out + o) * length;
      for (int64_t i = 0; i < num_in; ++i) {
        const float* x_row = x_data + (row * num_in + i) * x.size(2);
        accumulate_row(x_row, bank_data + (o * num_in + i) * taps, taps, out_row, length);
      }
    }
  }
  return out;
}

std::vector<float> to_vector(const at::Tensor& filter) {
  const at::Tensor taps = filter.to(at::kCPU, at::kFloat).contiguous();
  const float* data = taps.const_data_ptr<float>();
  return {data, data + taps.numel()};
}

}  // namespace

at::Tensor apply_fir_bank(const at::Tensor& x, const at::Tensor& bank) {
  FLOTILLA_ASSERT(x.dim() == 3 && bank.dim() == 3 && x.size(1) == bank.size(1));
  FLOTILLA_ASSERT(x.size(2) >= bank.size(2));
  const bool plain_cpu =
      x.device().is_cpu() && x.scalar_type() == at::kFloat && bank.scalar_type() == at::kFloat;
  return plain_cpu ? apply_on_cpu(x, bank) : at::conv1d(x, bank);
}

int64_t fir_reach(int64_t taps, int64_t center, int64_t ratio) {
  return std::max((center + ratio - 1) / ratio, (taps - 1 - center) / ratio);
}

at::Tensor make_interpolation_bank(const at::Tensor& filter, int64_t ratio, int64_t center) {
  const std::vector<float> taps = to_vector(filter);
  const auto num_taps = static_cast<int64_t>(taps.size());
  const int64_t reach = fir_reach(num_taps, center, ratio);
  at::Tensor bank = at::zeros({ratio, 1, 2 * reach + 1}, at::kFloat);
  auto weights = bank.accessor<float, 3>();
  for (int64_t phase = 0; phase < ratio; ++phase) {
    for (int64_t d = -reach; d <= reach; ++d) {
      const int64_t tap = phase + center - ratio * d;
      if (tap < 0 || tap >= num_taps) continue;
      weights[phase][0][d + reach] = taps[tap] * static_cast<float>(ratio);
    }
  }
  return bank.to(filter.device());
}

at::Tensor make_decimation_bank(const at::Tensor& filter, int64_t ratio, int64_t center) {
  const std::vector<float> taps = to_vector(filter);
  const auto num_taps = static_cast<int64_t>(taps.size());
  const int64_t reach = fir_reach(num_taps, center, ratio);
  at::Tensor bank = at::zeros({1, ratio, 2 * reach + 1}, at::kFloat);
  auto weights = bank.accessor<float, 3>();
  for (int64_t phase = 0; phase < ratio; ++phase) {
    for (int64_t d = -reach; d <= reach; ++d) {
      const int64_t tap = center + phase + ratio * d;
      if (tap < 0 || tap >= num_taps) continue;
      weights[0][phase][d + reach] = taps[tap];
    }
  }
  return bank.to(filter.device());
}

}  // namespace flotilla::audio
