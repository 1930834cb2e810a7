// The GPU of this rank in tests on several: several ranks share one where there are not enough.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "comm/device_choice.h"
#include "support/mpi_main.h"

namespace flotilla::test {

inline bool have_gpus() { return comm::all_see_gpus(test::ranks().facts()); }

inline at::Device attached_gpu() {
  const auto choice = comm::choose_gpus(test::ranks().facts(), /*allow_shared=*/true);
  test::ranks().attach_gpus(choice);
  return {at::kCUDA,
          static_cast<c10::DeviceIndex>(choice[static_cast<size_t>(test::ranks().rank())])};
}

// Whether tensors of GPUs go through NCCL here.
inline bool on_nccl() {
  const auto& facts = test::ranks().facts();
  return test::ranks().world_size() > 1 &&
         comm::nccl_serves(comm::chosen_gpus(facts, comm::choose_gpus(facts, true)));
}

}  // namespace flotilla::test

#define FLOTILLA_NEEDS_GPUS() \
  if (!::flotilla::test::have_gpus()) GTEST_SKIP() << "no CUDA device (or a build without CUDA)"
