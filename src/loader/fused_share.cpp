#include "loader/fused_share.h"

#include <ATen/ATen.h>

#include <utility>

namespace flotilla::loader {

FusedShare::FusedShare(std::shared_ptr<WeightArena> arena, ArenaShare share, Clean clean,
                       at::Device clean_device)
    : arena_(std::move(arena)),
      share_(std::move(share)),
      clean_(clean),
      clean_device_(clean_device) {}

void FusedShare::keep_clean(const ArenaPiece& piece) {
  if (clean_ == Clean::copied && !copies_.contains(piece.name)) {
    copies_.emplace(piece.name, arena_->bytes_of(piece).to(clean_device_, /*non_blocking=*/false,
                                                           /*copy=*/true));
  }
  changed_.emplace(piece.name, &piece);
}

void FusedShare::fuse(const LoraSet& set, LoraFactors& factors, LoraAggregation aggregation) {
  restore();
  try {
    for (const ArenaPiece& piece : share_.pieces) {
      if (!set.changes(piece.name)) continue;
      keep_clean(piece);
      fuse_piece(set, piece, factors, aggregation);
    }
  } catch (...) {
    restore();
    throw;
  }
}

void FusedShare::fuse_piece(const LoraSet& set, const ArenaPiece& piece, LoraFactors& factors,
                            LoraAggregation aggregation) const {
  const at::Tensor rows = arena_->rows(piece);
  const at::Tensor scales = arena_->row_scales(piece);
  if (!scales.defined()) {
    set.fuse_rows(piece.name, piece.first_row, rows, factors, aggregation);
    return;
  }
  const at::Tensor wide = rows.to(at::kFloat) * scales.unsqueeze(1);
  set.fuse_rows(piece.name, piece.first_row, wide, factors, aggregation);
  quantise_rows(wide, rows, scales);
}

void FusedShare::restore() {
  for (auto at = changed_.begin(); at != changed_.end(); at = changed_.erase(at)) {
    const auto& [name, piece] = *at;
    if (clean_ == Clean::copied) {
      arena_->bytes_of(*piece).copy_(copies_.at(name));
    } else {
      arena_->read_rows(*piece);
    }
  }
}

void FusedShare::read_factors(const LoraSet& set, LoraFactors& factors) const {
  for (const ArenaPiece& piece : share_.pieces)
    set.read_factors(piece.name, piece.first_row, piece.first_row + piece.num_rows, factors);
}

int64_t FusedShare::clean_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, rows] : copies_) bytes += static_cast<int64_t>(rows.nbytes());
  return bytes;
}

}  // namespace flotilla::loader
