// Weights of several ranks, each of which holds all of them in its arena: every rank reads a share
// of the file and passes it on, and keeps, restores and fuses LoRAs into that share alone. So a
// file is read once a machine, and a swap costs each rank 1/N of the work and of the clean copy.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "loader/fused_share.h"
#include "loader/weight_arena.h"

namespace flotilla::parallel {

// Collective; begins with an agreement, so a rank that failed before it may go to an agreement of
// its caller instead. Errors of reading are agreed; then nothing was exchanged.
void load_shared(loader::WeightArena& arena, comm::Communicator& communicator);

// Headers for all ranks: the driver reads them and tells the others, its errors too. Collective,
// and begins with an agreement as load_shared() does; the files must be opened in the same order on
// all ranks. `read`: how the driver reads.
loader::ReadHeaders headers_from_driver(comm::Communicator& communicator,
                                        loader::ReadHeaders read = loader::read_headers);

struct SharedWeightsOptions {
  loader::FusedShare::Clean clean = loader::FusedShare::Clean::copied;
  at::Device clean_device = at::kCPU;
  loader::LoraAggregation aggregation = loader::LoraAggregation::bfloat16;
};

// A loaded arena whose LoRAs can be swapped.
class SharedWeights {
 public:
  // `communicator`: of the ranks that loaded the arena together; null: this process alone did.
  SharedWeights(std::shared_ptr<loader::WeightArena> arena, comm::Communicator* communicator,
                const SharedWeightsOptions& options = {});

  // Reads and checks this rank's factors of a set that comes later; they stay in host memory until
  // release_factors(). Collective; errors (ErrorKind::input) are agreed.
  void read_factors(const loader::LoraSet& set);
  void release_factors() { factors_.clear(); }
  // The same for all but those of these files.
  void release_factors_but(std::span<const loader::LoraWithStrength> loras) {
    factors_.keep_only(loras);
  }

  // Makes the weights of all ranks the clean ones with exactly this set fused in; nothing to do
  // when they are that already. Not while a forward runs. Collective. Errors, agreed: see
  // LoraSet::fuse_rows, after which the weights of all ranks are clean; ErrorKind::config: without
  // a clean copy (Clean::read_again), a set other than the first one.
  void set_loras(const loader::LoraSet& set);

  // Of this rank, on the host or where SharedWeightsOptions says.
  int64_t clean_bytes() const { return own_.clean_bytes(); }

 private:
  // For each rank, from the first to the last byte of its share that one of the sets changes.
  std::vector<comm::ByteRange> changed_ranges(const loader::LoraSet& a,
                                              const loader::LoraSet& b) const;
  void gather(std::span<const comm::ByteRange> ranges);

  std::shared_ptr<loader::WeightArena> arena_;
  comm::Communicator* communicator_;
  SharedWeightsOptions options_;
  std::vector<loader::ArenaShare> shares_;  // of all ranks
  loader::FusedShare own_;
  loader::LoraFactors factors_;
  loader::LoraSet current_;
};

}  // namespace flotilla::parallel
