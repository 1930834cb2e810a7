#include "loader/weight_arena.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "loader/sparse_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kPrefix = "vae.per_channel_statistics.";

TEST(WeightArenaTest, ViewsAreAlignedAndHoldTheFile) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  loader::WeightArena arena(checkpoint, {"vae."}, at::kFloat, at::kCPU);
  arena.load();
  ASSERT_FALSE(arena.views().empty());
  const auto* base = static_cast<const char*>(arena.views().begin()->second.data_ptr());
  int64_t bytes = 0;
  for (const auto& [name, view] : arena.views()) {
    EXPECT_EQ((static_cast<const char*>(view.data_ptr()) - base) % 256, 0) << name;
    EXPECT_TRUE(test::same_bytes(view, checkpoint->read(name).to(at::kFloat))) << name;
    bytes += checkpoint->tensors().at(name).bytes();
  }
  EXPECT_LE(bytes * 2, arena.bytes());  // bf16 in the file, float32 here
}

TEST(WeightArenaTest, MetaArenaTakesNoBytes) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const loader::WeightArena arena(checkpoint, {""}, at::kFloat, at::kMeta);
  EXPECT_TRUE(arena.views().begin()->second.is_meta());
  EXPECT_EQ(checkpoint->bytes_read(), 0);
}

TEST(WeightArenaTest, IgnoredNamesAreLeftOut) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const loader::WeightArena arena(checkpoint, {"vae."}, at::kFloat, at::kMeta, {"decoder."});
  for (const auto& [name, view] : arena.views())
    EXPECT_FALSE(name.starts_with("vae.decoder.")) << name;
  EXPECT_FALSE(arena.views().empty());
}

using Shares = std::vector<loader::ArenaShare>;
Shares shares_of(const loader::WeightArena& arena, int count) {
  Shares shares;
  for (int i = 0; i < count; ++i) shares.push_back(arena.share(i, count));
  return shares;
}

TEST(ArenaShareTest, TableMapsTheArenaToTheFile) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const loader::WeightArena arena(checkpoint, {""}, at::kFloat, at::kMeta);
  const auto table = arena.share(0, 1);
  ASSERT_EQ(table.pieces.size(), arena.views().size());
  EXPECT_EQ(table.begin, 0);
  EXPECT_EQ(table.end, arena.bytes());
  for (const auto& piece : table.pieces) {
    const auto& info = checkpoint->tensors().at(piece.name);
    EXPECT_EQ(piece.file_begin, info.begin) << piece.name;
    EXPECT_EQ(piece.file_end, info.end) << piece.name;
    EXPECT_EQ(piece.arena_begin % 256, 0) << piece.name;
    EXPECT_EQ(piece.arena_end - piece.arena_begin,
              static_cast<int64_t>(arena.views().at(piece.name).nbytes()))
        << piece.name;
  }
}

TEST(ArenaShareTest, SharesCoverTheArenaInEqualParts) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const loader::WeightArena arena(checkpoint, {""}, at::kFloat, at::kMeta);
  for (const int count : {1, 2, 3, 4, 8}) {
    int64_t arena_at = 0;
    int64_t file_bytes = 0;
    std::map<std::string, int64_t> rows;
    for (const auto& share : shares_of(arena, count)) {
      EXPECT_EQ(share.begin, arena_at);
      EXPECT_EQ(share.begin % 256, 0);
      arena_at = share.end;
      file_bytes += share.file_bytes();
      // The largest row block that must stay together is far below a per cent of the model.
      EXPECT_NEAR(static_cast<double>(share.end - share.begin),
                  static_cast<double>(arena.bytes()) / count, 0.01 * arena.bytes());
      for (const auto& piece : share.pieces) {
        EXPECT_EQ(piece.first_row, rows[piece.name]) << piece.name;
        rows[piece.name] += piece.num_rows;
      }
    }
    EXPECT_EQ(arena_at, arena.bytes());
    EXPECT_EQ(file_bytes, arena.share(0, 1).file_bytes());
    for (const auto& [name, view] : arena.views())
      EXPECT_EQ(rows[name], view.dim() == 0 ? 1 : view.size(0)) << name;
  }
}

TEST(ArenaShareTest, VectorsScalarsAndIntegersStayWhole) {
  const test::TempDir dir;
  loader::write_sparse_checkpoint(dir / "m.safetensors",
                                  {{"a_vector", {at::kFloat, {5000}}},
                                   {"b_integers", {at::kLong, {100, 100}}},
                                   {"c_scalar", {at::kFloat, {}}},
                                   {"d_odd_rows", {at::kBFloat16, {999, 3}}},
                                   {"e_empty", {at::kFloat, {0, 4}}},
                                   {"f_convolution", {at::kFloat, {64, 3, 3, 3}}}},
                                  {});
  const loader::WeightArena arena(loader::Checkpoint::open(dir / "m.safetensors"), {""},
                                  at::kBFloat16, at::kMeta);
  int64_t num_cut = 0;
  for (const int count : {2, 3, 7, 16, 200}) {
    int64_t end = 0;
    for (const auto& share : shares_of(arena, count)) {
      EXPECT_EQ(share.begin, end);
      end = share.end;
      for (const auto& piece : share.pieces) {
        const auto& view = arena.views().at(piece.name);
        const int64_t all = view.dim() == 0 ? 1 : view.size(0);
        if (piece.num_rows == all) continue;
        ++num_cut;
        EXPECT_GE(view.dim(), 2) << piece.name;
        EXPECT_TRUE(at::isFloatingType(view.scalar_type())) << piece.name;
        EXPECT_EQ(piece.arena_begin % 256, 0) << piece.name;
      }
    }
    EXPECT_EQ(end, arena.bytes());
  }
  EXPECT_GT(num_cut, 0);
}

