// Messages on a stream socket. A frame is a fixed header with magic, kind and two sizes, then the
// head of the message (JSON, message.h), then the bytes of its tensors. The reader holds every size
// against the limits before it reserves memory. Both sides are processes of one machine: numbers
// are in the machine's byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fleet/message.h"

namespace flotilla::fleet {

enum class FrameKind : uint32_t {
  set_up = 1,  // rank -> controller: its runner is there
  ready,       // rank -> controller: and so are those of all ranks
  job,         // controller -> all ranks
  item,        // driver -> controller, while a job runs
  end,         // driver -> controller: how the job went, see outcome.h
  leave,       // controller -> all ranks: no job follows
};

struct Frame {
  FrameKind kind = FrameKind::item;
  Message message;
};

struct FrameLimits {
  int64_t head_bytes = int64_t{64} << 20;
  int64_t tensor_bytes = int64_t{64} << 30;
};

struct FrameHeader {
  uint32_t magic;
  FrameKind kind;
  int64_t head_bytes;
  int64_t tensor_bytes;
};
inline constexpr uint32_t kFrameMagic = 0x31544C46;  // "FLT1"

// A frame as it goes out; several receivers share it.
class PackedFrame {
 public:
  // The tensors are contiguous and on the CPU (owned_copy()), and must not change. Errors
  // (ErrorKind::config): larger than the limits.
  PackedFrame(FrameKind kind, const Message& message, const FrameLimits& limits = {});

  struct Piece {
    const char* data;
    size_t bytes;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::string text_;  // header and head
  std::vector<at::Tensor> tensors_;
  std::vector<Piece> pieces_;
};

// How far a frame has been sent to one receiver.
class FrameSender {
 public:
  explicit FrameSender(std::shared_ptr<const PackedFrame> frame) : frame_(std::move(frame)) {}
  // Sends what the socket takes now; true once all is sent, or the other side is gone.
  bool send(int fd);

 private:
  std::shared_ptr<const PackedFrame> frame_;
  size_t piece_ = 0;
  size_t offset_ = 0;
};

class FrameReader {
 public:
  explicit FrameReader(FrameLimits limits = {}) : limits_(limits) {}

  // Takes what is there; a frame once it is whole. `gone`: the other side has left. Never waits.
  // Errors (ErrorKind::communication): not a frame, or larger than the limits.
  std::optional<Frame> read(int fd, bool& gone);
  // Bytes of the last whole frame.
  int64_t frame_bytes() const;

 private:
  enum class Part { header, head, tensors };
  void begin(Part part, void* data, int64_t bytes);
  // After a part is full: begins the next one. True when the frame is whole.
  bool advance();
  void check_header() const;
  bool begin_next_tensor();

  FrameLimits limits_;
  Part part_ = Part::header;
  FrameHeader header_{};
  std::string head_text_;
  MessageHead head_;
  size_t tensor_ = 0;
  Frame frame_;
  char* data_ = nullptr;  // null: between two frames
  int64_t left_ = 0;
};

// Both wait. False: the other side is gone. For ranks; the controller never waits for one rank.
bool send_frame(int fd, FrameKind kind, const Message& message);
std::optional<Frame> receive_frame(int fd, FrameReader& reader);

}  // namespace flotilla::fleet
