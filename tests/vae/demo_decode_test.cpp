// The decode of the demo model, whose weights are trained: memory against the forecast, the time
// that it takes, and flat pictures under tiling.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "loader/checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "vae/decoder.h"

namespace flotilla::vae {
namespace {

using diffusion::AxisTiling;
using diffusion::VideoTiling;

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

VideoDecoder demo_decoder() {
  const auto path = test::source_dir() / "models/demo/ltx-demo-dev.safetensors";
  return VideoDecoder::from_checkpoint(loader::Checkpoint::open(path), at::kFloat, at::kCPU);
}

at::Tensor decode_all(const VideoDecoder& decoder, const at::Tensor& latent, const TilePlan& plan) {
  std::vector<at::Tensor> batches;
  decoder.decode_frames(latent, plan, [&](const at::Tensor& frames) { batches.push_back(frames); });
  return at::cat(batches, 0);
}

// The largest difference of neighbouring frames, rows and columns: seams would stand out.
std::array<double, 3> largest_steps(const at::Tensor& clip) {
  std::array<double, 3> steps{};
  for (size_t dim = 0; dim < steps.size(); ++dim) {
    const auto axis = static_cast<int64_t>(dim);
    steps[dim] = (clip.slice(axis, 1) - clip.slice(axis, 0, -1)).abs().max().item<double>();
  }
  return steps;
}

TEST(DemoDecodeTest, FlatLatentsShowNoTileBorders) {
  constexpr double kOneGreyLevel = 1.0 / 255;
  const VideoDecoder decoder = demo_decoder();
  const diffusion::VideoLatentSize size{1, decoder.config().latent_channels, 4, 6, 6};
  const at::Tensor latent = at::zeros({1, size.channels, size.frames, size.height, size.width});
  const auto whole =
      largest_steps(decode_all(decoder, latent, plan_tiles({}, size, decoder.scale())));
  const AxisTiling space = AxisTiling::of_size(128, 64);
  const AxisTiling time = AxisTiling::of_size(24, 8);
  for (const VideoTiling& tiling : {VideoTiling{{}, space, space}, VideoTiling{time, {}, {}}}) {
    const TilePlan plan = plan_tiles(tiling, size, decoder.scale());
    SCOPED_TRACE(plan.describe());
    ASSERT_TRUE(plan.tiled());
    const auto tiled = largest_steps(decode_all(decoder, latent, plan));
    for (size_t dim = 0; dim < whole.size(); ++dim) {
      EXPECT_LE(tiled[dim], whole[dim] + kOneGreyLevel) << "axis " << dim;
    }
  }
}

TEST(DemoDecodeTest, StaysWithinItsMemoryForecast) {
  const VideoDecoder decoder = demo_decoder();
  const diffusion::ScaleFactors scale = decoder.scale();
  const diffusion::VideoLatentSize size{1, decoder.config().latent_channels, 24 / scale.time + 1,
                                        256 / scale.height, 384 / scale.width};
  const at::Tensor latent =
      at::randn({1, size.channels, size.frames, size.height, size.width}, at::kFloat);
  const TilePlan plan = plan_tiles({}, size, scale);
  const int64_t forecast =
      forecast_decode_bytes(decoder.config(), plan, static_cast<int64_t>(sizeof(float)));
  EXPECT_LT(forecast, int64_t{1} << 30);

  // What the libraries allocate at their first use is not the decode's.
  decoder.decode(latent.slice(2, 0, 1).slice(3, 0, 2).slice(4, 0, 2));
  const int64_t before = peak_resident_bytes();
  const auto start = std::chrono::steady_clock::now();
  at::Tensor video;
  decoder.decode_frames(latent, plan, [&](const at::Tensor& frames) { video = frames; });
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  const int64_t used = peak_resident_bytes() - before;
  RecordProperty("decode_ms", std::to_string(elapsed.count()));
  RecordProperty("decode_peak_bytes", std::to_string(used));
  RecordProperty("forecast_bytes", std::to_string(forecast));

  EXPECT_EQ(video.sizes(), at::IntArrayRef({plan.num_frames(), plan.height(), plan.width(), 3}));
  constexpr int64_t kLibraries = 32 << 20;  // oneDNN's caches and the allocator's slack
  EXPECT_LE(used, forecast + kLibraries);
}

}  // namespace
}  // namespace flotilla::vae
