#include "ops/map_launch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "kernels/frame_bytes.h"
#include "kernels/unfold_channels.h"
#include "kernels/unpatchify.h"
#include "kernels/write_map.h"
#include "ops/cuda_launch.h"

namespace flotilla::ops::cuda {
namespace {

kernels::DataType data_type(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? kernels::DataType::float32 : kernels::DataType::bfloat16;
}

const void* data_of(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

// `other` may be undefined.
bool is_map_like(const at::Tensor& other, const at::Tensor& x) {
  return !other.defined() || (takes_map(other) && other.scalar_type() == x.scalar_type());
}

// A map whose parts the kernels can read.
bool takes_sum(const MapSum& map) {
  if (!takes_map(map.x) || !is_map_like(map.update, map.x)) return false;
  FLOTILLA_ASSERT(!map.update.defined() || map.update.sizes() == map.x.sizes());
  if (!map.bias.defined()) return true;
  FLOTILLA_ASSERT(map.bias.dim() == 1 && map.bias.size(0) == map.x.size(1));
  return map.bias.is_contiguous() && map.bias.scalar_type() == map.x.scalar_type() &&
         map.bias.device() == map.x.device();
}

at::Tensor empty_map(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options(), at::MemoryFormat::ChannelsLast3d);
}

}  // namespace

bool takes_map(const at::Tensor& x) {
  return has_kernels_for(x) && x.dim() == 5 && x.numel() > 0 &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

bool write_map(const MapSum& map, const MapOutputs& outputs) {
  const at::Tensor& x = map.x;
  const at::Tensor& buffer = outputs.buffer;
  if (!takes_sum(map) || !is_map_like(outputs.sum, x) || !is_map_like(buffer, x)) return false;
  kernels::WriteMapArgs args;
  args.x = data_of(x);
  args.update = data_of(map.update);
  args.bias = data_of(map.bias);
  if (outputs.sum.defined()) {
    FLOTILLA_ASSERT(outputs.sum.sizes() == x.sizes());
    args.sum = outputs.sum.mutable_data_ptr();
  }
  args.samples = x.size(0);
  args.channels = x.size(1);
  args.frames = x.size(2);
  args.height = x.size(3);
  args.width = x.size(4);
  if (buffer.defined()) {
    args.buffer = buffer.mutable_data_ptr();
    args.front = static_cast<int>(outputs.front);
    args.back = static_cast<int>(buffer.size(2) - outputs.front - args.frames);
    args.margin = static_cast<int>((buffer.size(3) - args.height) / 2);
    FLOTILLA_ASSERT(buffer.size(0) == args.samples && buffer.size(1) == args.channels &&
                    args.back >= 0 && args.margin >= 0 &&
                    buffer.size(3) == args.height + 2 * args.margin &&
                    buffer.size(4) == args.width + 2 * args.margin);
  }
  args.norm_silu = outputs.norm_silu;
  args.eps = static_cast<float>(outputs.eps);
  args.dtype = data_type(x);
  if (!kernels::can_write_map(args)) return false;
  C10_CUDA_CHECK(kernels::launch_write_map(args, c10::cuda::getCurrentCUDAStream()));
  return true;
}

at::Tensor unfold_channels(const MapSum& wide, const at::Tensor& skip, const Unfold& unfold) {
  const at::Tensor& x = wide.x;
  if (!takes_sum(wide) || wide.update.defined() || !is_map_like(skip, x)) return {};
  const auto& [p, q, r] = unfold.stride;
  kernels::UnfoldChannelsArgs args;
  args.samples = x.size(0);
  args.channels = x.size(1) / (p * q * r);
  args.frames = x.size(2);
  args.height = x.size(3);
  args.width = x.size(4);
  const at::Tensor out = empty_map({args.samples, args.channels, args.frames * p - unfold.dropped,
                                    args.height * q, args.width * r},
                                   x);
  args.wide = data_of(x);
  args.bias = data_of(wide.bias);
  args.skip = data_of(skip);
  if (skip.defined()) {
    args.skip_channels = skip.size(1) / (p * q * r);
    FLOTILLA_ASSERT(skip.size(2) == args.frames && skip.size(3) == args.height &&
                    skip.size(4) == args.width && args.channels % args.skip_channels == 0);
  }
  args.out = out.mutable_data_ptr();
  for (int axis = 0; axis < 3; ++axis)
    args.stride[axis] = static_cast<int>(unfold.stride[static_cast<size_t>(axis)]);
  args.dropped = static_cast<int>(unfold.dropped);
  args.dtype = data_type(x);
  if (!kernels::can_unfold_channels(args)) return {};
  C10_CUDA_CHECK(kernels::launch_unfold_channels(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

at::Tensor unpatchify(const MapSum& patches, int64_t patch_size, bool frames) {
  const at::Tensor& x = patches.x;
  if (!takes_sum(patches) || patches.update.defined() || patch_size != kernels::kPatchSize ||
      x.size(1) != kernels::kPixelChannels * patch_size * patch_size)
    return {};
  const at::Tensor out = at::empty({x.size(0), x.size(2), x.size(3) * patch_size,
                                    x.size(4) * patch_size, kernels::kPixelChannels},
                                   frames ? x.options().dtype(at::kFloat) : x.options());
  kernels::UnpatchifyArgs args;
  args.patches = data_of(x);
  args.bias = data_of(patches.bias);
  args.out = out.mutable_data_ptr();
  args.frames = x.size(0) * x.size(2);
  args.height = x.size(3);
  args.width = x.size(4);
  args.unit_range = frames;
  args.dtype = data_type(x);
  C10_CUDA_CHECK(kernels::launch_unpatchify(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

at::Tensor frame_bytes(const at::Tensor& frames) {
  if (!frames.is_cuda() || frames.scalar_type() != at::kFloat || !frames.is_contiguous()) return {};
  const at::Tensor bytes = at::empty(frames.sizes(), frames.options().dtype(at::kByte));
  C10_CUDA_CHECK(kernels::launch_frame_bytes({.frames = frames.const_data_ptr<float>(),
                                              .bytes = bytes.mutable_data_ptr<uint8_t>(),
                                              .count = frames.numel()},
                                             c10::cuda::getCurrentCUDAStream()));
  return bytes;
}

}  // namespace flotilla::ops::cuda
