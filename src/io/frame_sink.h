// The way of frames from the decoder to the files: whole RGB frames in time order, as plain bytes.
// A FrameSink takes batches; FrameQueue puts a bounded queue and a thread of its own before one, so
// that encoding runs beside decoding; FanOut feeds several. The writer's thread never calls Torch
// or MPI: make_frame_batch() leaves tensors behind on the thread that decodes.
#pragma once

#include <ATen/ATen.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace flotilla::io {

// Frames a second, exact: 24000/1001 is 23.976.
struct FrameRate {
  int64_t numerator = 24;
  int64_t denominator = 1;
};

struct VideoFormat {
  int64_t width = 0;
  int64_t height = 0;
  int64_t num_frames = 0;
  FrameRate rate;

  int64_t frame_bytes() const { return width * height * 3; }
  double duration_s() const;
};

struct FrameBatch {
  int64_t first_frame = 0;
  int64_t num_frames = 0;
  std::shared_ptr<const std::vector<uint8_t>> bytes;  // [num_frames, height, width, 3]

  std::span<const uint8_t> frame(int64_t index) const;
};

// Copies uint8 [F, H, W, 3] (any device) into a batch that begins at `first_frame`. `memory`: used
// for the bytes where there is some, see prepare_memory().
FrameBatch make_frame_batch(const at::Tensor& frames, int64_t first_frame,
                            std::vector<uint8_t> memory = {});
// Memory that a thread of its own touches for the first time, which takes as long as a copy: while
// a device decodes that costs nothing.
std::future<std::vector<uint8_t>> prepare_memory(int64_t bytes);

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // The next frames in time order. Errors: ErrorKind::output when they cannot be written.
  virtual void push(const FrameBatch& batch) = 0;
  // After the last frame, once. Errors: ErrorKind::output; ErrorKind::internal when frames are
  // missing.
  virtual void finish() = 0;
};

// Watches for a sink that batches come in order, have the right size, and are all there at the end.
class FrameOrder {
 public:
  explicit FrameOrder(const VideoFormat& format) : format_(format) {}
  void accept(const FrameBatch& batch);
  void check_complete() const;

 private:
  VideoFormat format_;
  int64_t next_frame_ = 0;
};

// Runs `sink` on a thread of its own; push() waits while two batches are queued. What the sink
// throws is thrown again by the next push() and by finish(). Destroyed before finish(), it drops
// what is queued and joins its thread. The sink outlives the queue and is not touched by others
// meanwhile.
class FrameQueue final : public FrameSink {
 public:
  explicit FrameQueue(FrameSink& sink, size_t capacity = 2);
  ~FrameQueue() override;
  FrameQueue(const FrameQueue&) = delete;
  FrameQueue& operator=(const FrameQueue&) = delete;

  void push(const FrameBatch& batch) override;
  void finish() override;

 private:
  void run() noexcept;
  void stop();

  FrameSink& sink_;
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FrameBatch> queue_;
  bool closed_ = false;     // no more batches will come
  bool abandoned_ = false;  // and those that wait are not wanted
  std::exception_ptr failure_;
  std::thread thread_;
};

// Hands every batch to several sinks, in their order.
class FanOut final : public FrameSink {
 public:
  explicit FanOut(std::vector<FrameSink*> sinks) : sinks_(std::move(sinks)) {}
  void push(const FrameBatch& batch) override;
  void finish() override;

 private:
  std::vector<FrameSink*> sinks_;
};

// Keeps all frames in memory, for `/decoded/video` of the latents file.
class FrameCollector final : public FrameSink {
 public:
  // Reserves the memory at once. Errors: ErrorKind::memory.
  explicit FrameCollector(const VideoFormat& format);
  void push(const FrameBatch& batch) override;
  void finish() override;
  // uint8 [F, H, W, 3]; shares the memory of this object, and may outlive it. Not on the writer's
  // thread.
  at::Tensor frames();

 private:
  VideoFormat format_;
  FrameOrder order_;
  std::shared_ptr<std::vector<uint8_t>> bytes_;
};

}  // namespace flotilla::io
