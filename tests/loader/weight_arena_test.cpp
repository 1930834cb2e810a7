#include "loader/weight_arena.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/compare.h"
#include "support/golden.h"

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

TEST(WeightBinderTest, CompleteBindingPasses) {
  const loader::WeightArena arena(test::open_tiny("ltx23-dev.safetensors"), {kPrefix}, at::kFloat,
                                  at::kMeta);
  loader::WeightBinder binder(arena);
  for (const auto& [name, view] : arena.views()) binder.take(name, view.sizes().vec());
  EXPECT_NO_THROW(binder.finish());
}

}  // namespace
}  // namespace flotilla
