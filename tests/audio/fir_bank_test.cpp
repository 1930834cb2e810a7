// The polyphase filters against the plain convolutions that they stand for.
#include "audio/fir_bank.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/compare.h"

namespace flotilla::audio {
namespace {

using test::all_close;

constexpr double kAtol = 1e-5;

TEST(FirBankTest, EqualsConvolution) {
  at::manual_seed(1);
  for (const int64_t taps : {1, 6, 7, 8, 15, 23}) {
    const at::Tensor x = at::randn({3, 2, 64});
    const at::Tensor bank = at::randn({4, 2, taps});
    EXPECT_TRUE(all_close(apply_fir_bank(x, bank), at::conv1d(x, bank), kAtol)) << taps << " taps";
  }
}

TEST(FirBankTest, ReadsStridedRows) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({64, 2, 3}).transpose(0, 2);
  const at::Tensor bank = at::randn({7, 2, 2}).transpose(0, 2);
  EXPECT_TRUE(all_close(apply_fir_bank(x, bank), at::conv1d(x, bank), kAtol));
}

TEST(FirBankTest, TakesOtherDtypes) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({3, 1, 20}, at::kDouble), bank = at::randn({2, 1, 7}, at::kDouble);
  EXPECT_TRUE(all_close(apply_fir_bank(x, bank), at::conv1d(x, bank), kAtol));
}

TEST(FirBankTest, RefusesRowsShorterThanTheFilter) {
  EXPECT_THROW(apply_fir_bank(at::zeros({1, 1, 6}), at::zeros({1, 1, 7})), Error);
}

// Phases [R, ratio, L] as one row of samples [R, 1, ratio * L].
at::Tensor interleave(const at::Tensor& phases) {
  return phases.transpose(1, 2).reshape({phases.size(0), 1, phases.size(1) * phases.size(2)});
}

TEST(FirBankTest, InterpolationEqualsTransposedConvolution) {
  at::manual_seed(4);
  for (const auto& [taps, ratio, center] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{12, 2, 5}, {43, 3, 21}, {9, 4, 2}}) {
    const at::Tensor filter = at::randn({taps}), x = at::randn({2, 1, 30});
    const int64_t reach = fir_reach(taps, center, ratio);
    const at::Tensor ours =
        interleave(apply_fir_bank(x, make_interpolation_bank(filter, ratio, center)));
    // Sample ratio * n + p of ours is output `center` later, counted from low-rate sample `reach`
    // on.
    const at::Tensor theirs = at::conv_transpose1d(x, filter.view({1, 1, taps}) * ratio, {}, ratio);
    const at::Tensor expected = theirs.narrow(2, ratio * reach + center, ours.size(2));
    EXPECT_TRUE(all_close(ours, expected, kAtol)) << taps << " taps, ratio " << ratio;
  }
}

TEST(FirBankTest, DecimationEqualsStridedConvolution) {
  at::manual_seed(5);
  for (const auto& [taps, ratio, center] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{12, 2, 5}, {9, 3, 4}}) {
    const at::Tensor filter = at::randn({taps}), phases = at::randn({2, ratio, 30});
    const int64_t reach = fir_reach(taps, center, ratio);
    const at::Tensor ours = apply_fir_bank(phases, make_decimation_bank(filter, ratio, center));
    // Output n of ours has tap `center` on high-rate sample ratio * (n + reach).
    const at::Tensor samples = interleave(phases);
    const at::Tensor theirs =
        at::conv1d(samples.slice(2, ratio * reach - center), filter.view({1, 1, taps}), {}, ratio);
    EXPECT_TRUE(all_close(ours, theirs.narrow(2, 0, ours.size(2)), kAtol)) << taps << " taps";
  }
}

}  // namespace
}  // namespace flotilla::audio
