// Comparers that tell the whole case on failure: shapes, largest error, where it is.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace flotilla::test {

// |actual - expected| <= atol + rtol * |expected| everywhere; same shape; NaN equals NaN only.
// The default rtol is the one that the goldens suggest beside every atol.
::testing::AssertionResult all_close(const at::Tensor& actual, const at::Tensor& expected,
                                     double atol, double rtol = 1e-5);
// Same dtype, shape and bytes.
::testing::AssertionResult same_bytes(const at::Tensor& actual, const at::Tensor& expected);
// uint8 frames: at most one step of difference on at least `share` of the values, the bound that a
// rounding on the border allows.
::testing::AssertionResult frames_close(const at::Tensor& actual, const at::Tensor& expected,
                                        double share = 0.999);

}  // namespace flotilla::test
