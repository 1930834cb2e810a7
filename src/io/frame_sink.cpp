#include "io/frame_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::io {

double VideoFormat::duration_s() const {
  return static_cast<double>(num_frames) * static_cast<double>(rate.denominator) /
         static_cast<double>(rate.numerator);
}

std::span<const uint8_t> FrameBatch::frame(int64_t index) const {
  const size_t frame_bytes = bytes->size() / static_cast<size_t>(num_frames);
  return std::span(*bytes).subspan(static_cast<size_t>(index) * frame_bytes, frame_bytes);
}

FrameBatch make_frame_batch(const at::Tensor& frames, int64_t first_frame,
                            std::vector<uint8_t> memory) {
  FLOTILLA_ASSERT(frames.dim() == 4 && frames.size(3) == 3 && frames.scalar_type() == at::kByte);
  memory.resize(static_cast<size_t>(frames.numel()));
  auto bytes = std::make_shared<std::vector<uint8_t>>(std::move(memory));
  at::from_blob(bytes->data(), frames.sizes(), at::kByte).copy_(frames);
  return {first_frame, frames.size(0), std::move(bytes)};
}

std::future<std::vector<uint8_t>> prepare_memory(int64_t bytes) {
  return std::async(std::launch::async,
                    [bytes] { return std::vector<uint8_t>(static_cast<size_t>(bytes)); });
}

void FrameOrder::accept(const FrameBatch& batch) {
  const int64_t expected = batch.num_frames * format_.frame_bytes();
  if (batch.first_frame != next_frame_ || batch.num_frames < 1 ||
      batch.num_frames > format_.num_frames - next_frame_ || !batch.bytes ||
      static_cast<int64_t>(batch.bytes->size()) != expected) {
    fail(ErrorKind::internal,
         fmt::format(
             "a batch of {} frames from {} on ({} bytes) came where frame {} of {} was next ({} "
             "bytes a frame)",
             batch.num_frames, batch.first_frame, batch.bytes ? batch.bytes->size() : 0,
             next_frame_, format_.num_frames, format_.frame_bytes()));
  }
  next_frame_ += batch.num_frames;
}

void FrameOrder::check_complete() const {
  if (next_frame_ != format_.num_frames) {
    fail(ErrorKind::internal,
         fmt::format("the video ended after {} of {} frames", next_frame_, format_.num_frames));
  }
}

FrameQueue::FrameQueue(FrameSink& sink, size_t capacity)
    : sink_(sink), capacity_(std::max<size_t>(capacity, 1)), thread_([this] { run(); }) {}

FrameQueue::~FrameQueue() {
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  stop();
}

void FrameQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FrameQueue::push(const FrameBatch& batch) {
  std::unique_lock lock(mutex_);
  FLOTILLA_ASSERT(!closed_);
  changed_.wait(lock, [this] { return queue_.size() < capacity_ || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  queue_.push_back(batch);
  lock.unlock();
  changed_.notify_all();
}

void FrameQueue::finish() {
  stop();
  if (failure_) std::rethrow_exception(failure_);
  sink_.finish();
}

// A batch leaves the queue only once it is written, so `capacity_` counts the one at work too.
void FrameQueue::run() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
    if (queue_.empty() || abandoned_) return;
    const FrameBatch batch = queue_.front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      sink_.push(batch);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    queue_.pop_front();
    failure_ = failure;
    changed_.notify_all();
    if (failure) return;
  }
}

void FanOut::push(const FrameBatch& batch) {
  for (FrameSink* sink : sinks_) sink->push(batch);
}

void FanOut::finish() {
  for (FrameSink* sink : sinks_) sink->finish();
}

FrameCollector::FrameCollector(const VideoFormat& format)
    : format_(format), order_(format), bytes_(std::make_shared<std::vector<uint8_t>>()) {
  const auto total = static_cast<size_t>(format.num_frames * format.frame_bytes());
  try {
    bytes_->reserve(total);
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::memory,
         fmt::format("no host memory for the decoded frames ({}); output.save_frames: false "
                     "does without",
                     human_bytes(static_cast<double>(total))));
  }
}

void FrameCollector::push(const FrameBatch& batch) {
  order_.accept(batch);
  bytes_->insert(bytes_->end(), batch.bytes->begin(), batch.bytes->end());
}

void FrameCollector::finish() { order_.check_complete(); }

at::Tensor FrameCollector::frames() {
  order_.check_complete();
  return at::from_blob(
      bytes_->data(), {format_.num_frames, format_.height, format_.width, 3},
      [bytes = bytes_](void*) {}, at::kByte);
}

}  // namespace flotilla::io
