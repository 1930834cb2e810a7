// One share of an arena into which LoRAs are fused and out of which they come again. Clean rows are
// copied before they change for the first time, so swapping back gives the first bytes and what no
// LoRA touches costs no memory. One process; parallel/shared_weights.h makes all shares one.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "loader/lora.h"
#include "loader/weight_arena.h"

namespace flotilla::loader {

class FusedShare {
 public:
  // Without a copy, clean rows are read from the file again.
  enum class Clean { copied, read_again };
  // The arena's rows of `share` must be loaded before the first fuse(). `clean_device`: where the
  // copies are kept.
  FusedShare(std::shared_ptr<WeightArena> arena, ArenaShare share, Clean clean,
             at::Device clean_device);

  FusedShare(FusedShare&&) = default;

  // Makes the share hold the clean rows with exactly this set fused in. When it throws, the rows
  // are clean. Errors: see LoraSet::fuse_rows; with Clean::read_again, a file that cannot be read.
  void fuse(const LoraSet& set, LoraFactors& factors,
            LoraAggregation aggregation = LoraAggregation::bfloat16);
  // Makes all rows clean.
  void restore();
  // Reads what fuse() of this set needs.
  void read_factors(const LoraSet& set, LoraFactors& factors) const;

  const ArenaShare& share() const { return share_; }
  int64_t clean_bytes() const;

 private:
  void keep_clean(const ArenaPiece& piece);
  // Rows with scales are fused as float32 and get new scales.
  void fuse_piece(const LoraSet& set, const ArenaPiece& piece, LoraFactors& factors,
                  LoraAggregation aggregation) const;

  std::shared_ptr<WeightArena> arena_;
  ArenaShare share_;
  Clean clean_;
  at::Device clean_device_;
  std::map<std::string, at::Tensor> copies_;          // by weight: the bytes of the share's rows
  std::map<std::string, const ArenaPiece*> changed_;  // of share_
};

}  // namespace flotilla::loader
