// The video VAE against the LTX-2 Python reference, commit 400fd31: the block lists of LTX-2.0 and
// 2.3 with few channels, and the VAE inside a monolith.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/compare.h"
#include "support/golden.h"
#include "vae/decoder.h"
#include "vae/encoder.h"
#include "vae/frame_blender.h"

namespace flotilla::vae {
namespace {

using diffusion::AxisTiling;
using diffusion::VideoTiling;
using test::all_close;
using test::Golden;

constexpr double kTolerance = 2e-5;
constexpr const char* kLabels[] = {"ltx23-dev", "vae-small-23", "vae-small-20"};

// One golden file with the models of its checkpoint.
struct Case {
  explicit Case(std::string label)
      : golden("vae_" + underscored(label)),
        encoder(VideoEncoder::from_checkpoint(checkpoint(label), at::kFloat, at::kCPU)),
        decoder(VideoDecoder::from_checkpoint(checkpoint(label), at::kFloat, at::kCPU)),
        wide(VideoDecoder::from_checkpoint(checkpoint(label), at::kDouble, at::kCPU)) {}

  static std::string underscored(std::string label) {
    for (char& letter : label) letter = letter == '-' ? '_' : letter;
    return label;
  }
  static std::shared_ptr<const loader::Checkpoint> checkpoint(const std::string& label) {
    return test::open_tiny(label + ".safetensors");
  }

  Golden golden;
  VideoEncoder encoder;
  VideoDecoder decoder;
  VideoDecoder wide;  // the same in float64
};

// Pixels of a golden "<stem>_every<N>px": rows and columns are `row_dim` and the next.
testing::AssertionResult strided_close(const Golden& golden, const std::string& stem,
                                       const at::Tensor& actual, int64_t row_dim,
                                       double tolerance = kTolerance) {
  const auto names = golden.names(stem + "_every");
  if (names.size() != 1) return testing::AssertionFailure() << "no golden " << stem;
  const int64_t step = std::stoll(names[0].substr(stem.size() + std::string("_every").size()));
  return all_close(actual.slice(row_dim, 0, {}, step).slice(row_dim + 1, 0, {}, step),
                   golden[names[0]], tolerance);
}

// The stored values of "<name>" or "<stem>_every<N>px", and how to thin a full tensor out to them.
struct Stored {
  at::Tensor values;
  int64_t step = 1;
  int64_t row_dim = 0;

  at::Tensor thin(const at::Tensor& full) const {
    return full.slice(row_dim, 0, {}, step).slice(row_dim + 1, 0, {}, step);
  }
};

// What the decoder computes against what is stored. Norms over two channels magnify rounding: the
// reference's own float32 is up to 3e-4 from float64 in the small VAEs, and another type of CPU
// rounds otherwise. So where the suggested bound fails, the result must still be as near to the
// golden as twice the golden's own distance from float64.
testing::AssertionResult agrees(const Case& c, const Stored& stored,
                                const std::function<at::Tensor(const VideoDecoder&)>& compute,
                                double tolerance = kTolerance) {
  const at::Tensor actual = stored.thin(compute(c.decoder));
  if (const auto strict = all_close(actual, stored.values, tolerance); strict) return strict;
  const at::Tensor exact = stored.thin(compute(c.wide).to(at::kDouble));
  const double apart = (exact - stored.values).abs().max().item<double>();
  return all_close(actual, stored.values, tolerance + 2 * apart);
}

Stored stored_pixels(const Golden& golden, const std::string& stem, int64_t row_dim) {
  const auto names = golden.names(stem + "_every");
  if (names.size() != 1) {
    ADD_FAILURE() << "no golden " << stem;
    return {};
  }
  const std::string every = names[0].substr(stem.size() + std::string("_every").size());
  return {golden[names[0]], std::stoll(every), row_dim};
}

diffusion::VideoLatentSize size_of(const at::Tensor& latent) {
  return {latent.size(0), latent.size(1), latent.size(2), latent.size(3), latent.size(4)};
}

struct Batches {
  at::Tensor frames;
  std::vector<int64_t> lengths;
};

Batches decode_tiles(const VideoDecoder& decoder, const at::Tensor& latent, const TilePlan& plan) {
  std::vector<at::Tensor> parts;
  Batches batches;
  decoder.decode_frames(latent, plan, [&](const at::Tensor& frames) {
    EXPECT_EQ(frames.scalar_type(), at::kFloat);
    EXPECT_TRUE(frames.is_contiguous());
    parts.push_back(frames.clone());
    batches.lengths.push_back(frames.size(0));
  });
  batches.frames = at::cat(parts, 0);
  return batches;
}

// The tilings behind the names of the golden file.
VideoTiling tiling_named(const std::string& name) {
  const AxisTiling space = AxisTiling::of_size(64, 32);
  const AxisTiling time = AxisTiling::of_size(24, 8);
  const AxisTiling halves = AxisTiling::of_count(2, 1);
  if (name == "untiled") return {};
  if (name == "spatial64_32") return {AxisTiling::of_size(80, 24), space, space};
  if (name == "temporal24_8") return {time, {}, {}};
  if (name == "temporal16_8") return {AxisTiling::of_size(16, 8), {}, {}};
  if (name == "both") return {time, space, space};
  if (name == "count_t2") return {halves, {}, {}};
  if (name == "count_h2w2") return {AxisTiling::of_count(1, 1), halves, halves};
  ADD_FAILURE() << "a golden tiling that this test does not know: " << name;
  return {};
}

TEST(VaeGoldenTest, EncodesVideosAndPictures) {
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    const at::Tensor video = c.golden["encode.video12_u8"].to(at::kFloat) / 127.5 - 1.0;
    for (const int64_t frames : {9, 1}) {
      const std::string name = "encode.latent_of_" + std::to_string(frames);
      EXPECT_TRUE(
          all_close(c.encoder.encode(video.narrow(2, 0, frames)), c.golden[name], kTolerance))
          << name;
    }
    // The reference crops 12 frames to 9; here the caller has to.
    const int64_t time = c.encoder.scale().time;
    const int64_t cropped = (video.size(2) - 1) / time * time + 1;
    EXPECT_TRUE(all_close(c.encoder.encode(video.narrow(2, 0, cropped)),
                          c.golden["encode.latent_of_12"], kTolerance));
    EXPECT_THROW(c.encoder.encode(video), Error);
  }
}

TEST(VaeGoldenTest, ScalesAsTheReference) {
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    const auto expected = c.golden.params().at("scale").get<std::vector<int64_t>>();
    for (const auto& scale : {c.encoder.scale(), c.decoder.scale()}) {
      EXPECT_EQ((std::vector<int64_t>{scale.time, scale.height, scale.width}), expected);
    }
  }
}

