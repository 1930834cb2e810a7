#include "fleet/frame.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::fleet {
namespace {

void wait_for(int fd, short events) {
  pollfd waiting{fd, events, 0};
  (void)::poll(&waiting, 1, /*timeout=*/-1);
}

}  // namespace

PackedFrame::PackedFrame(FrameKind kind, const Message& message, const FrameLimits& limits) {
  const std::string head = pack_head(message);
  FrameHeader header{kFrameMagic, kind, static_cast<int64_t>(head.size()), 0};
  for (const auto& [name, tensor] : message.tensors) {
    FLOTILLA_ASSERT(tensor.is_contiguous() && tensor.device().is_cpu());
    header.tensor_bytes += static_cast<int64_t>(tensor.nbytes());
    tensors_.push_back(tensor);
  }
  if (header.head_bytes > limits.head_bytes || header.tensor_bytes > limits.tensor_bytes) {
    fail(ErrorKind::config, fmt::format("a message of {} and tensors of {}: at most {} and {} pass",
                                        human_bytes(static_cast<double>(header.head_bytes)),
                                        human_bytes(static_cast<double>(header.tensor_bytes)),
                                        human_bytes(static_cast<double>(limits.head_bytes)),
                                        human_bytes(static_cast<double>(limits.tensor_bytes))));
  }
  text_.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  text_ += head;
  pieces_.push_back({text_.data(), text_.size()});
  for (const at::Tensor& tensor : tensors_)
    pieces_.push_back({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
}

bool FrameSender::send(int fd) {
  const auto& pieces = frame_->pieces();
  while (piece_ < pieces.size()) {
    const auto& piece = pieces[piece_];
    if (offset_ == piece.bytes) {
      ++piece_;
      offset_ = 0;
      continue;
    }
    const ssize_t count =
        ::send(fd, piece.data + offset_, piece.bytes - offset_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno != EAGAIN;  // one that is gone takes no more: the reader sees it
    offset_ += static_cast<size_t>(count);
  }
  return true;
}

std::optional<Frame> FrameReader::read(int fd, bool& gone) {
  if (data_ == nullptr) begin(Part::header, &header_, sizeof(header_));
  while (true) {
    if (left_ == 0) {
      if (!advance()) continue;
      data_ = nullptr;
      return std::exchange(frame_, {});
    }
    const ssize_t count = ::recv(fd, data_, static_cast<size_t>(left_), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      gone = count == 0 || errno != EAGAIN;
      return std::nullopt;
    }
    data_ += count;
    left_ -= count;
  }
}

int64_t FrameReader::frame_bytes() const {
  return static_cast<int64_t>(sizeof(header_)) + header_.head_bytes + header_.tensor_bytes;
}

void FrameReader::begin(Part part, void* data, int64_t bytes) {
  part_ = part;
  data_ = static_cast<char*>(data);
  left_ = bytes;
}

bool FrameReader::advance() {
  switch (part_) {
    case Part::header:
      check_header();
      head_text_.assign(static_cast<size_t>(header_.head_bytes), '\0');
      begin(Part::head, head_text_.data(), header_.head_bytes);
      return false;
    case Part::head:
      head_ = unpack_head(head_text_, header_.tensor_bytes);
      head_text_ = {};
      frame_ = {header_.kind, Message(std::move(head_.body))};
      tensor_ = 0;
      return !begin_next_tensor();
    case Part::tensors:
      return !begin_next_tensor();
  }
  fail(ErrorKind::internal, "unknown part of a frame");
}

void FrameReader::check_header() const {
  const auto kind = static_cast<uint32_t>(header_.kind);
  if (header_.magic == kFrameMagic && kind >= static_cast<uint32_t>(FrameKind::set_up) &&
      kind <= static_cast<uint32_t>(FrameKind::leave) && header_.head_bytes >= 0 &&
      header_.head_bytes <= limits_.head_bytes && header_.tensor_bytes >= 0 &&
      header_.tensor_bytes <= limits_.tensor_bytes)
    return;
  fail(ErrorKind::communication,
       fmt::format("not a message of a fleet, or too large a one (kind {}, {} + {} bytes)", kind,
                   header_.head_bytes, header_.tensor_bytes));
}

bool FrameReader::begin_next_tensor() {
  if (tensor_ == head_.entries.size()) return false;
  const TensorEntry& entry = head_.entries[tensor_++];
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  begin(Part::tensors, tensor.mutable_data_ptr(), entry.bytes);
  frame_.message.tensors[entry.name] = std::move(tensor);
  return true;
}

bool send_frame(int fd, FrameKind kind, const Message& message) {
  FrameSender sender(std::make_shared<PackedFrame>(kind, owned_copy(message)));
  while (!sender.send(fd)) wait_for(fd, POLLOUT);
  char byte = 0;
  // End of file without a byte: nobody is there to have got it.
  return ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

std::optional<Frame> receive_frame(int fd, FrameReader& reader) {
  bool gone = false;
  while (true) {
    if (auto frame = reader.read(fd, gone)) return frame;
    if (gone) return std::nullopt;
    wait_for(fd, POLLIN);
  }
}

}  // namespace flotilla::fleet
