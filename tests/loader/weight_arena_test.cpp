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