TEST(VaeGoldenTest, NormalizesLatents) {
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    const at::Tensor latent = c.golden["decode.latent"];
    const LatentStatistics alone = load_statistics(Case::checkpoint(label), at::kFloat, at::kCPU);
    for (const auto& statistics : {c.encoder.statistics(), c.decoder.statistics(), alone}) {
      EXPECT_TRUE(
          all_close(statistics.normalize(latent), c.golden["stats.normalized"], kTolerance));
      EXPECT_TRUE(
          all_close(statistics.un_normalize(latent), c.golden["stats.un_normalized"], kTolerance));
    }
  }
}

TEST(VaeGoldenTest, DecodesPixels) {
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    EXPECT_TRUE(agrees(c, stored_pixels(c.golden, "decode.video", 3), [&](const VideoDecoder& d) {
      return d.decode(c.golden["decode.latent"].to(d.statistics().mean.scalar_type()));
    }));
  }
}

TEST(VaeGoldenTest, DecoderBlocksAgreeOneByOne) {
  int64_t compared = 0;
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    if (!c.golden.has("decode.after_conv_in")) continue;
    // The activation behind the first `blocks` blocks.
    const auto after = [&](const VideoDecoder& d, size_t blocks) {
      const Borders borders = d.borders();
      const at::Tensor latent = c.golden["decode.latent"].to(d.statistics().mean.scalar_type());
      at::Tensor x = convolve(padded(d.statistics().un_normalize(latent), borders),
                              d.weights().conv_in, borders);
      for (size_t i = 0; i < blocks; ++i) x = apply_block(d.weights().blocks[i], x, borders);
      return x;
    };
    const auto check = [&](const std::string& name, size_t blocks) {
      EXPECT_TRUE(agrees(c, {c.golden[name]}, [&](const VideoDecoder& d) {
        return after(d, blocks);
      })) << name;
    };
    check("decode.after_conv_in", 0);
    for (size_t i = 0; i < c.decoder.weights().blocks.size(); ++i) {
      const std::string name = "decode.after_up" + std::to_string(i);
      if (!c.golden.has(name)) continue;  // only small activations are stored
      check(name, i + 1);
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

TEST(VaeGoldenTest, UntiledFramesAgree) {
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    const at::Tensor latent = c.golden["decode.latent"];
    const TilePlan whole = plan_tiles({}, size_of(latent), c.decoder.scale());
    const Batches batches = decode_tiles(c.decoder, latent, whole);
    EXPECT_EQ(batches.lengths.size(), 1u);
    const auto decode_whole = [&](const VideoDecoder& d) {
      return decode_tiles(d, latent.to(d.statistics().mean.scalar_type()), whole).frames;
    };
    EXPECT_TRUE(agrees(c, stored_pixels(c.golden, "frames.untiled", 1), decode_whole));
    // The reference's second implementation, which saves memory. Norms over two channels magnify
    // rounding, so the two differ by more than the tolerance; that much more is allowed.
    const auto second = c.golden.names("frames.untiled.memory_efficient_every");
    if (second.empty()) continue;
    const at::Tensor first = c.golden[c.golden.names("frames.untiled_every").at(0)];
    const double apart = (first - c.golden[second[0]]).abs().max().item<double>();
    EXPECT_TRUE(agrees(c, stored_pixels(c.golden, "frames.untiled.memory_efficient", 1),
                       decode_whole, kTolerance + apart));
  }
}

TEST(VaeGoldenTest, TiledFramesAndBatchesAgree) {
  int64_t compared = 0;
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    if (!c.golden.has("tiled.latent")) continue;
    const at::Tensor latent = c.golden["tiled.latent"];
    const std::string prefix = "tiled.", suffix = ".frames_every";
    for (const std::string& name : c.golden.names(prefix)) {
      if (name.find(suffix) == std::string::npos) continue;
      const std::string tiling = name.substr(prefix.size(), name.find(suffix) - prefix.size());
      SCOPED_TRACE(tiling);
      const TilePlan plan = plan_tiles(tiling_named(tiling), size_of(latent), c.decoder.scale());
      const Batches batches = decode_tiles(c.decoder, latent, plan);
      EXPECT_TRUE(agrees(
          c, stored_pixels(c.golden, prefix + tiling + ".frames", 1), [&](const VideoDecoder& d) {
            return decode_tiles(d, latent.to(d.statistics().mean.scalar_type()), plan).frames;
          }));
      if (!c.golden.has(prefix + tiling + ".chunk_lengths")) continue;
      const at::Tensor lengths = c.golden[prefix + tiling + ".chunk_lengths"];
      EXPECT_TRUE(at::equal(at::tensor(plan.batch_frames(), at::kLong), lengths));
      // Batches without frames are planned, as in the reference, and not sent.
      EXPECT_TRUE(
          at::equal(at::tensor(batches.lengths, at::kLong), lengths.masked_select(lengths > 0)));
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

// "tiled.spatial_only_works" is 0: the reference raises where only space is tiled. Here it works
// and equals the golden in which the frame axis is tiled by a size that does not split it.
TEST(VaeGoldenTest, TilesInSpaceAlone) {
  for (const char* label : kLabels) {
    SCOPED_TRACE(label);
    const Case c(label);
    if (!c.golden.has("tiled.spatial_only_works")) continue;
    const at::Tensor latent = c.golden["tiled.latent"];
    VideoTiling tiling = tiling_named("spatial64_32");
    tiling.frames = {};
    const TilePlan plan = plan_tiles(tiling, size_of(latent), c.decoder.scale());
    EXPECT_TRUE(plan.tiled());
    EXPECT_TRUE(agrees(
        c, stored_pixels(c.golden, "tiled.spatial64_32.frames", 1), [&](const VideoDecoder& d) {
          return decode_tiles(d, latent.to(d.statistics().mean.scalar_type()), plan).frames;
        }));
  }
}

// A decode spread over ranks: tiles by count, each clamped before it is blended.
TEST(VaeGoldenTest, DistributedTilesBlendToTheGoldenFrames) {
  const Golden golden("distributed_decoder");
  const VideoDecoder decoder =
      VideoDecoder::from_checkpoint(test::open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU);
  const AxisTiling space = AxisTiling::of_count(2, 4);
  const std::pair<std::string, VideoTiling> cases[] = {
      {"dec22", {{}, space, space}},
      {"dec12", {{}, {}, space}},
      {"t2", {AxisTiling::of_count(2, 1), {}, {}}}};
  for (const auto& [label, tiling] : cases) {
    SCOPED_TRACE(label);
    const at::Tensor latent = golden[label + ".latent"];
    const TilePlan plan = plan_tiles(tiling, size_of(latent), decoder.scale());
    std::vector<at::Tensor> batches;
    FrameBlender blender(plan, [&](const at::Tensor& frames) { batches.push_back(frames); });
    at::Tensor tile;
    for (int64_t i = 0; i < plan.num_tiles(); ++i) {
      tile = to_unit_range(decoder.decode(plan.tile_of(latent, i)))[0].permute({1, 2, 3, 0});
      blender.add(tile);
    }
    EXPECT_TRUE(strided_close(golden, label + ".last_tile", tile, 1));
    EXPECT_TRUE(strided_close(golden, label + ".assembled", at::cat(batches, 0), 1));
    if (golden.names(label + ".untiled_every").empty()) continue;
    const TilePlan whole = plan_tiles({}, size_of(latent), decoder.scale());
    EXPECT_TRUE(
        strided_close(golden, label + ".untiled", decode_tiles(decoder, latent, whole).frames, 1));
  }
}

}  // namespace
}  // namespace flotilla::vae
