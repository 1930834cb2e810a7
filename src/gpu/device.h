// The device that a rank computes on, and how much memory it has. Without CUDA: the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace flotilla::gpu {

// Whether this build has CUDA and a device can be used.
bool cuda_available();
// "NVIDIA H200", or the processor's name.
std::string device_name(at::Device device);
// Compute capability: 8.9 is {8, 9}.
struct Capability {
  int major = 0;
  int minor = 0;

  auto operator<=>(const Capability&) const = default;
  std::string text() const { return std::to_string(major) + "." + std::to_string(minor); }
};
// What a device can be chosen or refused by.
struct DeviceFacts {
  std::string name;
  std::optional<Capability> capability;  // of GPUs
};
DeviceFacts device_facts(at::Device device);
// Makes a GPU the one that CUDA calls of this thread mean; nothing to do for the CPU.
void use_device(at::Device device);
// All memory of the device (CPU: of the machine, or what a control group leaves of it). The total,
// not what is free: plans made from it must be the same in every run on a machine.
int64_t total_memory_bytes(at::Device device);
// What of it could be had now, by this process: also what Torch holds there without using it.
int64_t free_memory_bytes(at::Device device);
// Float32 means float32 from here on: no TF32 in convolutions and matrix products of CUDA
// libraries.
void disable_tf32();
enum class AttentionBackend { automatic, math, flash, cudnn };
// Which of Torch's attention kernels run on devices of this type. Automatic: on CUDA cuDNN first,
// which is 1.7 times as fast as flash on Hopper (Torch's own order has it last); on the CPU flash.
// A choice by hand leaves the plain (math) path for calls that the chosen kernel cannot serve, e.g.
// with a mask. Errors (ErrorKind::machine): cudnn on a CPU.
void choose_attention(AttentionBackend backend, at::DeviceType device);
// Waits until all work that was given to the device is done; nothing to do on the CPU.
void synchronize(at::Device device);
// Most memory that Torch has held on the device, since start_device_peak() when there was one; 0 on
// the CPU.
int64_t peak_device_bytes(at::Device device);
// Counts the peak anew, from what is held now.
void start_device_peak(at::Device device);

}  // namespace flotilla::gpu