TEST(ArenaShareTest, SharesReadTheirRowsAndNoOthers) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  loader::WeightArena whole(test::open_tiny("ltx23-dev.safetensors"), {"vae."}, at::kFloat,
                            at::kCPU);
  whole.load();
  loader::WeightArena arena(checkpoint, {"vae."}, at::kFloat, at::kCPU);
  arena.storage().zero_();
  int64_t bytes = 0;
  for (const auto& share : shares_of(arena, 3)) {
    EXPECT_TRUE(arena.storage().slice(0, share.begin, share.end).eq(0).all().item<bool>());
    arena.load_share(share);
    bytes += share.file_bytes();
    EXPECT_EQ(checkpoint->bytes_read(), bytes);
  }
  for (const auto& [name, view] : whole.views())
    EXPECT_TRUE(test::same_bytes(arena.views().at(name), view)) << name;
}

TEST(ArenaShareTest, NumbersThatAreNotFiniteAreFoundByTheirShare) {
  const test::TempDir dir;
  at::Tensor values = at::ones({1000, 64});
  values[999][63] = std::nanf("");
  test::write_safetensors(dir / "m.safetensors", {{"w", values}});
  loader::WeightArena arena(loader::Checkpoint::open(dir / "m.safetensors"), {""}, at::kFloat,
                            at::kCPU);
  EXPECT_NO_THROW(arena.load_share(arena.share(0, 2)));
  EXPECT_THAT([&] { arena.load_share(arena.share(1, 2)); },
              ThrowsMessage<Error>(HasSubstr("tensor \"w\" of")));
}

TEST(WeightBinderTest, AuditTellsEverythingAtOnce) {
  const loader::WeightArena arena(test::open_tiny("ltx23-dev.safetensors"), {kPrefix}, at::kFloat,
                                  at::kMeta);
  loader::WeightBinder binder(arena);
  auto scope = binder.scope(kPrefix);
  const int64_t channels = scope.shape_of("mean-of-means")->at(0);
  EXPECT_FALSE(scope.take("mean-of-means", {channels + 1}).defined());
  EXPECT_FALSE(scope.take("medians", {channels}).defined());
  EXPECT_FALSE(scope.take_optional("modes", {channels}).defined());
  EXPECT_THAT([&] { binder.finish(); },
              ThrowsMessage<Error>(::testing::AllOf(
                  HasSubstr("missing (1)"), HasSubstr("medians"), HasSubstr("unexpected"),
                  HasSubstr("std-of-means"), HasSubstr("of another shape (1)"))));
}

// One bad number anywhere, in every type that weights are stored in and read as.
TEST(WeightArenaTest, NumbersThatAreNotFiniteAreRefusedByName) {
  const test::TempDir dir;
  const auto load = [&](const at::Tensor& values, at::ScalarType as) {
    test::write_safetensors(dir / "m.safetensors", {{"a.fine", at::ones({3})}, {"a.w", values}});
    loader::WeightArena(loader::Checkpoint::open(dir / "m.safetensors"), {"a."}, as, at::kCPU)
        .load();
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto stored : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto as : {at::kFloat, at::kBFloat16, at::kDouble}) {
      at::Tensor values = at::randn({700, 1001}).to(stored);
      values[0][0] = 60000.0F;  // nearly the largest of F16
      EXPECT_NO_THROW(load(values, as));
      for (const float bad : {std::nanf(""), kInf, -kInf}) {
        values[699][1000] = bad;
        EXPECT_THAT([&] { load(values, as); },
                    ThrowsMessage<Error>(::testing::AllOf(HasSubstr("tensor \"a.w\" of"),
                                                          HasSubstr("m.safetensors\" holds NaN"))));
      }
    }
  }
  EXPECT_THAT([&] { load(at::full({2}, 3.4e38F), at::kBFloat16); },
              ThrowsMessage<Error>(HasSubstr("read as BFloat16")));
}

TEST(WeightBinderTest, IntegersAndBytesAreNoWeights) {
  const test::TempDir dir;
  loader::write_sparse_checkpoint(dir / "m.safetensors",
                                  {{"bytes", {at::kByte, {4}}},
                                   {"eights", {at::kFloat8_e4m3fn, {4}}},
                                   {"halves", {at::kHalf, {4}}},
                                   {"switches", {at::kBool, {4}}},
                                   {"unused", {at::kLong, {4}}}},
                                  {});
  const loader::WeightArena arena(loader::Checkpoint::open(dir / "m.safetensors"), {""}, at::kFloat,
                                  at::kMeta);
  loader::WeightBinder binder(arena);
  for (const char* name : {"bytes", "eights", "switches"})
    EXPECT_FALSE(binder.take(name, {4}).defined());
  EXPECT_TRUE(binder.take("halves", {4}).defined());
  binder.ignore("unused");
  EXPECT_THAT([&] { binder.finish(); },
              ThrowsMessage<Error>(::testing::AllOf(
                  HasSubstr("of another type than F64, F32, F16 or BF16 (3)"),
                  HasSubstr("bytes U8"), HasSubstr("eights F8_E4M3"), HasSubstr("switches BOOL"))));
}

TEST(WeightBinderTest, CompleteBindingPasses) {
  const loader::WeightArena arena(test::open_tiny("ltx23-dev.safetensors"), {kPrefix}, at::kFloat,
                                  at::kMeta);
  loader::WeightBinder binder(arena);
  for (const auto& [name, view] : arena.views()) binder.take(name, view.sizes().vec());
  EXPECT_NO_THROW(binder.finish());
}

}  // namespace
}  // namespace flotilla
