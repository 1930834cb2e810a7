// Reading on several threads: the same bytes as on one, on host and device, and the same errors.
#include "loader/arena_reader.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "support/compare.h"
#include "support/device.h"
#include "support/golden.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

// Larger than a block, so that several threads share a weight; and small ones of all kinds.
std::map<std::string, at::Tensor> make_weights() {
  at::manual_seed(5);
  return {{"large", at::randn({700, 9'001})},
          {"half", at::randn({513, 257}).to(at::kBFloat16)},
          {"row", at::randn({1'001})},
          {"scalar", at::randn({})}};
}

std::vector<const loader::ArenaPiece*> pieces_of(const loader::ArenaShare& share) {
  std::vector<const loader::ArenaPiece*> pieces;
  for (const auto& piece : share.pieces) pieces.push_back(&piece);
  return pieces;
}

void expect_equal_bytes(at::Device device, int num_threads) {
  const test::TempDir dir;
  const auto weights = make_weights();
  test::write_safetensors(dir / "m.safetensors", weights);
  const auto checkpoint = loader::Checkpoint::open(dir / "m.safetensors");
  const loader::WeightArena arena(checkpoint, {""}, at::kFloat, device);
  const auto share = arena.share(0, 1);
  loader::read_pieces(arena, pieces_of(share), num_threads);
  EXPECT_EQ(checkpoint->bytes_read(), share.file_bytes());
  for (const auto& [name, weight] : weights) {
    EXPECT_TRUE(test::same_bytes(arena.views().at(name).cpu(), weight.to(at::kFloat)))
        << name << " on " << num_threads << " threads";
  }
}

TEST(ArenaReaderTest, AnyNumberOfThreadsReadsTheSameBytes) {
  for (const int num_threads : {1, 2, 5, 64}) expect_equal_bytes(at::kCPU, num_threads);
}

TEST(ArenaReaderTest, BytesReachADevice) {
  FLOTILLA_REQUIRE_GPU();
  for (const int num_threads : {1, 2, 8}) expect_equal_bytes(at::Device(at::kCUDA, 0), num_threads);
}

TEST(ArenaReaderTest, AnErrorOnOneThreadComesOutOnce) {
  const test::TempDir dir;
  auto weights = make_weights();
  weights.at("large")[690][3] = std::nanf("");
  test::write_safetensors(dir / "m.safetensors", weights);
  const loader::WeightArena arena(loader::Checkpoint::open(dir / "m.safetensors"), {""}, at::kFloat,
                                  at::kCPU);
  const auto share = arena.share(0, 1);
  EXPECT_THAT([&] { loader::read_pieces(arena, pieces_of(share), 4); },
              ThrowsMessage<Error>(HasSubstr("tensor \"large\" of")));
}

}  // namespace
}  // namespace flotilla
