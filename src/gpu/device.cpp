#include "gpu/device.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>

#include <fstream>
#include <limits>
#include <sstream>
#ifdef FLOTILLA_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#endif

#include "base/error.h"

namespace flotilla::gpu {
namespace {

// The value of "key : value" in a file of /proc, or "".
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

int64_t host_memory_bytes() {
  int64_t bytes = 0;
  std::istringstream(proc_value("/proc/meminfo", "MemTotal")) >> bytes;
  bytes *= 1024;
  // Slurm and containers bound a job by its control group (version 2, then 1).
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t limit = 0;
    std::ifstream in(path);
    if (in >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

// Of the machine, or what a control group leaves of it; pages of files count as free.
int64_t free_host_bytes() {
  int64_t bytes = 0;
  std::istringstream(proc_value("/proc/meminfo", "MemAvailable")) >> bytes;
  bytes *= 1024;
  int64_t limit = 0;
  int64_t held = 0;
  std::ifstream most("/sys/fs/cgroup/memory.max");
  std::ifstream current("/sys/fs/cgroup/memory.current");
  if (!(most >> limit) || !(current >> held)) return bytes;
  std::ifstream parts("/sys/fs/cgroup/memory.stat");
  std::string name;
  for (int64_t value = 0; parts >> name >> value;)
    if (name == "inactive_file" || name == "active_file") held -= value;
  return std::min(bytes, std::max<int64_t>(0, limit - held));
}

}  // namespace

bool cuda_available() {
#ifdef FLOTILLA_CUDA
  return at::hasCUDA() && c10::cuda::device_count() > 0;
#else
  return false;
#endif
}

std::string device_name(at::Device device) {
#ifdef FLOTILLA_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, std::max<int>(device.index(), 0)) != cudaSuccess)
      return "CUDA device";
    return properties.name;
  }
#endif
  FLOTILLA_ASSERT(device.is_cpu());
  const std::string name = proc_value("/proc/cpuinfo", "model name");
  return name.empty() ? "CPU" : name;
}

DeviceFacts device_facts(at::Device device) {
  DeviceFacts facts{device_name(device), std::nullopt};
#ifdef FLOTILLA_CUDA
  cudaDeviceProp properties{};
  if (device.is_cuda() &&
      cudaGetDeviceProperties(&properties, std::max<int>(device.index(), 0)) == cudaSuccess)
    facts.capability = Capability{properties.major, properties.minor};
#endif
  return facts;
}

void use_device(at::Device device) {
#ifdef FLOTILLA_CUDA
  if (device.is_cuda()) c10::cuda::set_device(device.index());
#else
  FLOTILLA_ASSERT(device.is_cpu());
#endif
}

int64_t total_memory_bytes(at::Device device) {
#ifdef FLOTILLA_CUDA
  if (device.is_cuda()) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, std::max<int>(device.index(), 0)) != cudaSuccess)
      return 0;
    return static_cast<int64_t>(properties.totalGlobalMem);
  }
#endif
  FLOTILLA_ASSERT(device.is_cpu());
  return host_memory_bytes();
}

int64_t free_memory_bytes(at::Device device) {
#ifdef FLOTILLA_CUDA
  if (device.is_cuda()) {
    const auto index = std::max<c10::DeviceIndex>(device.index(), 0);
    const c10::cuda::CUDAGuard guard(index);
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    auto bytes = static_cast<int64_t>(free);
    if (c10::cuda::CUDACachingAllocator::get()->initialized()) {
      const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(index);
      bytes += stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
    }
    return bytes;
  }
#endif
  FLOTILLA_ASSERT(device.is_cpu());
  return free_host_bytes();
}

void disable_tf32() {
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setAllowTF32CuBLAS(false);
}

void choose_attention(AttentionBackend backend, at::DeviceType device) {
  using Backend = AttentionBackend;
  at::Context& context = at::globalContext();
  if (backend == Backend::cudnn && device != at::kCUDA) {
    fail(ErrorKind::machine, "attention: cudnn needs a CUDA device; use auto, flash or math");
  }
  const bool automatic = backend == Backend::automatic;
  context.setSDPUseCuDNN(automatic || backend == Backend::cudnn);
  context.setSDPUseFlash(automatic || backend == Backend::flash);
  context.setSDPUseMemEfficient(automatic);
  context.setSDPUseMath(true);
  if (device == at::kCUDA) {
    const auto order = {at::SDPBackend::cudnn_attention, at::SDPBackend::flash_attention,
                        at::SDPBackend::efficient_attention, at::SDPBackend::math};
    std::vector<int64_t> codes;
    for (const auto entry : order) codes.push_back(static_cast<int64_t>(entry));
    context.setSDPPriorityOrder(codes);
  }
}

void synchronize(at::Device device) {
#ifdef FLOTILLA_CUDA
  if (device.is_cuda()) c10::cuda::device_synchronize();
#else
  FLOTILLA_ASSERT(device.is_cpu());
#endif
}

int64_t peak_device_bytes(at::Device device) {
#ifdef FLOTILLA_CUDA
  if (device.is_cuda()) {
    // Before its first use the allocator has nothing to tell.
    if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return 0;
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(
        std::max<c10::DeviceIndex>(device.index(), 0));
    return stats.reserved_bytes[0].peak;
  }
#endif
  FLOTILLA_ASSERT(device.is_cpu());
  return 0;
}

void start_device_peak(at::Device device) {
#ifdef FLOTILLA_CUDA
  if (device.is_cuda() && c10::cuda::CUDACachingAllocator::get()->initialized()) {
    c10::cuda::CUDACachingAllocator::resetPeakStats(std::max<c10::DeviceIndex>(device.index(), 0));
  }
#endif
  FLOTILLA_ASSERT(device.is_cpu() || device.is_cuda());
}

}  // namespace flotilla::gpu
