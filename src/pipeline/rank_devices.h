// The device that each rank of a job computes on: the CPU, or a GPU by comm/device_choice.h.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "comm/rank_context.h"
#include "config/job.h"
#include "pipeline/ranks.h"

namespace flotilla::pipeline {

struct RankDevices {
  at::Device own = at::kCPU;  // with its index, if it is a GPU
  std::vector<int> gpus;      // CUDA's number of each rank's GPU, in its process; empty on CPUs
  int64_t memory_bytes = 0;   // of the CPU's, or of the smallest share of a GPU: alike on all ranks
};

// What the ranks know of each other, or this process of itself. Local.
std::vector<comm::RankFacts> facts_of(const Ranks& ranks, const comm::Environment& environment);

// `job.device` is decided. Local, alike on all ranks but for `own`. Errors (ErrorKind::machine): a
// rank has no GPU, or shares one without allow_shared_device.
RankDevices place_ranks(const config::Job& job, const std::vector<comm::RankFacts>& facts,
                        int rank);

}  // namespace flotilla::pipeline
