// What arrives at a fleet's socket, in pieces of any size: messages with tensors, and the report at
// the end of a job.
#include <ATen/ATen.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "fleet/frame.h"
#include "fleet/outcome.h"
#include "fuzz/fuzz_target.h"

namespace flotilla::fuzz {
namespace {

using fleet::FrameKind;
using fleet::Message;
using nlohmann::json;

// The sizes that are announced may be far above those of an input.
constexpr fleet::FrameLimits kLimits{.head_bytes = 1 << 20, .tensor_bytes = 1 << 24};

Bytes bytes_of(FrameKind kind, const Message& message) {
  const fleet::PackedFrame frame(kind, message);
  Bytes bytes;
  for (const auto& piece : frame.pieces())
    bytes.insert(bytes.end(), piece.data, piece.data + piece.bytes);
  return bytes;
}

void pack_u64(uint64_t value, uint8_t* at) { std::memcpy(at, &value, sizeof(value)); }

struct Pair {
  Pair() { check_internal(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "sockets can be had"); }
  ~Pair() {
    hang_up();
    ::close(ends[1]);
  }
  void hang_up() {
    if (ends[0] >= 0) ::close(ends[0]);
    ends[0] = -1;
  }

  int ends[2];
};

// Reads what is there; the number of whole frames.
int64_t read_frames(int fd, fleet::FrameReader& reader, bool& gone) {
  int64_t frames = 0;
  while (const auto frame = reader.read(fd, gone)) {
    ++frames;
    check_internal(reader.frame_bytes() >= static_cast<int64_t>(sizeof(fleet::FrameHeader)),
                   "a frame has a header");
    if (frame->kind == FrameKind::end) fleet::describe(fleet::job_end_from(frame->message).errors);
  }
  return frames;
}

}  // namespace

std::vector<Bytes> good_inputs() {
  Message item(json{{"frame", 3}, {"note", "half \xc3\xa4"}, {"deep", json::parse("[[[{}]]]")}});
  item.tensors["frames"] = at::arange(24).to(at::kByte).reshape({1, 2, 4, 3});
  item.tensors["empty"] = at::empty({0, 5}, at::kBFloat16);
  item.tensors["scale"] = at::ones({}, at::kDouble);
  fleet::JobEnd end;
  end.errors.push_back({{0, 2}, ErrorKind::memory, "out of memory"});
  Bytes several = bytes_of(FrameKind::set_up, json{{"rank", 1}});
  for (const auto& next :
       {bytes_of(FrameKind::item, item), bytes_of(FrameKind::end, fleet::to_message(end)),
        bytes_of(FrameKind::leave, {})})
    several.insert(several.end(), next.begin(), next.end());
  return {bytes_of(FrameKind::job, json{{"prompt", "a fox"}, {"seed", 10}}),
          bytes_of(FrameKind::item, item), bytes_of(FrameKind::end, fleet::to_message(end)),
          several};
}

std::vector<std::string> words() {
  return {"FLT1",       "{",           "}",          "[",
          "]",          ",",           ":",          "\"",
          "[[[[",       "null",        "true",       "1e999",
          "-1",         "1.5",         "\"body\":",  "\"tensors\":",
          "\"shape\":", "\"name\":",   "\"dtype\":", "\"float32\"",
          "\"bool\"",   "\"errors\":", "\"ranks\":", "\"kind\":",
          "\"alike\":", "\xff",        "\\u0000"};
}

// The first header: the head ends behind the list of tensors, and the rest are their bytes.
void repair(Bytes& input, Random& random) {
  constexpr size_t kHeader = sizeof(fleet::FrameHeader);
  if (input.size() < kHeader || !chance(random, 80)) return;
  uint8_t* at = input.data();
  const std::string_view text(reinterpret_cast<const char*>(at), input.size());
  const size_t end = std::min(text.find("}]}", kHeader), text.find("[]}", kHeader));
  if (end == std::string_view::npos) return;
  std::memcpy(at, &fleet::kFrameMagic, sizeof(fleet::kFrameMagic));
  pack_u64(end + 3 - kHeader, at + offsetof(fleet::FrameHeader, head_bytes));
  if (chance(random, 40))
    pack_u64(input.size() - end - 3, at + offsetof(fleet::FrameHeader, tensor_bytes));
}

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  fuzz::Pair pair;
  return fuzz::outcome_of([&] {
    fleet::FrameReader reader(fuzz::kLimits);
    bool gone = false;
    int64_t frames = 0;
    const size_t step = size == 0 ? 1 : 1 + size_t{data[size - 1]} * 16;
    for (size_t at = 0; at < size;) {
      const ssize_t sent = ::send(pair.ends[0], data + at, std::min(step, size - at), MSG_NOSIGNAL);
      check_internal(sent > 0, "the socket takes a piece");
      at += static_cast<size_t>(sent);
      frames += fuzz::read_frames(pair.ends[1], reader, gone);
    }
    check_internal(!gone, "nobody has left yet");
    pair.hang_up();
    frames += fuzz::read_frames(pair.ends[1], reader, gone);
    check_internal(gone, "the end is seen");
    if (frames == 0) fail(ErrorKind::communication, "not one whole frame");
  });
}
