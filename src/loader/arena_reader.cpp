#include "loader/arena_reader.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace flotilla::loader {
namespace {

// Large enough that a read's fixed cost does not count, small enough that a weight of usual size
// keeps several threads busy.
constexpr int64_t kBlockBytes = int64_t{8} << 20;
constexpr int64_t kScaleAlignment = 16;

// Some rows of a piece.
struct Block {
  const ArenaPiece* piece = nullptr;
  int64_t row = 0;  // within the piece
  int64_t num_rows = 0;
};

int64_t row_bytes(const WeightArena& arena, const ArenaPiece& piece) {
  return static_cast<int64_t>(arena.rows(piece).nbytes()) / piece.num_rows;
}

std::vector<Block> cut(const WeightArena& arena, std::span<const ArenaPiece* const> pieces) {
  std::vector<Block> blocks;
  for (const ArenaPiece* piece : pieces) {
    const int64_t rows = std::max<int64_t>(1, kBlockBytes / row_bytes(arena, *piece));
    for (int64_t row = 0; row < piece->num_rows; row += rows)
      blocks.push_back({piece, row, std::min(rows, piece->num_rows - row)});
  }
  return blocks;
}

// A block's rows and their scales, which are undefined where there are none.
struct Rows {
  at::Tensor values;
  at::Tensor scales;
};

Rows rows_of(const WeightArena& arena, const Block& block) {
  const at::Tensor scales = arena.row_scales(*block.piece);
  return {arena.rows(*block.piece).narrow(0, block.row, block.num_rows),
          scales.defined() ? scales.narrow(0, block.row, block.num_rows) : scales};
}

void read(const WeightArena& arena, const Block& block, const Rows& into) {
  const int64_t first = block.piece->first_row + block.row;
  arena.file_storage().read_rows(block.piece->name, first, first + block.num_rows, into.values,
                                 into.scales);
}

// The error of the first block that failed; blocks behind one that failed are left out.
class FirstError {
 public:
  void set(size_t block, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (block < block_) error_ = std::move(error);
    block_ = std::min(block_, block);
  }
  bool is_set() const {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  mutable std::mutex mutex_;
  size_t block_ = SIZE_MAX;
  std::exception_ptr error_;
};

// Threads that run `work` until it returns; joined at the end.
class Threads {
 public:
  Threads(int count, const std::function<void()>& work) {
    const bool inference = c10::InferenceMode::is_enabled();  // of a thread, not inherited
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([=] {
        const c10::InferenceMode mode(inference);
        work();
      });
    }
  }
  ~Threads() { join(); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  void join() {
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  std::vector<std::thread> threads_;
};

void read_to_host(const WeightArena& arena, const std::vector<Block>& blocks, int num_threads) {
  if (num_threads == 1) {
    for (const Block& block : blocks) read(arena, block, rows_of(arena, block));
    return;
  }
  std::atomic<size_t> next{0};
  FirstError error;
  Threads threads(num_threads, [&] {
    for (size_t i = next++; i < blocks.size() && !error.is_set(); i = next++) {
      try {
        read(arena, blocks[i], rows_of(arena, blocks[i]));
      } catch (...) {
        error.set(i, std::current_exception());
      }
    }
  });
  threads.join();
  error.rethrow();
}

// Page-locked buffers between the threads that read and the one that copies to the device. Each is
// free, being filled, full, or being copied.
class Staging {
 public:
  Staging(int count, int64_t bytes) {
    const auto options = at::TensorOptions(at::kByte).pinned_memory(true);
    for (int slot = 0; slot < count; ++slot) {
      buffers_.push_back(at::empty({bytes}, options));
      free_.push_back(slot);
    }
  }

  int size() const { return static_cast<int>(buffers_.size()); }
  // Views of the buffer in the form of `rows`.
  Rows like(int slot, const Rows& rows) const {
    const at::Tensor& buffer = buffers_[static_cast<size_t>(slot)];
    const auto view = [&](int64_t begin, const at::Tensor& form) {
      return buffer.narrow(0, begin, static_cast<int64_t>(form.nbytes()))
          .view(form.scalar_type())
          .view(form.sizes());
    };
    if (!rows.scales.defined()) return {view(0, rows.values), {}};
    return {view(0, rows.values), view(scales_begin(rows.values), rows.scales)};
  }
  static int64_t scales_begin(const at::Tensor& values) {
    const auto bytes = static_cast<int64_t>(values.nbytes());
    return (bytes + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
  }

  // Wait; nothing once end() was called.
  std::optional<int> take_free() { return take(free_); }
  std::optional<std::pair<size_t, int>> take_full() { return take(full_); }
  void give_free(int slot) { give(free_, slot); }
  void give_full(size_t block, int slot) { give(full_, std::pair(block, slot)); }
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  template <typename Item>
  std::optional<Item> take(std::deque<Item>& queue) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !queue.empty(); });
    if (ended_) return std::nullopt;
    const Item item = queue.front();
    queue.pop_front();
    return item;
  }
  template <typename Item>
  void give(std::deque<Item>& queue, Item item) {
    const std::lock_guard lock(mutex_);
    queue.push_back(item);
    changed_.notify_all();
  }

