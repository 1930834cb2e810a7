#include "transformer/block_feed.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <future>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gpu/device.h"
#include "gpu/pinned_memory.h"
#include "gpu/side_stream.h"
#include "loader/arena_reader.h"

namespace flotilla::transformer {
namespace {

constexpr std::string_view kBlocks = ".transformer_blocks.";
// Parts of the arena start at such multiples, in buffers as there.
constexpr int64_t kAlignment = 256;

int64_t size_of(const loader::ArenaShare& part) {
  return (part.end - part.begin + kAlignment - 1) / kAlignment * kAlignment;
}

// Of a weight outside of the blocks: nothing.
std::optional<size_t> block_of(std::string_view name) {
  const size_t at = name.find(kBlocks);
  if (at == std::string_view::npos) return std::nullopt;
  size_t block = 0;
  std::from_chars(name.data() + at + kBlocks.size(), name.data() + name.size(), block);
  return block;
}

// The parts of an arena: its order is that of names, so weights of a block lie together.
struct Layout {
  std::vector<loader::ArenaShare> blocks;
  std::vector<loader::ArenaShare> outside;  // before and behind the blocks
  int64_t block_bytes = 0;                  // of the largest
  int64_t outside_bytes = 0;
};

Layout lay_out(const loader::WeightArena& arena) {
  Layout layout;
  std::map<size_t, loader::ArenaShare> blocks;
  std::optional<size_t> before;
  for (loader::ArenaPiece& piece : arena.share(0, 1).pieces) {
    const auto block = block_of(piece.name);
    if (!block && (layout.outside.empty() || before)) layout.outside.emplace_back();
    loader::ArenaShare& part = block ? blocks[*block] : layout.outside.back();
    FLOTILLA_ASSERT(part.pieces.empty() || block == before);
    if (part.pieces.empty()) part.begin = piece.arena_begin;
    part.end = piece.arena_end;
    part.pieces.push_back(std::move(piece));
    before = block;
  }
  for (auto& [index, part] : blocks) {
    FLOTILLA_ASSERT(index == layout.blocks.size());
    layout.block_bytes = std::max(layout.block_bytes, size_of(part));
    layout.blocks.push_back(std::move(part));
  }
  for (const auto& part : layout.outside) layout.outside_bytes += size_of(part);
  return layout;
}

// Blocks that the device has room for, and those on the host on their way to a GPU.
struct Buffers {
  int64_t on_device = 0;
  int64_t on_host = 0;
};
Buffers buffers_of(WeightHome home, bool on_gpu) {
  if (home == WeightHome::host) return {2, 0};
  return on_gpu ? Buffers{1, 2} : Buffers{2, 0};
}

std::vector<at::Tensor> make_buffers(int64_t count, int64_t bytes,
                                     const at::TensorOptions& options) {
  std::vector<at::Tensor> buffers;
  for (int64_t i = 0; i < count; ++i)
    buffers.push_back(at::empty({bytes}, options.dtype(at::kByte)));
  return buffers;
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// As `like`, a view of the arena, but of `bytes`, which stand for the arena from `begin` on.
at::Tensor view_in(const at::Tensor& bytes, int64_t begin, const at::Tensor& like) {
  const int64_t at = like.storage_offset() * like.element_size() - begin;
  return bytes.narrow(0, at, static_cast<int64_t>(like.nbytes()))
      .view(like.scalar_type())
      .view(like.sizes());
}

// What both homes have in common: the buffers of the device, which blocks use in turn.
class ArenaFeed : public BlockFeed {
 public:
  ArenaFeed(std::shared_ptr<loader::WeightArena> arena, at::Device device, int64_t num_buffers)
      : arena_(std::move(arena)),
        device_(device),
        layout_(lay_out(*arena_)),
        outside_(at::empty({layout_.outside_bytes}, at::TensorOptions(at::kByte).device(device))),
        buffers_(make_buffers(num_buffers, layout_.block_bytes, at::TensorOptions(device))) {}

  TransformerWeights placed(TransformerWeights weights) const override {
    FLOTILLA_ASSERT(weights.blocks.size() == layout_.blocks.size());
    visit_tensors_outside_blocks(weights, [this](at::Tensor& weight) {
      if (weight.defined()) weight = outside_view(weight);
    });
    for (size_t i = 0; i < weights.blocks.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      visit_tensors(weights.blocks[i], [&](at::Tensor& weight) {
        if (weight.defined()) weight = view_in(buffer(buffers_, index), block(index).begin, weight);
      });
    }
    return weights;
  }

 protected:
  int64_t num_blocks() const { return static_cast<int64_t>(layout_.blocks.size()); }
  const loader::ArenaShare& block(int64_t index) const {
    return layout_.blocks[static_cast<size_t>(index)];
  }
  // For the bytes of a block, in the one whose turn it is.
  at::Tensor buffer(const std::vector<at::Tensor>& buffers, int64_t index) const {
    const auto turn = static_cast<size_t>(index) % buffers.size();
    return buffers[turn].narrow(0, 0, block(index).end - block(index).begin);
  }
  // The parts outside of the blocks, each with its bytes in `bytes` [outside_bytes].
  template <typename Work>
  void for_each_outside(const at::Tensor& bytes, Work&& work) const {
    int64_t at = 0;
    for (const loader::ArenaShare& part : layout_.outside) {
      work(part, bytes.narrow(0, at, part.end - part.begin));
      at += size_of(part);
    }
  }
  int64_t device_bytes() const {
    return static_cast<int64_t>(outside_.nbytes()) + bytes_of(buffers_);
  }

  std::shared_ptr<loader::WeightArena> arena_;
  at::Device device_;
  Layout layout_;
  at::Tensor outside_;
  std::vector<at::Tensor> buffers_;

 private:
  at::Tensor outside_view(const at::Tensor& weight) const {
    const int64_t at = weight.storage_offset() * weight.element_size();
    at::Tensor view;
    for_each_outside(outside_, [&](const loader::ArenaShare& part, const at::Tensor& bytes) {
      if (part.begin <= at && at < part.end) view = view_in(bytes, part.begin, weight);
    });
    FLOTILLA_ASSERT(view.defined());
    return view;
  }
};

// From an arena on the host. The next block is copied on a stream of its own: into the buffer of
// the block before the one at work, so after that.
class HostFeed final : public ArenaFeed {
 public:
  HostFeed(std::shared_ptr<loader::WeightArena> arena, at::Device device)
      : ArenaFeed(std::move(arena), device,
                  buffers_of(WeightHome::host, device.is_cuda()).on_device),
        side_(device) {
    FLOTILLA_ASSERT(arena_->loaded() && arena_->storage().is_cpu());
    if (device.is_cuda()) pinned_.emplace(arena_->storage());
    refresh();
  }
  ~HostFeed() override {
    try {
      gpu::synchronize(device_);  // a pass that an error has ended leaves a copy on its way
    } catch (const c10::Error&) {
      // The device has failed: there are no copies any more.
    }
  }

  void bring(int64_t index) override {
    if (index == 0) copy(0);
    side_.join();
    if (index + 1 < num_blocks()) copy(index + 1);
  }
  void refresh() override {
    for_each_outside(outside_, [&](const loader::ArenaShare& part, const at::Tensor& bytes) {
      bytes.copy_(arena_->storage().narrow(0, part.begin, part.end - part.begin));
    });
  }
  HeldWeights held() const override { return {device_bytes(), arena_->bytes()}; }

 private:
  void copy(int64_t index) {
    const loader::ArenaShare& from = block(index);
    side_.run([&] {
      buffer(buffers_, index)
          .copy_(arena_->storage().narrow(0, from.begin, from.end - from.begin),
                 /*non_blocking=*/true);
    });
  }

  std::optional<gpu::PinnedMemory> pinned_;
  gpu::SideStream side_;
};

// From the file. The next block is read while one computes, by threads that call neither CUDA nor
// MPI.
class FileFeed final : public ArenaFeed {
 public:
  FileFeed(std::shared_ptr<loader::WeightArena> arena, at::Device device)
      : ArenaFeed(std::move(arena), device,
                  buffers_of(WeightHome::file, device.is_cuda()).on_device),
        staged_(make_buffers(buffers_of(WeightHome::file, device.is_cuda()).on_host,
                             layout_.block_bytes, at::TensorOptions().pinned_memory(true))) {
    const at::Tensor host =
        on_gpu() ? at::empty_like(outside_, outside_.options().device(at::kCPU)) : outside_;
    for_each_outside(host, [this](const loader::ArenaShare& part, const at::Tensor& bytes) {
      read(part, bytes);
    });
    if (on_gpu()) outside_.copy_(host);
  }

  void bring(int64_t index) override {
    if (index == 0) start(0);
    reading_.get();
    if (index + 1 < num_blocks()) start(index + 1);
    // After the block before, whose buffer it is; from here on staged_ may be written again.
    if (on_gpu()) buffer(buffers_, index).copy_(buffer(staged_, index));
  }
  void refresh() override {}
  HeldWeights held() const override { return {device_bytes(), bytes_of(staged_)}; }

 private:
  bool on_gpu() const { return device_.is_cuda(); }

  void start(int64_t index) {
    reading_ = {};  // a pass that an error has ended may have left one, which is waited for
    reading_ = in_thread(
        [this, index] { read(block(index), buffer(on_gpu() ? staged_ : buffers_, index)); });
  }

  template <typename Work>
  static std::future<void> in_thread(Work work) {
    const bool inference = c10::InferenceMode::is_enabled();  // of a thread, not inherited
    return std::async(std::launch::async, [work = std::move(work), inference] {
      const c10::InferenceMode same_mode(inference);
      work();
    });
  }

  // Several threads, since one alone does not keep up with a file cache.
  void read(const loader::ArenaShare& part, const at::Tensor& bytes) const {
    std::atomic<size_t> next{0};
    const auto read_some = [&] {
      for (size_t i = next++; i < part.pieces.size(); i = next++)
        read(part.pieces[i], part.begin, bytes);
    };
    std::vector<std::future<void>> others;
    for (int i = 1; i < loader::default_read_threads(); ++i) others.push_back(in_thread(read_some));
    read_some();
    for (auto& other : others) other.get();
  }
  // `bytes` stand for the arena from `begin` on.
  void read(const loader::ArenaPiece& piece, int64_t begin, const at::Tensor& bytes) const {
    const at::Tensor scales = arena_->row_scales(piece);
    arena_->file_storage().read_rows(
        piece.name, 0, piece.num_rows, view_in(bytes, begin, arena_->views().at(piece.name)),
        scales.defined() ? view_in(bytes, begin, scales) : at::Tensor());
  }

  std::vector<at::Tensor> staged_;  // pinned; none without a GPU
  std::future<void> reading_;       // the last member: it is waited for before the others go
};

}  // namespace

std::unique_ptr<BlockFeed> make_block_feed(std::shared_ptr<loader::WeightArena> arena,
                                           WeightHome home, at::Device device) {
  FLOTILLA_ASSERT(home != WeightHome::device);
  if (home == WeightHome::host) return std::make_unique<HostFeed>(std::move(arena), device);
  return std::make_unique<FileFeed>(std::move(arena), device);
}

HeldWeights held_weights(const loader::WeightArena& arena, WeightHome home, bool on_gpu) {
  if (home == WeightHome::device) return {arena.bytes(), 0};
  const Layout layout = lay_out(arena);
  const Buffers buffers = buffers_of(home, on_gpu);
  return {layout.outside_bytes + buffers.on_device * layout.block_bytes,
          home == WeightHome::host ? arena.bytes() : buffers.on_host * layout.block_bytes};
}

}  // namespace flotilla::transformer
