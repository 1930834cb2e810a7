#include "vae/conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"

namespace flotilla::vae {
namespace {

constexpr double kNormEpsilon = 1e-8;
// From this size on channels lie innermost, which oneDNN and cuDNN want. Small maps and few
// channels gain nothing; they stay in the plain layout and so in the reference's order of
// summation, which norms over two or four channels magnify a thousand times.
constexpr int64_t kInnermostChannels = 32;
constexpr int64_t kInnermostNumel = 1 << 16;

at::MemoryFormat format_for(const at::Tensor& x) {
  return x.size(1) >= kInnermostChannels && x.numel() >= kInnermostNumel
             ? at::MemoryFormat::ChannelsLast3d
             : at::MemoryFormat::Contiguous;
}

at::Tensor without_margin(const at::Tensor& frames, int64_t margin) {
  if (margin == 0) return frames;
  return frames.narrow(3, margin, frames.size(3) - 2 * margin)
      .narrow(4, margin, frames.size(4) - 2 * margin);
}

// Fills a border of one row and one column at each side: the line behind the edge line.
void reflect_margin(const at::Tensor& frames) {
  for (const int64_t dim : {3, 4}) {
    const int64_t last = frames.size(dim) - 1;
    frames.select(dim, 0).copy_(frames.select(dim, 2));
    frames.select(dim, last).copy_(frames.select(dim, last - 2));
  }
}

at::Tensor empty_padded(const at::Tensor& x, const Borders& borders) {
  const int64_t margin = borders.margin();
  if (margin > 0 && (x.size(3) < 2 || x.size(4) < 2)) {
    fail(ErrorKind::config,
         fmt::format("this video VAE pads by reflection and needs at least 2 x 2 latent cells; the "
                     "picture has {} x {}",
                     x.size(3), x.size(4)));
  }
  return at::empty({x.size(0), x.size(1), borders.front() + x.size(2) + borders.back(),
                    x.size(3) + 2 * margin, x.size(4) + 2 * margin},
                   x.options(), format_for(x));
}

// `fill` writes the picture [B, C, F, H, W] into the view that it gets.
template <typename Fill>
at::Tensor make_padded(const at::Tensor& x, const Borders& borders, const Fill& fill) {
  const int64_t margin = borders.margin();
  const int64_t frames = x.size(2);
  const at::Tensor buffer = empty_padded(x, borders);
  const at::Tensor middle = buffer.narrow(2, borders.front(), frames);
  fill(without_margin(middle, margin));
  if (margin > 0) reflect_margin(middle);
  buffer.narrow(2, 0, borders.front()).copy_(middle.narrow(2, 0, 1));
  if (borders.back() > 0) {
    buffer.narrow(2, borders.front() + frames, borders.back())
        .copy_(middle.narrow(2, frames - 1, 1));
  }
  return buffer;
}

void norm_silu(const at::Tensor& x, at::Tensor& out) {
  at::mul_out(out, x, x);  // `out` doubles as scratch for the squares
  const at::Tensor rms = out.mean(at::IntArrayRef{1}, /*keepdim=*/true).add_(kNormEpsilon).sqrt_();
  at::div_out(out, x, rms);
  at::silu_(out);
}

// Whether one kernel adds up, filters and writes the map with its borders.
bool is_fused(const ops::MapSum& map) {
  return ops::has_map_kernels(map.x) && format_for(map.x) == at::MemoryFormat::ChannelsLast3d;
}

at::Tensor write_padded(ops::MapSum& map, const Borders& borders, Keep keep, bool norm_silu) {
  ops::MapOutputs outputs{.buffer = empty_padded(map.x, borders),
                          .front = borders.front(),
                          .norm_silu = norm_silu,
                          .eps = kNormEpsilon};
  const bool is_sum = !map.update.defined() && !map.bias.defined();
  if (keep == Keep::sum && !is_sum) outputs.sum = map.update.defined() ? map.update : map.x;
  ops::write_map(map, outputs);
  if (borders.margin() > 0) reflect_margin(outputs.buffer);
  if (outputs.sum.defined()) map = {outputs.sum, {}, {}};
  return outputs.buffer;
}

// conv3d gives maps with B*C*F*H below 20480 to an im2col loop that took 2 to 10 times as long as
// oneDNN on those that this asks for.
bool use_onednn(const at::Tensor& buffer) {
  return buffer.is_cpu() && buffer.scalar_type() == at::kFloat && at::hasMKLDNN() &&
         at::globalContext().userEnabledMkldnn() &&
         buffer.suggest_memory_format() == at::MemoryFormat::ChannelsLast3d;
}

// Frames of the result that one call may compute.
int64_t largest_run(const at::Tensor& buffer, const Conv& conv,
                    const std::array<int64_t, 3>& stride) {
  const int64_t frames = buffer.size(2) - 2;
  if (!buffer.is_cuda() || stride != std::array<int64_t, 3>{1, 1, 1}) return frames;
  const int64_t channels = std::max(conv.weight.size(0), conv.weight.size(1));
  const int64_t frame_numel = buffer.size(0) * channels * buffer.size(3) * buffer.size(4);
  const int64_t most = std::numeric_limits<int32_t>::max() / frame_numel;
  return std::clamp<int64_t>(most - 2, 1, frames);
}

at::Tensor convolve_whole(const at::Tensor& buffer, const Conv& conv, const Borders& borders,
                          const std::array<int64_t, 3>& stride) {
  const int64_t zeros = borders.space == SpatialPadding::zeros ? 1 : 0;
  const std::array<int64_t, 3> padding{0, zeros, zeros};
  const std::array<int64_t, 3> dilation{1, 1, 1};
  if (use_onednn(buffer)) {
    return at::mkldnn_convolution(buffer, conv.weight, conv.bias, padding, stride, dilation, 1);
  }
  return at::conv3d(buffer, conv.weight, conv.bias, stride, padding, dilation);
}

}  // namespace

Conv take_conv(loader::WeightBinder& binder, std::string_view name, int64_t in, int64_t out) {
  const std::string stem = std::string(name) + ".conv.";
  return {binder.take(stem + "weight", {out, in, 3, 3, 3}), binder.take(stem + "bias", {out})};
}

const at::Tensor& add_up(ops::MapSum& map) {
  if (ops::has_map_kernels(map.x)) {
    if (map.update.defined() || map.bias.defined()) {
      const at::Tensor sum = map.update.defined() ? map.update : map.x;
      ops::write_map(map, {.sum = sum});
      map = {sum, {}, {}};
    }
    return map.x;
  }
  if (map.bias.defined()) map.x.add_(map.bias.view({1, -1, 1, 1, 1}));
  if (map.update.defined()) map.x = map.update.add_(map.x);
  map.update.reset();
  map.bias.reset();
  return map.x;
}

at::Tensor padded(ops::MapSum& map, const Borders& borders, Keep keep) {
  return is_fused(map) ? write_padded(map, borders, keep, /*norm_silu=*/false)
                       : padded(add_up(map), borders);
}

at::Tensor padded_norm_silu(ops::MapSum& map, const Borders& borders, Keep keep) {
  return is_fused(map) ? write_padded(map, borders, keep, /*norm_silu=*/true)
                       : padded_norm_silu(add_up(map), borders);
}

at::Tensor padded(const at::Tensor& x, const Borders& borders) {
  return make_padded(x, borders, [&x](at::Tensor out) { out.copy_(x); });
}

at::Tensor padded_norm_silu(const at::Tensor& x, const Borders& borders) {
  if (format_for(x) == at::MemoryFormat::Contiguous) {
    // Dense, since vector loops compute the last elements of each row by another exp.
    at::Tensor out = at::empty(x.sizes(), x.options());
    norm_silu(x, out);
    return padded(out, borders);
  }
  return make_padded(x, borders, [&x](at::Tensor out) { norm_silu(x, out); });
}

at::Tensor frames_of(const at::Tensor& buffer, const Borders& borders, int64_t first) {
  const int64_t count = buffer.size(2) - first - borders.back();
  return without_margin(buffer.narrow(2, first, count), borders.margin());
}

at::Tensor convolve(const at::Tensor& buffer, const Conv& conv, const Borders& borders,
                    const std::array<int64_t, 3>& stride) {
  const int64_t run = largest_run(buffer, conv, stride);
  return run < buffer.size(2) - 2 ? convolve_in_runs(buffer, conv, borders, run)
                                  : convolve_whole(buffer, conv, borders, stride);
}

at::Tensor convolve_in_runs(const at::Tensor& buffer, const Conv& conv, const Borders& borders,
                            int64_t run) {
  const int64_t frames = buffer.size(2) - 2;
  const int64_t runs = (frames + run - 1) / run;
  const int64_t even = (frames + runs - 1) / runs;  // of one size as far as can be: one plan
  at::Tensor out;
  for (int64_t first = 0; first < frames; first += even) {
    const int64_t count = std::min(even, frames - first);
    const at::Tensor part =
        convolve_whole(buffer.narrow(2, first, count + 2), conv, borders, {1, 1, 1});
    if (!out.defined()) {
      out = at::empty({part.size(0), part.size(1), frames, part.size(3), part.size(4)},
                      part.options(), part.suggest_memory_format());
    }
    out.narrow(2, first, count).copy_(part);
  }
  return out;
}

ops::MapSum convolve_open(const at::Tensor& buffer, const Conv& conv, const Borders& borders) {
  if (!ops::has_map_kernels(buffer)) return {convolve(buffer, conv, borders), {}, {}};
  return {convolve(buffer, {conv.weight, {}}, borders), {}, conv.bias};
}

void lay_channels_innermost(at::Tensor& weight) {
  if (weight.size(1) < kInnermostChannels) return;
  const at::Tensor turned = weight.contiguous(at::MemoryFormat::ChannelsLast3d);
  weight = weight.as_strided(weight.sizes(), turned.strides(), weight.storage_offset());
  weight.copy_(turned);
}

}  // namespace flotilla::vae
