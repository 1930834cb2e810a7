// Tile geometry: rules that hold for every size, and the sizes that are refused.
#include "diffusion/tiling.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

// The message of the configuration error that `body` must throw.
template <typename Body>
std::string config_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Largest deviation from one of the summed weights of an axis.
double deviation_from_one(const std::vector<Interval>& intervals, AxisKind kind, int64_t scale) {
  std::vector<OutputSpan> spans;
  for (const Interval& interval : intervals) {
    spans.push_back(kind == AxisKind::time ? map_temporal(interval, scale)
                                           : map_spatial(interval, scale));
  }
  const at::Tensor sum = at::zeros({spans.back().end}, at::kFloat);
  for (const OutputSpan& span : spans) sum.narrow(0, span.begin, span.size()).add_(span.mask);
  return (sum - 1.0).abs().max().item<double>();
}

TEST(TilingTest, WeightsOfPairwiseOverlapsSumToOne) {
  for (int64_t length = 3; length < 20; ++length) {
    for (int64_t count = 1; count <= 4; ++count) {
      for (int64_t overlap = 0; overlap < 3; ++overlap) {
        if (length < count * (2 * overlap + 1)) continue;  // more than two tiles would meet
        SCOPED_TRACE(testing::Message() << length << " cells, " << count << " tiles, " << overlap);
        EXPECT_LE(deviation_from_one(split_by_count(length, count, overlap), AxisKind::space, 32),
                  1e-6);
        EXPECT_LE(
            deviation_from_one(split_by_count_causal(length, count, overlap), AxisKind::time, 8),
            1e-6);
      }
    }
  }
}

TEST(TilingTest, IntervalsCoverTheAxisInOrder) {
  for (const int64_t length : {7, 16, 33}) {
    for (const auto& intervals : {split_by_size(length, 5, 2), split_by_size_causal(length, 5, 2),
                                  split_by_count(length, 3, 2)}) {
      EXPECT_EQ(intervals.front().start, 0);
      EXPECT_EQ(intervals.back().end, length);
      for (size_t i = 1; i < intervals.size(); ++i) {
        const int64_t shared = intervals[i - 1].end - intervals[i].start;
        EXPECT_EQ(shared, intervals[i].left_ramp);
        EXPECT_LE(intervals[i - 1].end, intervals[i].end);
      }
    }
  }
}

TEST(TilingTest, AWholeAxisIsOneIntervalOnBothKinds) {
  const std::vector<Interval> whole{{0, 5, 0, 0}};
  EXPECT_EQ(split_axis({}, "frames", AxisKind::time, 5, 8), whole);
  EXPECT_EQ(split_axis(AxisTiling::of_size(768, 64), "width", AxisKind::space, 5, 32), whole);
  EXPECT_EQ(split_axis(AxisTiling::of_count(1, 4), "width", AxisKind::space, 5, 32), whole);
}

TEST(TilingTest, TooSmallAnAxisIsRefusedWithWhatFits) {
  const std::string text = config_error([] { split_by_count(6, 2, 5); });
  EXPECT_TRUE(mentions(text, "at least 7 latent cells")) << text;
  EXPECT_TRUE(mentions(text, "has 6")) << text;
  EXPECT_TRUE(mentions(text, "overlap of at most 4")) << text;
  const std::string many = config_error([] { split_by_count(4, 8, 0); });
  EXPECT_TRUE(mentions(many, "at most 4 tiles")) << many;
}

TEST(TilingTest, SizesOffTheLatentGridAreRefused) {
  const auto split = [](int64_t size, int64_t overlap) {
    return config_error(
        [=] { split_axis(AxisTiling::of_size(size, overlap), "height", AxisKind::space, 40, 32); });
  };
  EXPECT_TRUE(mentions(split(100, 32), "use 96"));
  EXPECT_TRUE(mentions(split(32, 0), "at least 64"));
  EXPECT_TRUE(mentions(split(64, 16), "multiple of 32"));
  EXPECT_TRUE(mentions(split(64, 64), "from 0 to 32"));
  EXPECT_TRUE(mentions(split(64, 64), "height"));
}

TEST(TilingTest, ImpossibleArgumentsAreRefused) {
  config_error([] { split_by_count(8, 0, 0); });
  config_error([] { split_by_count(8, 2, -1); });
  config_error([] { split_by_size(8, 0, 0); });
  config_error([] { split_by_size(8, 2, 2); });
  config_error([] { trapezoid_mask(0, 0, 0); });
  config_error([] { balanced_tile_split(0); });
}

}  // namespace
}  // namespace flotilla::diffusion
