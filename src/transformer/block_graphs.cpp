#include "transformer/block_graphs.h"

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <optional>

#include "base/log.h"
#include "ops/linear.h"
#include "transformer/block_feed.h"

#ifdef FLOTILLA_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace flotilla::transformer {

namespace {

// Of streams that are absent: none.
struct PassRows {
  std::vector<StreamRows> video, audio;
};

PassRows rows_of(const BlockPass& pass, std::span<const BlockWeights> blocks) {
  PassRows rows;
  if (pass.video != nullptr)
    rows.video = rows_of_blocks(pass.config, blocks, StreamKind::video, *pass.video);
  if (pass.audio != nullptr)
    rows.audio = rows_of_blocks(pass.config, blocks, StreamKind::audio, *pass.audio);
  return rows;
}

}  // namespace

void run_blocks(const BlockPass& pass, at::Tensor& x_video, at::Tensor& x_audio,
                const Branches& beside_video) {
  PassRows rows;
  if (pass.feed == nullptr) rows = rows_of(pass, pass.blocks);
  for (size_t i = 0; i < pass.blocks.size(); ++i) {
    if (pass.feed != nullptr) {
      pass.feed->bring(static_cast<int64_t>(i));
      rows = rows_of(pass, {&pass.blocks[i], 1});
    }
    const size_t at = pass.feed == nullptr ? i : 0;
    const BlockArgs args{.config = pass.config,
                         .attention = pass.attention,
                         .perturbations = pass.perturbations,
                         .block_idx = static_cast<int64_t>(i),
                         .beside_video = beside_video,
                         .video_rows = rows.video.empty() ? nullptr : &rows.video[at],
                         .audio_rows = rows.audio.empty() ? nullptr : &rows.audio[at]};
    run_block(pass.blocks[i], args, pass.video, pass.audio, x_video, x_audio);
  }
}

#ifdef FLOTILLA_CUDA
namespace {

// What tells kinds of passes apart.
using Key = std::vector<int64_t>;

constexpr size_t kFields = 13;
std::array<at::Tensor*, kFields> fields_of(StreamInputs& inputs) {
  return {&inputs.context,        &inputs.context_mask,   &inputs.self_mask,
          &inputs.video_mask,     &inputs.rope.cos,       &inputs.rope.sin,
          &inputs.cross_rope.cos, &inputs.cross_rope.sin, &inputs.row_of_token,
          &inputs.ada_rows,       &inputs.prompt_rows,    &inputs.cross_rows,
          &inputs.cross_gate};
}

void add(Key& key, const at::Tensor& tensor) {
  if (!tensor.defined()) return key.push_back(-1);
  key.push_back(tensor.dim());
  key.push_back(static_cast<int64_t>(tensor.scalar_type()));
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
}

void add(Key& key, const BlockSet& set) {
  key.push_back(set.all ? -1 : static_cast<int64_t>(set.blocks.size()));
  key.insert(key.end(), set.blocks.begin(), set.blocks.end());
}

void add(Key& key, const StreamInputs* inputs, const at::Tensor& x) {
  key.push_back(inputs != nullptr ? 1 : 0);
  if (inputs == nullptr) return;
  key.push_back(inputs->enabled ? 1 : 0);
  key.push_back(static_cast<int64_t>(inputs->rope.type));
  add(key, x);
  StreamInputs copy = *inputs;
  for (const at::Tensor* field : fields_of(copy)) add(key, *field);
}

Key key_of(const BlockPass& pass, const at::Tensor& x_video, const at::Tensor& x_audio) {
  Key key = {reinterpret_cast<int64_t>(&pass.attention), ops::FixedRowBlocks::active() ? 1 : 0};
  add(key, pass.video, x_video);
  add(key, pass.audio, x_audio);
  for (const auto& sample : pass.perturbations) {
    add(key, sample.video_self);
    add(key, sample.audio_self);
    add(key, sample.audio_to_video);
    add(key, sample.video_to_audio);
  }
  return key;
}

// A buffer that the graph reads, and what was copied into it last: inputs that stay the same from
// step to step (text, RoPE tables) are copied once. Holding the source keeps its memory from being
// given to another tensor that would look the same.
class StaticInput {
 public:
  explicit StaticInput(const at::Tensor& like) : buffer_(at::empty(like.sizes(), like.options())) {}
  void set(const at::Tensor& source) {
    const bool same = source_.defined() && source_.const_data_ptr() == source.const_data_ptr() &&
                      source_.strides() == source.strides();
    if (same) return;
    buffer_.copy_(source);
    source_ = source;
  }
  const at::Tensor& buffer() const { return buffer_; }

