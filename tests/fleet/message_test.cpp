// Messages on a socket: whole ones come through in pieces of any size, damaged ones are refused
// before memory is reserved for them.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "fleet/control_socket.h"
#include "fleet/frame.h"

namespace flotilla::fleet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    a = Socket(ends[0]);
    b = Socket(ends[1]);
  }
  Socket a, b;
};

std::string bytes_of(const Message& message) {
  const PackedFrame frame(FrameKind::item, message);
  std::string bytes;
  for (const auto& piece : frame.pieces()) bytes.append(piece.data, piece.bytes);
  return bytes;
}

Message example() {
  Message message(json{{"n", 3}});
  message.tensors["a"] = at::arange(6, at::kFloat).reshape({2, 3});
  message.tensors["b"] = at::ones({4}, at::kBool);
  return message;
}

// Writes `bytes` in parts of `step` and reads them; what the reader says.
std::optional<Frame> pass(const std::string& bytes, size_t step, bool* gone = nullptr) {
  Pair pair;
  FrameReader reader;
  bool left = false;
  std::optional<Frame> frame;
  for (size_t at = 0; at < bytes.size() && !frame; at += step) {
    const size_t count = std::min(step, bytes.size() - at);
    EXPECT_EQ(::send(pair.a.get(), bytes.data() + at, count, MSG_NOSIGNAL),
              static_cast<ssize_t>(count));
    frame = reader.read(pair.b.get(), left);
  }
  pair.a = Socket();
  if (!frame) frame = reader.read(pair.b.get(), left);
  if (gone != nullptr) *gone = left;
  return frame;
}

std::string header_with(int64_t head_bytes, int64_t tensor_bytes, uint32_t magic = kFrameMagic,
                        uint32_t kind = 3) {
  const FrameHeader header{magic, static_cast<FrameKind>(kind), head_bytes, tensor_bytes};
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

std::string refusal(const std::string& bytes) {
  try {
    pass(bytes, bytes.size());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::communication);
    return error.what();
  }
  return "";
}

std::string with_head(const std::string& head, int64_t tensor_bytes) {
  return header_with(static_cast<int64_t>(head.size()), tensor_bytes) + head;
}

TEST(MessageTest, ComesThroughInPiecesOfAnySize) {
  const std::string bytes = bytes_of(example());
  for (const size_t step : {size_t{1}, size_t{7}, size_t{24}, bytes.size()}) {
    const auto frame = pass(bytes, step);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->kind, FrameKind::item);
    EXPECT_EQ(frame->message.body, example().body);
    EXPECT_TRUE(frame->message.tensors.at("a").equal(example().tensors.at("a")));
    EXPECT_TRUE(frame->message.tensors.at("b").equal(example().tensors.at("b")));
  }
}

TEST(MessageTest, ACutOneIsNoMessage) {
  const std::string bytes = bytes_of(example());
  for (const size_t count : {size_t{1}, size_t{23}, size_t{40}, bytes.size() - 1}) {
    bool gone = false;
    EXPECT_FALSE(pass(bytes.substr(0, count), count, &gone));
    EXPECT_TRUE(gone);
  }
}

TEST(MessageTest, ImpossibleSizesAreRefused) {
  EXPECT_THAT(refusal(header_with(10, 0, 0x12345678)), HasSubstr("not a message"));
  EXPECT_THAT(refusal(header_with(10, 0, kFrameMagic, 99)), HasSubstr("not a message"));
  EXPECT_THAT(refusal(header_with(-1, 0)), HasSubstr("not a message"));
  EXPECT_THAT(refusal(header_with(int64_t{1} << 40, 0)), HasSubstr("too large"));
  EXPECT_THAT(refusal(header_with(10, int64_t{1} << 60)), HasSubstr("too large"));
  const auto one = [](const std::string& dtype, const std::string& shape) {
    return fmt::format(R"({{"body":{{}},"tensors":[{{"name":"x","dtype":"{}","shape":{}}}]}})",
                       dtype, shape);
  };
  EXPECT_THAT(refusal(with_head(one("float32", "[1,2]"), 4)), HasSubstr("larger"));
  EXPECT_THAT(refusal(with_head(one("float32", "[1,2]"), 12)), HasSubstr("smaller"));
  EXPECT_THAT(refusal(with_head(one("float32", "[-2,-2]"), 16)), HasSubstr("impossible shape"));
  EXPECT_THAT(refusal(with_head(one("float32", "[4294967296,4294967296]"), 0)),
              HasSubstr("impossible shape"));
  for (const char* shape : {"[1e300]", "[0.5]", "[true]", "[null]", "3.5"})
    EXPECT_THAT(refusal(with_head(one("float32", shape), 0)), HasSubstr("an integer is expected"));
  EXPECT_THAT(refusal(with_head(one("float32", "[18446744073709551615]"), 0)),
              HasSubstr("too large"));
  EXPECT_THAT(refusal(with_head(one("complex64", "[1]"), 8)), HasSubstr("unknown dtype"));
  EXPECT_THAT(refusal(with_head("{", 0)), HasSubstr("a message of a fleet"));
  EXPECT_THAT(refusal(with_head("[]", 0)), HasSubstr("a message of a fleet"));
  EXPECT_THAT(refusal(with_head("", 0)), HasSubstr("a message of a fleet"));
}

TEST(MessageTest, WhatDoesNotPassIsRefusedByTheSender) {
  Message undefined;
  undefined.tensors["x"] = at::Tensor();
  EXPECT_THROW(owned_copy(undefined), Error);
  Message complex;
  complex.tensors["x"] = at::zeros({2}, at::kComplexFloat);
  EXPECT_THROW(owned_copy(complex), Error);
  EXPECT_THROW(require_utf8(nlohmann::json{{"path", "caf\xe9"}}), Error);
  EXPECT_NO_THROW(require_utf8(nlohmann::json{{"path", "café"}}));
  EXPECT_THROW(PackedFrame(FrameKind::job, example(), {.head_bytes = 10}), Error);
  EXPECT_THROW(PackedFrame(FrameKind::job, example(), {.tensor_bytes = 10}), Error);
}

TEST(MessageTest, ReaderAndWriterMayWaitForEachOther) {
  Pair pair;
  Message large;
  large.tensors["x"] = at::arange(5'000'000, at::kInt);
  std::thread writer([&] {
    EXPECT_TRUE(send_frame(pair.a.get(), FrameKind::job, large));
    EXPECT_TRUE(send_frame(pair.a.get(), FrameKind::leave, Message()));
  });
  FrameReader reader;
  const auto job = receive_frame(pair.b.get(), reader);
  ASSERT_TRUE(job);
  EXPECT_TRUE(job->message.tensors.at("x").equal(large.tensors.at("x")));
  const auto leave = receive_frame(pair.b.get(), reader);
  ASSERT_TRUE(leave);
  EXPECT_EQ(leave->kind, FrameKind::leave);
  writer.join();
}

}  // namespace
}  // namespace flotilla::fleet
