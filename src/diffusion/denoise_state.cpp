#include "diffusion/denoise_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::diffusion {
namespace {

constexpr std::string_view kSamplerPrefix = "sampler/";
constexpr std::string_view kDenoiserPrefix = "denoiser/";
constexpr int64_t kLongestStageName = 64;

// A copy of its own on the CPU: a checkpoint must not change when the run goes on.
at::Tensor stored(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.is_floating_point() ? at::kFloat : tensor.scalar_type();
  return tensor.to(at::kCPU, dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

at::Tensor text_tensor(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  return bytes;
}

const at::Tensor& take(const NamedTensors& tensors, const std::string& name, at::ScalarType dtype,
                       int64_t rank) {
  const auto entry = tensors.find(name);
  if (entry == tensors.end()) {
    fail(ErrorKind::input, fmt::format("the saved denoise state lacks \"{}\"", name));
  }
  const at::Tensor& tensor = entry->second;
  if (tensor.scalar_type() != dtype || tensor.dim() != rank) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" of the saved denoise state is {} of shape {}, expected {} of {} "
                     "dimensions",
                     name, c10::toString(tensor.scalar_type()), shape_text(tensor.sizes()),
                     c10::toString(dtype), rank));
  }
  return tensor;
}

std::string take_stage(const NamedTensors& tensors) {
  const at::Tensor bytes = take(tensors, "stage", at::kByte, 1).contiguous();
  const std::string text(reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()),
                         static_cast<size_t>(bytes.numel()));
  if (text.empty() || bytes.numel() > kLongestStageName || !is_valid_utf8(text)) {
    fail(ErrorKind::input,
         fmt::format("\"stage\" of the saved denoise state is no stage name: {}", excerpt(text)));
  }
  return text;
}

}  // namespace

NamedTensors to_tensors(const DenoiseState& state) {
  NamedTensors tensors = {{"stage", text_tensor(state.stage)},
                          {"step", at::scalar_tensor(state.step, at::kLong)},
                          {"video", stored(state.video)},
                          {"audio", stored(state.audio)},
                          {"generator", stored(state.generator)}};
  for (const auto& [name, tensor] : state.sampler) {
    tensors[std::string(kSamplerPrefix) + name] = stored(tensor);
  }
  for (const auto& [name, tensor] : state.denoiser) {
    tensors[std::string(kDenoiserPrefix) + name] = stored(tensor);
  }
  return tensors;
}

DenoiseState state_from_tensors(const NamedTensors& tensors) {
  DenoiseState state;
  state.stage = take_stage(tensors);
  state.step = take(tensors, "step", at::kLong, 0).item<int64_t>();
  if (state.step < 0) {
    fail(ErrorKind::input, fmt::format("\"step\" of the saved denoise state is {}", state.step));
  }
  state.video = take(tensors, "video", at::kFloat, 3);
  state.audio = take(tensors, "audio", at::kFloat, 3);
  state.generator = take(tensors, "generator", at::kByte, 1);
  constexpr std::array<std::string_view, 5> kFixedNames = {"stage", "step", "video", "audio",
                                                           "generator"};
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(kSamplerPrefix)) {
      state.sampler[name.substr(kSamplerPrefix.size())] = tensor;
    } else if (name.starts_with(kDenoiserPrefix)) {
      state.denoiser[name.substr(kDenoiserPrefix.size())] = tensor;
    } else if (std::find(kFixedNames.begin(), kFixedNames.end(), name) == kFixedNames.end()) {
      fail(ErrorKind::input, fmt::format("the saved denoise state holds an unknown \"{}\"", name));
    }
  }
  return state;
}

}  // namespace flotilla::diffusion
