// Codes of the CUDA runtime as errors. Only for files that are built with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

#include "base/error.h"

namespace flotilla::gpu {

// Errors: `code` is not cudaSuccess; the message has the call and CUDA's own text. Memory that
// cannot be allocated is ErrorKind::memory whatever `kind` says. The code is taken out of CUDA's
// own record, so that no later launch is blamed for it.
void check_cuda(cudaError_t code, std::string_view call, ErrorKind kind = ErrorKind::internal,
                std::source_location where = std::source_location::current());

}  // namespace flotilla::gpu
