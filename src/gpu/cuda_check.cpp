#include "gpu/cuda_check.h"

#include <fmt/format.h>

namespace flotilla::gpu {

void check_cuda(cudaError_t code, std::string_view call, ErrorKind kind,
                std::source_location where) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  const bool no_memory = code == cudaErrorMemoryAllocation;
  fail(no_memory ? ErrorKind::memory : kind,
       fmt::format("{} failed: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)),
       where);
}

}  // namespace flotilla::gpu
