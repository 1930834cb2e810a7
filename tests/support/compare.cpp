#include "support/compare.h"

#include <fmt/format.h>

#include <cstring>

#include "base/text.h"

namespace flotilla::test {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

std::string index_text(int64_t flat, at::IntArrayRef shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return shape_text(index);
}

AssertionResult same_shape(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined()) return AssertionFailure() << "the tensor is undefined";
  if (actual.sizes() != expected.sizes()) {
    return AssertionFailure() << "shape " << shape_text(actual.sizes().vec()) << ", expected "
                              << shape_text(expected.sizes().vec());
  }
  return AssertionSuccess();
}

}  // namespace

AssertionResult all_close(const at::Tensor& actual, const at::Tensor& expected, double atol,
                          double rtol) {
  if (auto shape = same_shape(actual, expected); !shape) return shape;
  if (actual.numel() == 0) return AssertionSuccess();
  const at::Tensor a = actual.to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor b = expected.to(at::kCPU, at::kDouble).contiguous();
  at::Tensor excess = (a - b).abs() - rtol * b.abs();
  excess = at::where(at::isnan(a).logical_and(at::isnan(b)), at::full_like(excess, -1.0), excess);
  excess = at::where(at::isnan(excess), at::full_like(excess, INFINITY), excess);
  const at::Tensor flat = excess.reshape({-1});
  const int64_t worst = flat.argmax().item<int64_t>();
  const double worst_excess = flat[worst].item<double>();
  if (worst_excess <= atol) return AssertionSuccess();
  const int64_t bad = excess.gt(atol).sum().item<int64_t>();
  return AssertionFailure() << fmt::format(
             "largest error {:.3g} at {}: {:.9g}, expected {:.9g}; {} of {} values of shape {} are "
             "off (atol {}, rtol {})",
             std::abs(a.reshape({-1})[worst].item<double>() -
                      b.reshape({-1})[worst].item<double>()),
             index_text(worst, a.sizes()), a.reshape({-1})[worst].item<double>(),
             b.reshape({-1})[worst].item<double>(), bad, a.numel(), shape_text(a.sizes().vec()),
             atol, rtol);
}

AssertionResult same_bytes(const at::Tensor& actual, const at::Tensor& expected) {
  if (auto shape = same_shape(actual, expected); !shape) return shape;
  if (actual.scalar_type() != expected.scalar_type()) {
    return AssertionFailure() << "dtype " << c10::toString(actual.scalar_type()) << ", expected "
                              << c10::toString(expected.scalar_type());
  }
  const at::Tensor a = actual.cpu().contiguous();
  const at::Tensor b = expected.cpu().contiguous();
  if (std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0) return AssertionSuccess();
  const at::Tensor differ = a.ne(b).reshape({-1});
  return AssertionFailure() << fmt::format(
             "{} of {} values differ, largest difference {:.3g}", differ.sum().item<int64_t>(),
             a.numel(), (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>());
}

AssertionResult frames_close(const at::Tensor& actual, const at::Tensor& expected, double share) {
  if (auto shape = same_shape(actual, expected); !shape) return shape;
  const at::Tensor difference = (actual.to(at::kInt) - expected.to(at::kInt)).abs();
  const double within = difference.le(1).to(at::kDouble).mean().item<double>();
  if (within >= share) return AssertionSuccess();
  return AssertionFailure() << fmt::format(
             "only {:.5f} of the values are within one step (largest {}), expected {}", within,
             difference.max().item<int>(), share);
}

}  // namespace flotilla::test
