#include "gpu/attention_probe.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "gpu/device.h"
#include "support/device.h"

namespace flotilla {
namespace {

TEST(AttentionProbeTest, NamesTheKernelThatWasChosen) {
  gpu::choose_attention(gpu::AttentionBackend::math, at::kCPU);
  const auto math = gpu::probe_attention(at::kCPU, at::kFloat, 2, 32);
  EXPECT_EQ(math.kernel, "math");
  EXPECT_LT(math.difference, 1e-5);
  gpu::choose_attention(gpu::AttentionBackend::automatic, at::kCPU);
  EXPECT_EQ(gpu::probe_attention(at::kCPU, at::kFloat, 2, 32).kernel, "flash");
}

TEST(AttentionProbeTest, EveryKernelOfAGpuIsRight) {
  FLOTILLA_REQUIRE_GPU();
  const at::Device device(at::kCUDA, 0);
  using Backend = gpu::AttentionBackend;
  for (const auto backend : {Backend::math, Backend::flash, Backend::cudnn, Backend::automatic}) {
    gpu::choose_attention(backend, at::kCUDA);
    for (const int64_t head_dim : {64, 128}) {
      const auto probe = gpu::probe_attention(device, at::kBFloat16, 4, head_dim);
      EXPECT_GT(probe.difference, 0.0) << probe.kernel;
      if (backend == Backend::math) EXPECT_EQ(probe.kernel, "math");
      if (backend == Backend::flash) EXPECT_EQ(probe.kernel, "flash");
    }
    EXPECT_LT(gpu::probe_attention(device, at::kFloat, 4, 128).difference, 1e-4);
  }
  gpu::choose_attention(Backend::automatic, at::kCUDA);
}

}  // namespace
}  // namespace flotilla
