// The kernels between the convolutions of the video VAE against their ATen twins in float64, then
// blocks of the decoder on the GPU against the same blocks on the CPU in float64.
#include "ops/feature_map.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/compare.h"
#include "support/device.h"
#include "vae/blocks.h"

namespace flotilla {
namespace {

using ops::MapSum;

constexpr auto kInnermost = at::MemoryFormat::ChannelsLast3d;

// One rounding to the type, of values that the filters keep small.
double tolerance_of(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 8e-3; }

at::Tensor random_map(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(dtype)).contiguous(kInnermost);
}
at::Tensor poisoned(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options(), kInnermost)
      .fill_(std::numeric_limits<double>::quiet_NaN());
}
at::Tensor wide(const at::Tensor& x) { return x.defined() ? x.to(at::kDouble) : x; }
MapSum wide(const MapSum& map) { return {wide(map.x), wide(map.update), wide(map.bias)}; }

struct MapCase {
  std::array<int64_t, 5> sizes;  // B, C, F, H, W
  int64_t front, back, margin;
};
// Channels of every width of the kernel, with idle lanes too; planes that do not fill a block;
// channels that are no multiple of a vector; more samples than one.
constexpr MapCase kMapCases[] = {{{1, 128, 3, 5, 7}, 1, 1, 0}, {{2, 256, 2, 3, 5}, 2, 0, 0},
                                 {{1, 512, 2, 9, 4}, 1, 1, 1}, {{1, 1024, 1, 3, 3}, 1, 1, 0},
                                 {{1, 40, 4, 6, 11}, 3, 0, 1}, {{2, 3, 2, 5, 5}, 1, 1, 0}};

TEST(WriteMapTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(11);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [sizes, front, back, margin] : kMapCases) {
      for (int parts = 0; parts < 4; ++parts) {
        for (const bool norm_silu : {false, true}) {
          SCOPED_TRACE(fmt::format("{} C {} parts {} norm {}", c10::toString(dtype), sizes[1],
                                   parts, norm_silu));
          MapSum map{random_map(sizes, dtype), {}, {}};
          if (parts & 1) map.update = random_map(sizes, dtype);
          if (parts & 2) map.bias = at::randn({sizes[1]}, map.x.options());
          const MapSum before = wide(map);
          const at::Tensor buffer = poisoned({sizes[0], sizes[1], front + sizes[2] + back,
                                              sizes[3] + 2 * margin, sizes[4] + 2 * margin},
                                             map.x);
          const at::Tensor sum = map.update.defined() ? map.update : map.x;
          ops::write_map(map, {sum, buffer, front, norm_silu, 1e-8});

          const at::Tensor exact = at::empty_like(before.x);
          ops::write_map_aten(before, {.sum = exact});
          const double close = tolerance_of(dtype);
          EXPECT_TRUE(test::all_close(sum, exact, close, close));
          // Of the sum as it was rounded; the margin is left alone.
          const at::Tensor expected = poisoned(buffer.sizes(), before.x);
          ops::write_map_aten({wide(sum), {}, {}}, {{}, expected, front, norm_silu, 1e-8});
          EXPECT_TRUE(test::all_close(buffer, expected, close, close));
        }
      }
    }
  }
}

// What the CPU computes instead, in its own order.
TEST(WriteMapTest, TwinEqualsTheLayersWithoutKernels) {
  at::manual_seed(15);
  const auto map = [](at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble).contiguous(kInnermost);
  };
  const MapSum parts{map({1, 64, 4, 16, 17}), map({1, 64, 4, 16, 17}),
                     at::randn({64}, at::kDouble)};
  for (const bool causal : {false, true}) {
    const vae::Borders borders{.causal = causal};
    MapSum used{parts.x.clone(), parts.update.clone(), parts.bias};
    const at::Tensor expected = vae::padded_norm_silu(used, borders, vae::Keep::sum);
    const at::Tensor buffer = at::empty_like(expected);
    const at::Tensor sum = at::empty_like(parts.x);
    ops::write_map_aten(parts, {sum, buffer, borders.front(), true, 1e-8});
    EXPECT_TRUE(test::all_close(sum, used.x, 1e-12));
    EXPECT_TRUE(test::all_close(buffer, expected, 1e-12));
  }
}

TEST(WriteMapTest, KeepsNaN) {
  FLOTILLA_REQUIRE_GPU();
  MapSum map{random_map({1, 128, 1, 2, 2}, at::kBFloat16), {}, {}};
  map.x[0][5][0][1][1] = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor buffer = at::empty_like(map.x);
  ops::write_map(map, {{}, buffer, 0, true, 1e-8});
  EXPECT_TRUE(buffer.select(3, 1).select(3, 1).isnan().all().item<bool>());
  EXPECT_FALSE(buffer.select(3, 0).isnan().any().item<bool>());
}