  std::vector<at::Tensor> buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> free_;
  std::deque<std::pair<size_t, int>> full_;  // with the number of the block
  bool ended_ = false;
};

// Copies of buffers that are under way, in their order.
class Copies {
 public:
  Copies(Staging& staging, at::Device device) : staging_(staging), device_(device) {}
  // On the device's current stream.
  void start(int slot, const Rows& from, const Rows& to) {
    to.values.copy_(from.values, /*non_blocking=*/true);
    if (to.scales.defined()) to.scales.copy_(from.scales, /*non_blocking=*/true);
    c10::Event done(device_.type());
    done.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    running_.emplace_back(slot, std::move(done));
  }
  // Gives back buffers until no more than `most` are under way.
  void wait(size_t most) {
    while (running_.size() > most) {
      running_.front().second.synchronize();
      staging_.give_free(running_.front().first);
      running_.pop_front();
    }
  }

 private:
  Staging& staging_;
  at::Device device_;
  std::deque<std::pair<int, c10::Event>> running_;
};

int64_t most_bytes(const WeightArena& arena, const std::vector<Block>& blocks) {
  int64_t most = 0;
  for (const Block& block : blocks) {
    const Rows rows = rows_of(arena, block);
    const auto scales = rows.scales.defined() ? static_cast<int64_t>(rows.scales.nbytes()) : 0;
    most = std::max(most, Staging::scales_begin(rows.values) + scales);
  }
  return most;
}

void read_to_device(const WeightArena& arena, const std::vector<Block>& blocks, int num_threads) {
  Staging staging(2 * num_threads, most_bytes(arena, blocks));
  std::atomic<size_t> next{0};
  FirstError error;
  Threads threads(num_threads, [&] {
    for (size_t i = next++; i < blocks.size(); i = next++) {
      const auto slot = staging.take_free();
      if (!slot) return;
      try {
        read(arena, blocks[i], staging.like(*slot, rows_of(arena, blocks[i])));
      } catch (...) {
        error.set(i, std::current_exception());
        return staging.end();
      }
      staging.give_full(i, *slot);
    }
  });
  Copies copies(staging, arena.views().begin()->second.device());
  for (size_t copied = 0; copied < blocks.size(); ++copied) {
    const auto full = staging.take_full();
    if (!full) break;
    const Rows to = rows_of(arena, blocks[full->first]);
    copies.start(full->second, staging.like(full->second, to), to);
    copies.wait(static_cast<size_t>(staging.size()) / 2);
  }
  threads.join();
  copies.wait(0);
  error.rethrow();
}

}  // namespace

int default_read_threads() {
  const auto available = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(available, 1, 16);
}

void read_pieces(const WeightArena& arena, std::span<const ArenaPiece* const> pieces,
                 int num_threads) {
  FLOTILLA_ASSERT(num_threads > 0);
  const std::vector<Block> blocks = cut(arena, pieces);
  if (blocks.empty()) return;
  if (arena.rows(*blocks.front().piece).is_cpu()) {
    read_to_host(arena, blocks, num_threads);
  } else {
    read_to_device(arena, blocks, num_threads);
  }
}

}  // namespace flotilla::loader
