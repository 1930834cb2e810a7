#include "io/frame_sink.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "io_support.h"
#include "support/compare.h"

namespace flotilla::io {
namespace {

using testing::error_of;
using testing::holds;

constexpr VideoFormat kFormat{4, 2, 10, {24, 1}};

// Frame f has f everywhere.
FrameBatch batch_of(int64_t first, int64_t count) {
  const at::Tensor numbers = at::arange(first, first + count, at::kByte).view({count, 1, 1, 1});
  return make_frame_batch(numbers.expand({count, kFormat.height, kFormat.width, 3}), first);
}

// Counts frames; waits at a gate, or fails at a frame.
class TestSink final : public FrameSink {
 public:
  void push(const FrameBatch& batch) override {
    while (!open) std::this_thread::yield();
    if (batch.first_frame <= fail_at && fail_at < batch.first_frame + batch.num_frames) {
      fail(ErrorKind::output, "disk full");
    }
    for (int64_t i = 0; i < batch.num_frames; ++i) seen.push_back(batch.frame(i)[0]);
  }
  void finish() override { finished = true; }

  std::atomic<bool> open{true};
  int64_t fail_at = -1;
  std::vector<uint8_t> seen;
  bool finished = false;
};

TEST(FrameQueueTest, DeliversAllFramesInOrder) {
  TestSink sink;
  FrameQueue queue(sink);
  for (int64_t first = 0; first < 10; first += 2) queue.push(batch_of(first, 2));
  queue.finish();
  EXPECT_EQ(sink.seen, (std::vector<uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(sink.finished);
}

TEST(FrameQueueTest, HoldsTwoBatchesAndThenMakesTheProducerWait) {
  TestSink sink;
  sink.open = false;
  FrameQueue queue(sink);
  queue.push(batch_of(0, 1));
  queue.push(batch_of(1, 1));
  std::atomic<bool> third_done{false};
  std::thread producer([&] {
    queue.push(batch_of(2, 1));
    third_done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(third_done);
  sink.open = true;
  producer.join();
  queue.finish();
  EXPECT_EQ(sink.seen.size(), 3);
}

TEST(FrameQueueTest, FailureReachesTheNextPushAndFinish) {
  TestSink sink;
  sink.fail_at = 1;
  FrameQueue queue(sink);
  const Error pushed = error_of([&] {
    for (int64_t frame = 0; frame < 10; ++frame) queue.push(batch_of(frame, 1));
  });
  EXPECT_TRUE(holds(pushed, ErrorKind::output, "disk full"));
  EXPECT_TRUE(holds(error_of([&] { queue.finish(); }), ErrorKind::output, "disk full"));
  EXPECT_FALSE(sink.finished);
}

TEST(FrameQueueTest, FailureOfTheLastBatchIsSeenByFinish) {
  TestSink sink;
  sink.fail_at = 0;
  FrameQueue queue(sink);
  queue.push(batch_of(0, 1));
  EXPECT_TRUE(holds(error_of([&] { queue.finish(); }), ErrorKind::output, "disk full"));
}

TEST(FrameQueueTest, DestructionWithoutFinishDropsTheRest) {
  TestSink sink;
  {
    FrameQueue queue(sink);
    queue.push(batch_of(0, 1));
  }
  EXPECT_FALSE(sink.finished);
}

TEST(FrameOrderTest, RefusesGapsRepeatsAndMissingFrames) {
  FrameOrder order(kFormat);
  order.accept(batch_of(0, 3));
  EXPECT_TRUE(
      holds(error_of([&] { order.accept(batch_of(4, 1)); }), ErrorKind::internal, "frame 3 of 10"));
  EXPECT_TRUE(
      holds(error_of([&] { order.accept(batch_of(0, 3)); }), ErrorKind::internal, "from 0 on"));
  EXPECT_TRUE(
      holds(error_of([&] { order.accept(batch_of(3, 8)); }), ErrorKind::internal, "8 frames"));
  EXPECT_TRUE(
      holds(error_of([&] { order.check_complete(); }), ErrorKind::internal, "3 of 10 frames"));
  order.accept(batch_of(3, 7));
  order.check_complete();
}

TEST(FanOutTest, FeedsEverySinkAndTheCollectorKeepsTheFrames) {
  TestSink first;
  auto second = std::make_unique<FrameCollector>(kFormat);
  FanOut both({&first, second.get()});
  both.push(batch_of(0, 4));
  both.push(batch_of(4, 6));
  both.finish();
  EXPECT_EQ(first.seen.size(), 10);
  const at::Tensor frames = second->frames();
  second.reset();  // the frames stay
  EXPECT_EQ(frames.sizes(), (std::vector<int64_t>{10, 2, 4, 3}));
  EXPECT_TRUE(test::same_bytes(frames[7], at::full({2, 4, 3}, 7, at::kByte)));
}

}  // namespace
}  // namespace flotilla::io
