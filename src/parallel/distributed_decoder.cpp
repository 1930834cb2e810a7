#include "parallel/distributed_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <utility>

#include "base/error.h"
#include "vae/frame_blender.h"

namespace flotilla::parallel {
namespace {

constexpr int kTag = 0;
constexpr int kDriver = 0;
// Before each piece its rank says kGo, or kStop when it has failed; the driver answers kGo when it
// wants the piece, else kStop, and the rank is done.
constexpr const char* kGo = "go";
constexpr const char* kStop = "stop";

// Counts tiles for a callback.
class TileCount {
 public:
  TileCount(const vae::TileCallback& report, int64_t total) : report_(report), total_(total) {}
  void add(int64_t tiles) {
    done_ += tiles;
    if (report_) report_(done_, total_);
  }

 private:
  const vae::TileCallback& report_;
  int64_t total_;
  int64_t done_ = 0;
};

// Runs work until something fails, keeps that error and skips what follows.
class Guard {
 public:
  template <typename Work>
  void run(Work&& work) {
    if (error_) return;
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  bool failed() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

// One rank's tiles of a temporal tile of the grid, decoded on demand.
class OwnTiles {
 public:
  OwnTiles(const DecodePlan& plan, TileCount& count) : plan_(plan), count_(count) {}

  void open(const vae::VideoDecoder* decoder, const at::Tensor& latent,
            const std::vector<TileShare>& shares, int rank) {
    tiles_.clear();
    for (const auto& [tile_idx, owner] : shares) {
      if (owner != rank) continue;
      FLOTILLA_ASSERT(decoder != nullptr);
      tiles_.try_emplace(tile_idx, *decoder, plan_.grid.tile_of(latent, tile_idx),
                         plan_.tiles[static_cast<size_t>(tile_idx)],
                         [this](int64_t, int64_t) { count_.add(1); });
    }
  }

  // [num_frames, H, W, 3]; a decoded batch ends where a piece ends.
  at::Tensor next_piece(int64_t tile_idx, int64_t num_frames) {
    return with_context(fmt::format("tile {} of {}", tile_idx + 1, plan_.grid.num_tiles()), [&] {
      OwnTile& tile = tiles_.at(tile_idx);
      if (tile.left == 0) {
        tile.frames = tile.stream.next();
        FLOTILLA_ASSERT(tile.frames.defined());
        tile.left = tile.frames.size(0);
      }
      FLOTILLA_ASSERT(tile.left >= num_frames);
      const at::Tensor piece = tile.frames.narrow(0, tile.frames.size(0) - tile.left, num_frames);
      tile.left -= num_frames;
      if (tile.left == 0) tile.frames.reset();
      return piece.contiguous();
    });
  }

 private:
  struct OwnTile {
    template <typename... Arguments>
    explicit OwnTile(Arguments&&... arguments) : stream(std::forward<Arguments>(arguments)...) {}
    vae::FrameStream stream;
    at::Tensor frames;  // the batch at hand
    int64_t left = 0;   // of its frames
  };

  const DecodePlan& plan_;
  TileCount& count_;
  std::map<int64_t, OwnTile> tiles_;
};

// Blends the pieces of one temporal batch in the order of the plan, whatever order they come in.
class BatchBlender {
 public:
  BatchBlender(vae::FrameBlender& blender, size_t num_pieces)
      : blender_(blender), pieces_(num_pieces) {}
  void add(size_t position, at::Tensor piece) {
    pieces_.at(position) = std::move(piece);
    while (next_ < pieces_.size() && pieces_[next_].defined()) {
      blender_.add(pieces_[next_]);
      pieces_[next_++].reset();
    }
  }

 private:
  vae::FrameBlender& blender_;
  std::vector<at::Tensor> pieces_;
  size_t next_ = 0;
};

// The driver's part: decodes its own tiles, takes the pieces of the others, blends all.
class Driver {
 public:
  Driver(const DecodePlan& plan, comm::Communicator* ranks, const vae::FrameBatchCallback& emit,
         TileCount& count)
      : plan_(plan),
        ranks_(ranks),
        ended_(ranks == nullptr ? 1 : static_cast<size_t>(ranks->world_size())),
        count_(count),
        own_(plan, count),
        blender_(plan.pieces, emit) {}

  void run(const vae::VideoDecoder* decoder, const at::Tensor& latent,
           const std::vector<std::vector<TileShare>>& batches) {
    options_ = latent.options().dtype(at::kFloat);
    for (const auto& shares : batches) {
      guard_.run([&] { own_.open(decoder, latent, shares, kDriver); });
      for (int64_t i = 0; i < plan_.pieces_per_tile(); ++i) run_batch(shares, i);
    }
    guard_.rethrow();
  }

 private:
  bool goes_on() const { return !guard_.failed() && !rank_failed_; }

  // Piece `i` of each of the tiles; also after a failure, to end the ranks that still work.
  void run_batch(const std::vector<TileShare>& shares, int64_t i) {
    BatchBlender batch(blender_, shares.size());
    for (const auto& [tile_idx, rank] : shares) {
      at::Tensor piece;
      if (rank != kDriver) {
        piece = receive(rank, tile_idx, i);
      } else if (goes_on()) {
        guard_.run([&] { piece = own_.next_piece(tile_idx, num_frames()); });
      }
      if (!goes_on()) continue;
      guard_.run([&] { batch.add(static_cast<size_t>(tile_idx) % shares.size(), piece); });
    }
    ++batch_idx_;
  }

  // Undefined when the decode does not go on.
  at::Tensor receive(int rank, int64_t tile_idx, int64_t i) {
    const auto slot = static_cast<size_t>(rank);
    if (ended_[slot]) return {};
    const bool has_failed = ranks_->receive_text(rank, kTag) != kGo;
    rank_failed_ = rank_failed_ || has_failed;
    at::Tensor piece;
    if (goes_on()) guard_.run([&] { piece = at::empty(shape_of(tile_idx), options_); });
    ended_[slot] = !goes_on();
    if (!has_failed) ranks_->send(goes_on() ? kGo : kStop, rank, kTag);
    if (!goes_on()) return {};
    ranks_->receive(piece, rank, kTag);
    // The tiles that are behind this piece; all pieces of a tile make all its tiles.
    const int64_t tiles = plan_.tiles[static_cast<size_t>(tile_idx)].num_tiles();
    const int64_t pieces = plan_.pieces_per_tile();
    guard_.run([&] { count_.add(tiles * (i + 1) / pieces - tiles * i / pieces); });
    return piece;
  }

  int64_t num_frames() const { return plan_.pieces.frames[batch_idx_].output.size(); }
  std::array<int64_t, 4> shape_of(int64_t tile_idx) const {
    const vae::Tile place = plan_.grid.tile(tile_idx);
    return {num_frames(), place.rows.output.size(), place.columns.output.size(), 3};
  }

  const DecodePlan& plan_;
  comm::Communicator* ranks_;
  std::vector<bool> ended_;  // of each rank: nothing more will come
  bool rank_failed_ = false;
  Guard guard_;  // this rank's own failure
  TileCount& count_;
  OwnTiles own_;
  vae::FrameBlender blender_;
  at::TensorOptions options_;
  size_t batch_idx_ = 0;
};

// The part of the other ranks.
void serve(const DecodePlan& plan, comm::Communicator& ranks, const vae::VideoDecoder* decoder,
           const at::Tensor& latent, const std::vector<std::vector<TileShare>>& batches,
           TileCount& count) {
  Guard guard;
  OwnTiles own(plan, count);
  size_t batch_idx = 0;
  for (const auto& shares : batches) {
    guard.run([&] { own.open(decoder, latent, shares, ranks.rank()); });
    for (int64_t i = 0; i < plan.pieces_per_tile(); ++i) {
      const int64_t num_frames = plan.pieces.frames[batch_idx++].output.size();
      for (const auto& [tile_idx, rank] : shares) {
        if (rank != ranks.rank()) continue;
        at::Tensor piece;
        guard.run([&] { piece = own.next_piece(tile_idx, num_frames); });
        ranks.send(guard.failed() ? kStop : kGo, kDriver, kTag);
        guard.rethrow();
        if (ranks.receive_text(kDriver, kTag) != kGo) return;
        ranks.send(piece, kDriver, kTag);
      }
    }
  }
}

}  // namespace

DistributedDecoder::DistributedDecoder(const DecodePlan& plan, comm::Communicator* ranks)
    : plan_(plan),
      ranks_(ranks),
      batches_(deal_tiles(plan.grid, ranks == nullptr ? 1 : ranks->world_size())) {}

bool DistributedDecoder::has_tiles() const {
  const int rank = ranks_ == nullptr ? kDriver : ranks_->rank();
  return std::any_of(batches_.begin(), batches_.end(), [rank](const auto& shares) {
    return std::any_of(shares.begin(), shares.end(),
                       [rank](const TileShare& share) { return share.rank == rank; });
  });
}

void DistributedDecoder::decode(const vae::VideoDecoder* decoder, const at::Tensor& latent,
                                const vae::FrameBatchCallback& on_frames,
                                const vae::TileCallback& on_tile) const {
  FLOTILLA_ASSERT(plan_.fits(latent) && (decoder != nullptr || !has_tiles()));
  TileCount count(on_tile, plan_.num_tiles());
  if (ranks_ != nullptr && !ranks_->is_driver()) {
    serve(plan_, *ranks_, decoder, latent, batches_, count);
  } else if (plan_.grid.num_tiles() == 1) {
    decoder->decode_frames(latent, plan_.tiles.front(), on_frames, on_tile);
  } else {
    Driver(plan_, ranks_, on_frames, count).run(decoder, latent, batches_);
  }
}

}  // namespace flotilla::parallel