 private:
  at::Tensor buffer_;
  at::Tensor source_;
};

// One stream's inputs in buffers of their own.
class StaticStream {
 public:
  StaticStream(const StreamInputs& inputs, const at::Tensor& x) : inputs_(inputs), x_(x) {
    for (at::Tensor* field : fields_of(inputs_)) {
      if (!field->defined()) {
        fields_.emplace_back();
        continue;
      }
      fields_.emplace_back(std::in_place, *field);
      *field = fields_.back()->buffer();
    }
  }
  void set(const StreamInputs& from, const at::Tensor& x) {
    StreamInputs source = from;
    const auto sources = fields_of(source);
    for (size_t i = 0; i < kFields; ++i) {
      if (fields_[i]) fields_[i]->set(*sources[i]);
    }
    x_.set(x);
  }
  const StreamInputs& inputs() const { return inputs_; }
  const at::Tensor& x() const { return x_.buffer(); }

 private:
  StreamInputs inputs_;
  std::vector<std::optional<StaticInput>> fields_;
  StaticInput x_;
};

// All blocks of one kind of pass.
class Captured {
 public:
  Captured(const BlockPass& pass, const at::Tensor& x_video, const at::Tensor& x_audio,
           at::cuda::MempoolId_t pool) {
    if (pass.video != nullptr) video_.emplace(*pass.video, x_video);
    if (pass.audio != nullptr) audio_.emplace(*pass.audio, x_audio);
    set_inputs(pass, x_video, x_audio);
    const BlockPass with_buffers{pass.config,
                                 pass.blocks,
                                 pass.attention,
                                 pass.perturbations,
                                 video_ ? &video_->inputs() : nullptr,
                                 audio_ ? &audio_->inputs() : nullptr};
    if (video_) out_video_ = video_->x();
    if (audio_) out_audio_ = audio_->x();
    // A stream of its own: the legacy default stream cannot be captured.
    const c10::cuda::CUDAStream caller = c10::cuda::getCurrentCUDAStream();
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    at::cuda::CUDAEvent ready;
    ready.record(caller);
    ready.block(stream);
    const c10::cuda::CUDAStreamGuard guard(stream);
    // Thread-local: other threads (encoder, watchdog) may use CUDA meanwhile.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    run_blocks(with_buffers, out_video_, out_audio_, Branches(stream.device()));
    graph_.capture_end();
  }

  void replay(const BlockPass& pass, at::Tensor& x_video, at::Tensor& x_audio) {
    set_inputs(pass, x_video, x_audio);
    graph_.replay();
    x_video = out_video_;
    x_audio = out_audio_;
  }

 private:
  void set_inputs(const BlockPass& pass, const at::Tensor& x_video, const at::Tensor& x_audio) {
    if (video_) video_->set(*pass.video, x_video);
    if (audio_) audio_->set(*pass.audio, x_audio);
  }

  std::optional<StaticStream> video_, audio_;
  at::Tensor out_video_, out_audio_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

struct BlockGraphs::State {
  struct Kind {
    bool has_run = false;
    std::unique_ptr<Captured> captured;
  };
  // One pool for all: graphs run one after the other, and a result is read before the next.
  std::optional<at::cuda::MempoolId_t> pool;
  std::map<Key, Kind> kinds;
  int64_t replays = 0;
};

BlockGraphs::BlockGraphs() : state_(std::make_unique<State>()) {}
BlockGraphs::~BlockGraphs() = default;

void BlockGraphs::run(const BlockPass& pass, at::Tensor& x_video, at::Tensor& x_audio) {
  const at::Tensor& any = x_video.defined() ? x_video : x_audio;
  if (!any.is_cuda() || !pass.attention.can_be_captured() || pass.feed != nullptr)
    return run_blocks(pass, x_video, x_audio);
  State::Kind& kind = state_->kinds[key_of(pass, x_video, x_audio)];
  if (!kind.has_run) {
    kind.has_run = true;
    return run_blocks(pass, x_video, x_audio);
  }
  if (!kind.captured) {
    if (!state_->pool) state_->pool = at::cuda::graph_pool_handle();
    kind.captured = std::make_unique<Captured>(pass, x_video, x_audio, *state_->pool);
    log::debug("graph", "captured the blocks of a pass");
  }
  kind.captured->replay(pass, x_video, x_audio);
  ++state_->replays;
}

int64_t BlockGraphs::num_captured() const {
  int64_t count = 0;
  for (const auto& [key, kind] : state_->kinds) count += kind.captured ? 1 : 0;
  return count;
}
int64_t BlockGraphs::num_replays() const { return state_->replays; }

#else

struct BlockGraphs::State {};
BlockGraphs::BlockGraphs() = default;
BlockGraphs::~BlockGraphs() = default;

void BlockGraphs::run(const BlockPass& pass, at::Tensor& x_video, at::Tensor& x_audio) {
  run_blocks(pass, x_video, x_audio);
}
int64_t BlockGraphs::num_captured() const { return 0; }
int64_t BlockGraphs::num_replays() const { return 0; }

#endif

}  // namespace flotilla::transformer
