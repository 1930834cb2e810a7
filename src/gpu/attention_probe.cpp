#include "gpu/attention_probe.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SDPBackend.h>
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace flotilla::gpu {
namespace {

// Not a multiple of any kernel's tile.
constexpr int64_t kTokens = 300;

std::string name_of(int64_t backend) {
  switch (static_cast<at::SDPBackend>(backend)) {
    case at::SDPBackend::cudnn_attention:
      return "cudnn";
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::efficient_attention:
      return "efficient";
    case at::SDPBackend::math:
      return "math";
    default:
      return fmt::format("number {}", backend);
  }
}

// Rounding of inputs, probabilities and result; sums are float32 in every kernel.
double tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-4 : 3e-2; }

}  // namespace

AttentionProbe probe_attention(at::Device device, at::ScalarType dtype, int64_t heads,
                               int64_t head_dim) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1);
  const auto draw = [&] {
    const at::Tensor tokens =
        at::randn({1, kTokens, heads, head_dim}, generator, at::TensorOptions(at::kFloat));
    return tokens.to(device, dtype).transpose(1, 2);  // [1, H, T, D], as a projection gives it
  };
  const at::Tensor q = draw(), k = draw(), v = draw();
  AttentionProbe probe;
  probe.kernel = name_of(at::_fused_sdp_choice(q, k, v));
  const at::Tensor actual = at::scaled_dot_product_attention(q, k, v).to(at::kFloat);
  const at::Tensor scores = at::matmul(q.to(at::kFloat), k.to(at::kFloat).transpose(2, 3)) /
                            std::sqrt(static_cast<double>(head_dim));
  const at::Tensor expected = at::matmul(at::softmax(scores, -1), v.to(at::kFloat));
  probe.difference = (actual - expected).abs().max().item<double>();
  if (!(probe.difference <= tolerance(dtype))) {
    fail(ErrorKind::machine,
         fmt::format("attention kernel {} differs by {:.2g} from the plain computation on {}, "
                     "where rounding explains {:.2g}; choose another one (attention: flash, "
                     "cudnn or math)",
                     probe.kernel, probe.difference, device.str(), tolerance(dtype)));
  }
  return probe;
}

}  // namespace flotilla::gpu
