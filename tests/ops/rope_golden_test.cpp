// RoPE against the reference: frequency grids, tables and rotated queries, for both layouts and
// both precisions of the grid.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/rope.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla {
namespace {

using ops::RopeSpec;
using ops::RopeType;
using test::all_close;
using test::Golden;

constexpr double kTolerance = 1e-6;

struct Case {
  std::string name;
  std::string positions;  // golden tensor, or empty for the connectors' running index
  std::vector<int64_t> max_pos;
  bool time_only = false;
};

const std::vector<Case> kCases = {
    {"video_self", "video.positions", {20, 2048, 2048}},
    {"audio_self", "audio.positions", {20}},
    {"video_cross", "video.positions", {20}, true},
    {"audio_cross", "audio.positions", {20}},
    {"connector", "", {4096}},
};

at::Tensor positions_of(const Golden& golden, const Case& c, int64_t tokens) {
  if (c.positions.empty()) return at::arange(tokens, at::kFloat).view({1, 1, tokens});
  const at::Tensor positions = golden[c.positions];
  return c.time_only ? positions.narrow(1, 0, 1) : positions;
}

class RopeGoldenTest : public ::testing::Test {
 protected:
  Golden golden_{"rope"};
  int64_t heads_ = golden_.params().at("heads").get<int64_t>();
};

TEST_F(RopeGoldenTest, FrequencyGridsMatch) {
  for (const bool wide : {true, false}) {
    const std::string precision = wide ? "float64" : "float32";
    for (const auto& [name, axes] : std::vector<std::pair<std::string, size_t>>{
             {"video", 3}, {"audio", 1}, {"real_video", 3}}) {
      const at::Tensor expected = golden_[fmt::format("grid.{}.{}", precision, name)];
      RopeSpec spec;
      spec.max_pos.assign(axes, 1);
      spec.dim = expected.size(0) * 2 * static_cast<int64_t>(axes);
      spec.double_frequencies = wide;
      // A grid reaches 1.6e4, so the relative part of the bound is the one that counts.
      EXPECT_TRUE(all_close(ops::rope_frequency_grid(spec), expected, kTolerance))
          << precision << " " << name;
    }
  }
}

TEST_F(RopeGoldenTest, TablesAndRotatedQueriesMatch) {
  for (const auto& c : kCases) {
    for (const RopeType type : {RopeType::split, RopeType::interleaved}) {
      for (const bool wide : {true, false}) {
        const std::string name =
            fmt::format("{}.{}.{}", c.name, type == RopeType::split ? "split" : "interleaved",
                        wide ? "float64" : "float32");
        const at::Tensor q = golden_[c.name + ".q"];  // [B, T, dim]
        const RopeSpec spec{q.size(2), heads_, 10000.0, c.max_pos, type, wide};
        const auto table =
            ops::make_rope_table(positions_of(golden_, c, q.size(1)), spec, at::kFloat);
        EXPECT_TRUE(all_close(table.cos, golden_[name + ".cos"], kTolerance)) << name;
        EXPECT_TRUE(all_close(table.sin, golden_[name + ".sin"], kTolerance)) << name;
        if (!golden_.has(name + ".q_rot")) continue;
        const at::Tensor rotated = ops::rotate_heads(q, heads_, table).transpose(1, 2).flatten(-2);
        EXPECT_TRUE(all_close(rotated, golden_[name + ".q_rot"], kTolerance)) << name;
      }
    }
  }
}

TEST_F(RopeGoldenTest, RealWidthTablesMatch) {
  for (const bool wide : {true, false}) {
    const std::string name = fmt::format("real_dim_video.split.{}", wide ? "float64" : "float32");
    const at::Tensor expected = golden_[name + ".cos"];  // [B, H, T, D/2]
    const int64_t heads = expected.size(1);
    const RopeSpec spec{
        heads * expected.size(3) * 2, heads, 10000.0, {20, 2048, 2048}, RopeType::split, wide};
    // The golden holds tokens 10 and 11 of the clip.
    const at::Tensor positions = golden_["video.positions"].narrow(2, 10, expected.size(2));
    const auto table = ops::make_rope_table(positions, spec, at::kFloat);
    EXPECT_TRUE(all_close(table.cos, expected, kTolerance)) << name;
    EXPECT_TRUE(all_close(table.sin, golden_[name + ".sin"], kTolerance)) << name;
  }
}

}  // namespace
}  // namespace flotilla
