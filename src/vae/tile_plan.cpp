#include "vae/tile_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace flotilla::vae {
namespace {

using diffusion::AxisKind;
using diffusion::AxisTiling;

// Above this deviation from one the weights of an axis are divided by their sum; that happens when
// more than two tiles meet. Weights that sum to one up to rounding stay as they are.
constexpr double kSumTolerance = 1e-5;
constexpr double kSmallestSum = 1e-8;

void make_sum_one(std::vector<TileSpan>& spans) {
  const at::Tensor sum = at::zeros({spans.back().output.end}, at::kFloat);
  for (const TileSpan& span : spans) {
    sum.narrow(0, span.output.begin, span.output.size()).add_(span.output.mask);
  }
  if ((sum - 1.0).abs().max().item<double>() <= kSumTolerance) return;
  sum.clamp_min_(kSmallestSum);
  for (TileSpan& span : spans) {
    span.output.mask.div_(sum.narrow(0, span.output.begin, span.output.size()));
  }
}

std::vector<TileSpan> plan_axis(const AxisTiling& tiling, const char* name, AxisKind kind,
                                int64_t length, int64_t scale) {
  std::vector<TileSpan> spans;
  for (const auto& interval : diffusion::split_axis(tiling, name, kind, length, scale)) {
    spans.push_back({interval, kind == AxisKind::time ? diffusion::map_temporal(interval, scale)
                                                      : diffusion::map_spatial(interval, scale)});
  }
  make_sum_one(spans);
  return spans;
}

template <typename Measure>
int64_t largest(const std::vector<TileSpan>& spans, const Measure& measure) {
  int64_t most = 0;
  for (const TileSpan& span : spans) most = std::max(most, measure(span));
  return most;
}

int64_t latent_cells(const TileSpan& span) { return span.latent.size(); }
int64_t output_cells(const TileSpan& span) { return span.output.size(); }

// Sizes of a feature map while the forecast walks through the decoder.
struct Activation {
  int64_t frames, height, width, channels;

  int64_t numel() const { return frames * height * width * channels; }
  int64_t padded_numel(int64_t margin) const {
    return (frames + 2) * (height + 2 * margin) * (width + 2 * margin) * channels;
  }
};

}  // namespace

int64_t TilePlan::num_tiles() const {
  return static_cast<int64_t>(frames.size() * rows.size() * columns.size());
}

Tile TilePlan::tile(int64_t tile_idx) const {
  const auto idx = static_cast<size_t>(tile_idx);
  return {frames.at(idx / (rows.size() * columns.size())), rows[idx / columns.size() % rows.size()],
          columns[idx % columns.size()]};
}

at::Tensor TilePlan::tile_of(const at::Tensor& latent, int64_t tile_idx) const {
  const Tile at = tile(tile_idx);
  return latent.narrow(2, at.frames.latent.start, at.frames.latent.size())
      .narrow(3, at.rows.latent.start, at.rows.latent.size())
      .narrow(4, at.columns.latent.start, at.columns.latent.size());
}

bool TilePlan::fits(const at::Tensor& latent) const {
  return latent.size(2) == frames.back().latent.end && latent.size(3) == rows.back().latent.end &&
         latent.size(4) == columns.back().latent.end;
}

std::vector<int64_t> TilePlan::batch_frames() const {
  std::vector<int64_t> counts;
  for (size_t i = 0; i < frames.size(); ++i) {
    const int64_t next =
        i + 1 < frames.size() ? frames[i + 1].output.begin : frames.back().output.end;
    counts.push_back(next - frames[i].output.begin);
  }
  return counts;
}

std::string TilePlan::describe() const {
  if (!tiled()) return "not tiled";
  return fmt::format("{} tiles: {} x {} x {} (frames x height x width), at most {} x {} x {}",
                     num_tiles(), frames.size(), rows.size(), columns.size(),
                     largest(frames, output_cells), largest(rows, output_cells),
                     largest(columns, output_cells));
}

TilePlan plan_tiles(const diffusion::VideoTiling& tiling, const diffusion::VideoLatentSize& latent,
                    const diffusion::ScaleFactors& scale) {
  TilePlan plan;
  plan.frames = plan_axis(tiling.frames, "frames", AxisKind::time, latent.frames, scale.time);
  plan.rows = plan_axis(tiling.height, "height", AxisKind::space, latent.height, scale.height);
  plan.columns = plan_axis(tiling.width, "width", AxisKind::space, latent.width, scale.width);
  return plan;
}

int64_t forecast_decode_bytes(const DecoderConfig& config, const diffusion::VideoLatentSize& latent,
                              int64_t element_bytes) {
  const int64_t margin = config.padding == SpatialPadding::reflect ? 1 : 0;
  Activation x{latent.frames, latent.height, latent.width, config.bottleneck_channels()};
  int64_t most = 0;
  for (const BlockConfig& block : config.blocks) {
    Activation out = x;
    out.channels = x.channels / block.multiplier;
    if (block.kind == BlockKind::unfold) {
      out.frames = x.frames * block.stride[0] - (block.stride[0] - 1);
      out.height = x.height * block.stride[1];
      out.width = x.width * block.stride[2];
      // The padded input, then the wide result beside its unfolded copy and the unfolded skip.
      const int64_t skip = block.skip ? x.numel() : 0;
      most = std::max({most, skip + x.padded_numel(margin) + out.numel(), skip + 2 * out.numel()});
    } else {
      most = std::max(most, x.numel() + x.padded_numel(margin) + out.numel());
    }
    x = out;
  }
  const int64_t picture =
      x.frames * x.height * x.width * config.pixel_channels * config.patch_size * config.patch_size;
  most = std::max(
      {most, x.numel() + x.padded_numel(margin), x.padded_numel(margin) + picture, 2 * picture});
  // A quarter on top for the convolutions' scratch and rounding of the allocator.
  return (most + most / 4) * element_bytes;
}

int64_t forecast_decode_bytes(const DecoderConfig& config, const TilePlan& plan,
                              int64_t element_bytes) {
  diffusion::VideoLatentSize tile;
  tile.frames = largest(plan.frames, latent_cells);
  tile.height = largest(plan.rows, latent_cells);
  tile.width = largest(plan.columns, latent_cells);
  // Blended frames are float32: this temporal tile's and the tail of the one before.
  const int64_t batch = largest(plan.frames, output_cells) * plan.height() * plan.width() *
                        config.pixel_channels * static_cast<int64_t>(sizeof(float));
  return forecast_decode_bytes(config, tile, element_bytes) + (plan.tiled() ? 2 * batch : batch);
}

diffusion::VideoTiling automatic_tiling(const DecoderConfig& config,
                                        const diffusion::VideoLatentSize& latent,
                                        int64_t element_bytes, int64_t available_bytes) {
  const diffusion::ScaleFactors scale = config.scale();
  const TilePlan whole = plan_tiles({}, latent, scale);
  if (forecast_decode_bytes(config, whole, element_bytes) <= available_bytes) return {};
  return diffusion::default_tiling(latent.height * scale.height, latent.width * scale.width,
                                   scale.height);
}

}  // namespace flotilla::vae
