// The named choices of a job, each with the one table of its names in YAML. Names that people try
// and that cannot work have a reason beside the table, so the message says more than "unknown".
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace flotilla::config {

template <typename E>
struct Named {
  E value;
  std::string_view name;
};
struct RefusedName {
  std::string_view name;
  std::string_view reason;
};
// Specialised below: `rows` in the order of the documentation, `refused` where there are such
// names.
template <typename E>
struct NameTable;

template <typename E>
concept NamedEnum = requires {
  NameTable<E>::rows;
};

template <NamedEnum E>
constexpr std::string_view to_string(E value) {
  for (const auto& row : NameTable<E>::rows) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <NamedEnum E>
constexpr std::span<const RefusedName> refused_names() {
  if constexpr (requires { NameTable<E>::refused; }) {
    return NameTable<E>::refused;
  } else {
    return {};
  }
}

enum class Pipeline { distilled, ti2vid_two_stages };
template <>
struct NameTable<Pipeline> {
  static constexpr auto rows = std::to_array<Named<Pipeline>>({
      {Pipeline::distilled, "distilled"},
      {Pipeline::ti2vid_two_stages, "ti2vid_two_stages"},
  });
  static constexpr std::string_view kOther = "this pipeline of the LTX-2 family is not built";
  static constexpr auto refused = std::to_array<RefusedName>({
      {"ti2vid_one_stage", kOther},
      {"ti2vid_two_stages_hq", kOther},
      {"keyframe_interpolation", kOther},
      {"a2vid_two_stage", kOther},
      {"t2a_one_stage", kOther},
      {"ic_lora", kOther},
      {"hdr_ic_lora", "HDR is not built"},
      {"retake", kOther},
      {"dubit", kOther},
  });
};

enum class NoiseDevice { cpu, cuda };
template <>
struct NameTable<NoiseDevice> {
  static constexpr auto rows = std::to_array<Named<NoiseDevice>>({
      {NoiseDevice::cpu, "cpu"},
      {NoiseDevice::cuda, "cuda"},
  });
};

enum class Stage1Parallel { none, sp };
template <>
struct NameTable<Stage1Parallel> {
  static constexpr auto rows = std::to_array<Named<Stage1Parallel>>({
      {Stage1Parallel::none, "none"},
      {Stage1Parallel::sp, "sp"},
  });
  static constexpr auto refused = std::to_array<RefusedName>({
      {"tdp", "tiles are an approximation for upscaling: stage 2 only"},
  });
};

enum class Stage2Parallel { automatic, none, sp, tdp };
template <>
struct NameTable<Stage2Parallel> {
  static constexpr auto rows = std::to_array<Named<Stage2Parallel>>({
      {Stage2Parallel::automatic, "auto"},
      {Stage2Parallel::none, "none"},
      {Stage2Parallel::sp, "sp"},
      {Stage2Parallel::tdp, "tdp"},
  });
};

enum class Transport { automatic, peer, nccl };
template <>
struct NameTable<Transport> {
  static constexpr auto rows = std::to_array<Named<Transport>>({
      {Transport::automatic, "auto"},
      {Transport::peer, "peer"},
      {Transport::nccl, "nccl"},
  });
};

enum class TextParallel { shard, replicate };
template <>
struct NameTable<TextParallel> {
  static constexpr auto rows = std::to_array<Named<TextParallel>>({
      {TextParallel::shard, "shard"},
      {TextParallel::replicate, "replicate"},
  });
};

// `manual` has no word of its own: sizes are given in its place.
enum class TilingMode { automatic, off, manual };
template <>
struct NameTable<TilingMode> {
  static constexpr auto rows = std::to_array<Named<TilingMode>>({
      {TilingMode::automatic, "auto"},
      {TilingMode::off, "off"},
  });
};

enum class Device { automatic, cpu, cuda };
template <>
struct NameTable<Device> {
  static constexpr auto rows = std::to_array<Named<Device>>({
      {Device::automatic, "auto"},
      {Device::cpu, "cpu"},
      {Device::cuda, "cuda"},
  });
};

enum class Precision { automatic, fp32, bf16, fp8_cast, fp8_scaled_mm };
template <>
struct NameTable<Precision> {
  static constexpr auto rows = std::to_array<Named<Precision>>({
      {Precision::automatic, "auto"},
      {Precision::fp32, "fp32"},
      {Precision::bf16, "bf16"},
      {Precision::fp8_cast, "fp8_cast"},
      {Precision::fp8_scaled_mm, "fp8_scaled_mm"},
  });
  static constexpr std::string_view kHalf =
      "16-bit floats with 5 exponent bits overflow in this model and give black frames; use bf16";
  static constexpr std::string_view kNvfp4 = "NVFP4 weights are not built";
  static constexpr auto refused = std::to_array<RefusedName>({
      {"float16", kHalf},
      {"fp16", kHalf},
      {"half", kHalf},
      {"float32", "it is called fp32"},
      {"bfloat16", "it is called bf16"},
      {"nvfp4", kNvfp4},
      {"nvfp4_cast", kNvfp4},
      {"nvfp4_prequant", kNvfp4},
      {"nvfp4-cast", kNvfp4},
      {"nvfp4-prequant", kNvfp4},
      {"fp8", "say which way: fp8_cast or fp8_scaled_mm"},
  });
};

enum class Attention { automatic, math, flash, cudnn };
template <>
struct NameTable<Attention> {
  static constexpr auto rows = std::to_array<Named<Attention>>({
      {Attention::automatic, "auto"},
      {Attention::math, "math"},
      {Attention::flash, "flash"},
      {Attention::cudnn, "cudnn"},
  });
};

enum class Graphs { automatic, off };
template <>
struct NameTable<Graphs> {
  static constexpr auto rows = std::to_array<Named<Graphs>>({
      {Graphs::automatic, "auto"},
      {Graphs::off, "off"},
  });
};

enum class Offload { none, cpu, disk };
template <>
struct NameTable<Offload> {
  static constexpr auto rows = std::to_array<Named<Offload>>({
      {Offload::none, "none"},
      {Offload::cpu, "cpu"},
      {Offload::disk, "disk"},
  });
};

enum class Reproducible { run, world };
template <>
struct NameTable<Reproducible> {
  static constexpr auto rows = std::to_array<Named<Reproducible>>({
      {Reproducible::run, "run"},
      {Reproducible::world, "world"},
  });
};

enum class Resume { never, automatic, must };
template <>
struct NameTable<Resume> {
  static constexpr auto rows = std::to_array<Named<Resume>>({
      {Resume::never, "never"},
      {Resume::automatic, "auto"},
      {Resume::must, "must"},
  });
};

}  // namespace flotilla::config
