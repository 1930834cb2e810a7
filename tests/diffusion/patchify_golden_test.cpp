// Token order, positions and latent sizes against the LTX-2 Python reference, commit 400fd31.
#include <gtest/gtest.h>

#include "diffusion/latent_state.h"
#include "diffusion/patchify.h"
#include "diffusion/positions.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::diffusion {
namespace {

constexpr double kAtol = 1e-6;

TEST(PatchifyGoldenTest, VideoTokensAndBack) {
  const test::Golden golden("patchify");
  const at::Tensor tokens = patchify_video(golden["video.latent"]);
  EXPECT_TRUE(test::same_bytes(tokens, golden["video.tokens"]));
  const VideoLatentSize size = size_of_video(golden["video.latent"]);
  EXPECT_TRUE(test::same_bytes(unpatchify_video(tokens, size), golden["video.unpatchified"]));
}

TEST(PatchifyGoldenTest, AudioTokensAndBack) {
  const test::Golden golden("patchify");
  const at::Tensor latent = golden["audio.latent"];
  const at::Tensor tokens = patchify_audio(latent);
  EXPECT_TRUE(test::same_bytes(tokens, golden["audio.tokens"]));
  EXPECT_TRUE(test::same_bytes(unpatchify_audio(tokens, size_of_audio(latent)), latent));
}

TEST(PatchifyGoldenTest, VideoPositionsAtSeveralFrameRates) {
  const test::Golden golden("patchify");
  const VideoLatentSize size = size_of_video(golden["video.latent"]);
  EXPECT_TRUE(test::same_bytes(latent_bounds(size), golden["video.grid_bounds"]));
  const std::string prefix = "video.positions.fps";
  const std::vector<std::string> names = golden.names(prefix);
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const VideoGrid grid{.size = size, .frame_rate = std::stod(name.substr(prefix.size()))};
    EXPECT_TRUE(test::all_close(video_positions(grid), golden[name], kAtol)) << name;
  }
}

TEST(PatchifyGoldenTest, AudioPositions) {
  const test::Golden golden("patchify");
  const AudioLatentSize size = size_of_audio(golden["audio.latent"]);
  EXPECT_TRUE(test::all_close(audio_positions(size), golden["audio.positions"], kAtol));
}

TEST(PatchifyGoldenTest, FirstFrameIsMarkedAsSinglePicture) {
  const test::Golden golden("patchify");
  const at::Tensor latent = golden["video.latent"];
  const VideoGrid grid{.size = size_of_video(latent)};
  const LatentState state = make_video_state(grid, latent.options(), latent);
  EXPECT_TRUE(test::same_bytes(state.keyframes_mask, golden["video.keyframes_mask"]));
  EXPECT_TRUE(test::same_bytes(state.latent, golden["video.tokens"]));
}

TEST(PatchifyGoldenTest, LatentSizesFromPixelSizes) {
  const test::Golden golden("patchify");
  const at::Tensor pixels = golden["shape.pixel_f_h_w_fps"];
  const at::Tensor expected = golden["shape.latent_f_h_w_audioframes"];
  for (int64_t row = 0; row < pixels.size(0); ++row) {
    const auto value = [&](int64_t column) { return pixels[row][column].item<double>(); };
    const VideoPixelSize size{.frames = static_cast<int64_t>(value(0)),
                              .height = static_cast<int64_t>(value(1)),
                              .width = static_cast<int64_t>(value(2)),
                              .frame_rate = value(3)};
    const VideoLatentSize video = video_latent_size(size);
    const at::Tensor found = at::tensor(
        {video.frames, video.height, video.width, audio_latent_size(size).frames}, at::kLong);
    EXPECT_TRUE(test::same_bytes(found, expected[row])) << "row " << row;
    EXPECT_EQ(decoded_size(video, size.frame_rate).frames, size.frames);
  }
}

}  // namespace
}  // namespace flotilla::diffusion
