// What flotilla bench comm runs: the ways of exchanging heads and the collectives, each as a case
// with known results, and the clock around them. Times: the slowest rank's, sample by sample.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/rank_context.h"

namespace flotilla::app {

struct CommSettings {
  int64_t min_bytes = 0, max_bytes = 0;  // of a rank's q, k and v; each size four times the last
  std::vector<int64_t> tokens;           // of a clip; where given, these and not the bytes
  int64_t heads = 0, head_dim = 0;
  at::ScalarType dtype = at::kFloat;
  int warmup = 0, iters = 0;
  // A sample on a GPU is so many calls, one behind another between two waits for the device, of
  // those that need not wait for themselves. On a CPU it is one call.
  int calls = 1;
  bool collectives = true;  // beside the exchanges and the plain all-to-all
  double limit_s = 0;  // of one operation at one size, about: fewer samples then, three at least

  int64_t width() const { return heads * head_dim; }
  int64_t row_bytes() const { return width() * static_cast<int64_t>(c10::elementSize(dtype)); }
  // Tokens of a rank, ascending, each once.
  std::vector<int64_t> sizes(int64_t ranks) const;
};

struct CommRecord {
  std::string name;
  int64_t bytes = 0;
  int64_t tokens = 0;  // of a rank
  int calls = 1, iters = 0;
  double min_us = 0, p50_us = 0, p99_us = 0;  // of a call
  double algbw = 0, busbw = 0;                // GB/s
  double vs_all_to_all = 0;                   // the yardstick's p50 over this one's
  int64_t wrong = 0;                          // values, on all ranks
};

struct CommResults {
  std::vector<CommRecord> records;
  bool has_nccl = false;  // the plain all-to-all is NCCL's, not MPI's
  std::string transports;
  std::string missing;  // why there are no rows of the peers' memory; empty: there are
};

// Collective. `device`: the CPU, or the GPU that was attached. Errors: those of the exchanges.
CommResults measure_communication(comm::RankContext& ranks, const CommSettings& settings,
                                  at::Device device);

}  // namespace flotilla::app
