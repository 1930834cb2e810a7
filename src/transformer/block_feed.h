// Weights of blocks that come to the device one block after the other, while the block before
// computes: for GPUs, and hosts, that hold less than the model. What lies outside of the blocks
// stays on the device. The numbers are those of weights that lie there all the time; a pass takes
// as long as bringing all blocks does, where that is longer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "loader/weight_arena.h"
#include "transformer/weights.h"

namespace flotilla::transformer {

// Where the weights of blocks are when it is not their turn.
enum class WeightHome {
  device,  // always at hand
  host,    // all of them in an arena on the host
  file,    // in their file alone: they are read anew in each pass
};

// Memory that the weights take.
struct HeldWeights {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;  // beside those of the device; 0 when the device is the CPU

  bool operator==(const HeldWeights&) const = default;
};

class BlockFeed {
 public:
  virtual ~BlockFeed() = default;

  // `weights`, views of the arena, in the places where the feed puts them. Those of a block are
  // there for work that the current stream gets between its bring() and the next one.
  virtual TransformerWeights placed(TransformerWeights weights) const = 0;
  // A pass calls it for all blocks in turn, from 0 on. Errors: as FileStorage::read_rows() when
  // they come from a file.
  virtual void bring(int64_t block) = 0;
  // The arena has changed: brings what lies outside of the blocks up to date.
  virtual void refresh() = 0;
  virtual HeldWeights held() const = 0;
};

// `arena`: of all weights of the transformer, audited; on the CPU and loaded (WeightHome::host), or
// on at::kMeta (WeightHome::file), which reads what lies outside of the blocks here. Errors:
// FileStorage::read_rows().
std::unique_ptr<BlockFeed> make_block_feed(std::shared_ptr<loader::WeightArena> arena,
                                           WeightHome home, at::Device device);

// What the weights of this arena take; its tables are enough.
HeldWeights held_weights(const loader::WeightArena& arena, WeightHome home, bool on_gpu);

}  // namespace flotilla::transformer