TEST(UnfoldChannelsTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(12);
  using Stride = std::array<int64_t, 3>;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& stride : {Stride{2, 2, 2}, Stride{1, 2, 2}, Stride{2, 1, 1}}) {
      for (const int64_t channels : {16, 64, 5}) {
        for (const int64_t skip_channels : {int64_t{0}, channels == 64 ? 16 : channels}) {
          SCOPED_TRACE(fmt::format("{} stride {} {} {} C {} skip {}", c10::toString(dtype),
                                   stride[0], stride[1], stride[2], channels, skip_channels));
          const int64_t cells = stride[0] * stride[1] * stride[2];
          const MapSum map{
              random_map({2, channels * cells, 3, 5, 7}, dtype),
              {},
              at::randn({channels * cells}, at::TensorOptions(at::kCUDA).dtype(dtype))};
          at::Tensor skip;
          if (skip_channels > 0) skip = random_map({2, skip_channels * cells, 3, 5, 7}, dtype);
          const ops::Unfold unfold{stride, stride[0] - 1};
          const at::Tensor actual = ops::unfold_channels(map, skip, unfold);
          const double close = tolerance_of(dtype);
          // Without the kernel (five channels) the sum is rounded up to three times.
          EXPECT_TRUE(test::all_close(actual,
                                      ops::unfold_channels_aten(wide(map), wide(skip), unfold),
                                      3 * close, 2 * close));
        }
      }
    }
  }
}

TEST(UnpatchifyTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(13);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t patch_size : {4, 2}) {
      const MapSum map{
          random_map({1, 3 * patch_size * patch_size, 3, 5, 67}, dtype),
          {},
          at::randn({3 * patch_size * patch_size}, at::TensorOptions(at::kCUDA).dtype(dtype))};
      const double close = tolerance_of(dtype);
      EXPECT_TRUE(test::all_close(ops::unpatchify(map, patch_size),
                                  ops::unpatchify_aten(wide(map), patch_size), close, close));
      const at::Tensor frames = ops::unpatchify_frames(map, patch_size);
      EXPECT_EQ(frames.scalar_type(), at::kFloat);
      EXPECT_TRUE(test::all_close(frames, ops::unpatchify_frames_aten(wide(map), patch_size), close,
                                  close));
    }
  }
}

TEST(FrameBytesTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  // All halves between two bytes, beyond both ends; an odd count and an even one.
  const at::Tensor frames =
      at::arange(-4, 1024, at::TensorOptions(at::kCUDA).dtype(at::kFloat)) / (4 * 255.0);
  for (const int64_t count : {frames.numel(), frames.numel() - 3}) {
    const at::Tensor some = frames.narrow(0, 0, count);
    EXPECT_TRUE(test::same_bytes(ops::frame_bytes(some).cpu(), ops::frame_bytes_aten(some).cpu()));
  }
}

// Weights of a convolution in float64, with deviations that keep the result near 1.
vae::Conv random_conv(int64_t in, int64_t out) {
  const double deviation = 1.0 / std::sqrt(27.0 * static_cast<double>(in));
  return {at::randn({out, in, 3, 3, 3}, at::kDouble) * deviation, at::randn({out}, at::kDouble)};
}
vae::Conv on_gpu(const vae::Conv& conv, at::ScalarType dtype) {
  vae::Conv moved{conv.weight.to(at::kCUDA, dtype), conv.bias.to(at::kCUDA, dtype)};
  vae::lay_channels_innermost(moved.weight);
  return moved;
}

// Residual layers that leave an open sum, an unfold with a skip, and residual layers again.
std::vector<vae::Block> make_blocks() {
  vae::Block layers;
  layers.config.kind = vae::BlockKind::residual;
  for (int i = 0; i < 2; ++i)
    layers.layers.push_back({random_conv(64, 64), random_conv(64, 64), {}, {}, {}, {}});
  vae::Block unfold;
  unfold.config.kind = vae::BlockKind::unfold;
  unfold.config.stride = {2, 2, 2};
  unfold.config.skip = true;
  unfold.conv = random_conv(64, 64 * 8);
  return {layers, unfold, layers};
}

at::Tensor run_blocks(const std::vector<vae::Block>& blocks, const at::Tensor& x,
                      const vae::Borders& borders) {
  MapSum map{x, {}, {}};
  for (const vae::Block& block : blocks) map = vae::apply_block(block, std::move(map), borders);
  return vae::add_up(map);
}

TEST(FusedBlocksTest, EqualBlocksOnTheCpu) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(14);
  const bool tf32 = at::globalContext().allowTF32CuDNN();
  at::globalContext().setAllowTF32CuDNN(false);
  const std::vector<vae::Block> exact = make_blocks();
  std::vector<vae::Block> blocks = exact;
  for (vae::Block& block : blocks) {
    for (vae::ResidualLayer& layer : block.layers) {
      layer.conv1 = on_gpu(layer.conv1, at::kFloat);
      layer.conv2 = on_gpu(layer.conv2, at::kFloat);
    }
    if (block.conv.weight.defined()) block.conv = on_gpu(block.conv, at::kFloat);
  }
  const at::Tensor x = at::randn({1, 64, 4, 16, 17}, at::kDouble).contiguous(kInnermost);
  for (const auto space : {vae::SpatialPadding::zeros, vae::SpatialPadding::reflect}) {
    for (const bool causal : {false, true}) {
      const vae::Borders borders{.space = space, .causal = causal};
      const at::Tensor given = x.to(at::kCUDA, at::kFloat).contiguous(kInnermost);
      const at::Tensor actual = run_blocks(blocks, given, borders);
      EXPECT_TRUE(test::all_close(actual.cpu(), run_blocks(exact, x, borders), 1e-4, 1e-4));
      EXPECT_TRUE(test::all_close(given.cpu(), x, 1e-6)) << "the caller's map has changed";
    }
  }
  at::globalContext().setAllowTF32CuDNN(tf32);
}

}  // namespace
}  // namespace flotilla
