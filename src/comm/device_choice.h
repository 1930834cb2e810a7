// Which GPU each rank of a job uses: decided from what CUDA shows to each of them, alike on all
// ranks, before any work. Plain logic on facts; where the facts come from: rank_context.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/visible_gpus.h"

namespace flotilla::comm {

// What a rank knows of its place; ranks exchange it at the start.
struct RankFacts {
  std::string host;
  int64_t pid = 0;
  std::string cores;                       // "0-3,8": those that the rank may run on
  std::optional<std::string> cuda_filter;  // CUDA_VISIBLE_DEVICES, only to explain what is visible
  std::vector<gpu::Gpu> gpus;              // in the order of CUDA's numbers

  std::string pack() const;  // for the way to the other ranks
  static RankFacts unpack(const std::string& text);
  bool operator==(const RankFacts&) const = default;
};

// What CUDA_VISIBLE_DEVICES asks for, in words: "is not set", "is empty, which hides all GPUs",
// "names 2 GPUs by index", "names 1 MIG instance by UUID". The variable itself is never changed.
std::string describe_cuda_filter(const std::optional<std::string>& filter);

bool all_see_gpus(std::span<const RankFacts> ranks);

// The GPU of each rank, by CUDA's number in that rank's process. A rank that sees V GPUs takes
// number (rank modulo V), so that it does not matter whether a launcher shows all GPUs to all ranks
// or one to each; where another rank has that one already, the first that nobody has.
// Errors (ErrorKind::machine, the same text on all ranks): a rank sees no GPU; two ranks come to
// one GPU, unless `allow_shared`.
std::vector<int> choose_gpus(std::span<const RankFacts> ranks, bool allow_shared);

// The GPUs that choose_gpus() chose.
std::vector<gpu::Gpu> chosen_gpus(std::span<const RankFacts> ranks, std::span<const int> choice);

// NCCL takes one rank for each GPU, and takes MIG instances of one GPU for that GPU.
bool nccl_serves(std::span<const gpu::Gpu> chosen);

// The smallest share of a GPU's memory that a rank has: plans made from it are alike on all ranks.
int64_t memory_bytes_per_rank(std::span<const gpu::Gpu> chosen);

// The number of the GPU `uuid` in a rank's process; nothing where it is hidden there.
std::optional<int> index_of(const RankFacts& rank, std::string_view uuid);

// A line for each rank: host, GPU, UUID, bus, name, cores. `links[r][p]` says how rank r reaches
// rank p's memory; empty: not told.
std::vector<std::string> device_table(std::span<const RankFacts> ranks, std::span<const int> choice,
                                      const std::vector<std::vector<gpu::PeerLink>>& links = {});

}  // namespace flotilla::comm
