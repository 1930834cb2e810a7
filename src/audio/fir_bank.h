// Resampling filters in polyphase form: a signal of n samples at r times the rate is held as r
// phases of n / r samples, so raising and lowering the rate are both plain short convolutions
// without stride, and the zeros that a transposed convolution multiplies never appear.
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::audio {

// Correlates rows with a small bank: out[r, o, t] = sum_{i, k} bank[o, i, k] * x[r, i, t + k].
// x: [R, I, L] float, bank: [O, I, K] float -> [R, O, L-K+1]. R is batch * channels: all rows share
// the bank. Same numbers as at::conv1d up to summation order; on the CPU it is a loop of its own,
// since oneDNN computes one or two channels as if they were sixteen.
at::Tensor apply_fir_bank(const at::Tensor& x, const at::Tensor& bank);

// The bank that raises the rate by `ratio`. `filter` [K] is applied to the signal with ratio - 1
// zeros after each sample, then multiplied by `ratio`; `center` is the tap that falls onto the
// sample itself. Phase p of output n is sample ratio * n + p:
//   out[p, n] = ratio * sum_d filter[p + center - ratio * d] * x[n + d],  |d| <= reach.
// -> [ratio, 1, 2 * reach + 1]; `reach` is fir_reach(K, center, ratio).
at::Tensor make_interpolation_bank(const at::Tensor& filter, int64_t ratio, int64_t center);

// The bank that filters a signal in `ratio` phases and keeps every ratio-th sample:
//   out[n] = sum_{d, p} filter[center + p + ratio * d] * x[p, n + d].
// -> [1, ratio, 2 * reach + 1].
at::Tensor make_decimation_bank(const at::Tensor& filter, int64_t ratio, int64_t center);

// How many low-rate samples to either side a filter of `taps` taps needs.
int64_t fir_reach(int64_t taps, int64_t center, int64_t ratio);

}  // namespace flotilla::audio
