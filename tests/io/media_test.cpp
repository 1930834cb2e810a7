// The small pieces of the media files: colour conversion, sound, PNG and the contact sheet.
#include <gtest/gtest.h>

#include <cmath>

#include "io/audio_track.h"
#include "io/image_reader.h"
#include "io/png_writer.h"
#include "io/yuv.h"
#include "io_support.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using testing::error_of;
using testing::holds;

TEST(YuvTest, EqualsTheFormulaInDoublePrecision) {
  at::manual_seed(1);
  const at::Tensor rgb = at::randint(0, 256, {64, 96, 3}, at::kByte);
  const at::Tensor unit = rgb.to(at::kDouble) / 255;
  const at::Tensor luma = (unit * at::tensor({0.2126, 0.7152, 0.0722}, at::kDouble)).sum(2);
  const auto chroma = [&](int64_t channel, double weight) {
    const at::Tensor full = (unit.select(2, channel) - luma) / (2 * (1 - weight));
    return (at::avg_pool2d(full.unsqueeze(0), {2, 2}) * 224 + 128).flatten();
  };
  const at::Tensor expected =
      at::cat({(luma * 219 + 16).flatten(), chroma(2, 0.0722), chroma(0, 0.2126)});
  at::Tensor actual = at::empty({yuv420_frame_bytes(96, 64)}, at::kByte);
  rgb_to_yuv420({rgb.data_ptr<uint8_t>(), static_cast<size_t>(rgb.numel())}, 96, 64,
                {actual.data_ptr<uint8_t>(), static_cast<size_t>(actual.numel())});
  // Half a level of rounding, and the fixed point's own error.
  EXPECT_TRUE(test::all_close(actual.to(at::kDouble), expected, 0.5 + 2e-3, 0.0));
}

TEST(YuvTest, GreyHasNoColourAndEndsAreExact) {
  for (int grey = 0; grey < 256; ++grey) {
    const std::vector<uint8_t> rgb(2 * 2 * 3, static_cast<uint8_t>(grey));
    std::vector<uint8_t> yuv(6);
    rgb_to_yuv420(rgb, 2, 2, yuv);
    EXPECT_EQ(yuv[0], std::lround(16 + 219 * grey / 255.0)) << grey;
    EXPECT_EQ(yuv[4], 128) << grey;
    EXPECT_EQ(yuv[5], 128) << grey;
  }
}

TEST(AudioTrackTest, InterleavesAndRefusesNonFinite) {
  const at::Tensor wave = at::tensor({0.1F, 0.2F, 0.3F, -0.1F, -0.2F, -0.3F}).view({2, 3});
  EXPECT_EQ(make_audio_track(wave, 48000).samples,
            (std::vector<float>{0.1F, -0.1F, 0.2F, -0.2F, 0.3F, -0.3F}));
  wave[1][2] = NAN;
  EXPECT_TRUE(
      holds(error_of([&] { make_audio_track(wave, 48000); }), ErrorKind::non_finite, "sound"));
}

TEST(AudioTrackTest, FitsTheVideoToTheSample) {
  const VideoFormat format{2, 2, 17, {24000, 1001}};  // 0.7090 s: 34034 samples at 48 kHz
  for (const int64_t samples : {34034, 100, 90000}) {
    const AudioTrack track = fit_audio(make_audio_track(at::ones({2, samples}), 48000), format);
    EXPECT_EQ(track.num_samples(), 34034);
    EXPECT_EQ(track.samples.front(), 1.0F);
    EXPECT_EQ(track.samples.back(), samples < 34034 ? 0.0F : 1.0F);
  }
}

TEST(WavTest, ClipsAndRoundsToSixteenBits) {
  const std::vector<uint8_t> bytes = wav_bytes({{0.0F, 1.0F, -1.0F, 2.0F, -7.0F, 0.5F}, 1, 16000});
  ASSERT_EQ(bytes.size(), 44 + 12);
  std::vector<int16_t> levels;
  for (size_t at = 44; at < bytes.size(); at += 2) {
    levels.push_back(static_cast<int16_t>(bytes[at] | bytes[at + 1] << 8));
  }
  EXPECT_EQ(levels, (std::vector<int16_t>{0, 32767, -32767, 32767, -32767, 16384}));
}

TEST(PngWriterTest, ReadsBackAsWritten) {
  const test::TempDir folder;
  const at::Tensor image = at::randint(0, 256, {5, 7, 3}, at::kByte);
  write_png(folder / "a.png", {image.data_ptr<uint8_t>(), static_cast<size_t>(image.numel())}, 7, 5,
            false);
  EXPECT_TRUE(test::same_bytes(read_image(folder / "a.png"), image));
}

at::Tensor numbered_frames(int64_t count) {
  return at::arange(count, at::kByte).view({count, 1, 1, 1}).expand({count, 6, 10, 3});
}

TEST(ContactSheetTest, ShowsEightFramesEvenlySpread) {
  const test::TempDir folder;
  ContactSheet sheet(folder / "sheet.png", {10, 6, 121, {24, 1}}, false);
  EXPECT_EQ(sheet.frames(), (std::vector<int64_t>{0, 17, 34, 51, 69, 86, 103, 120}));
  const at::Tensor frames = numbered_frames(121);
  sheet.push(make_frame_batch(frames.narrow(0, 0, 40), 0));
  sheet.push(make_frame_batch(frames.narrow(0, 40, 81), 40));
  sheet.finish();
  const at::Tensor picture = read_image(folder / "sheet.png");
  EXPECT_EQ(picture.sizes(), (std::vector<int64_t>{sheet.height(), sheet.width(), 3}));
  EXPECT_EQ(picture[0][0][0].item<int>(), 0);
  EXPECT_EQ(picture[0][14][0].item<int>(), 17);
  EXPECT_EQ(picture[10][0][0].item<int>(), 69);
  EXPECT_EQ(picture[15][51][2].item<int>(), 120);
  EXPECT_EQ(picture[0][10][0].item<int>(), 255);
}

TEST(ContactSheetTest, ShortClipsShowAllTheirFrames) {
  const test::TempDir folder;
  for (const int64_t count : {1, 2, 5}) {
    ContactSheet sheet(folder / "sheet.png", {10, 6, count, {24, 1}}, true);
    EXPECT_EQ(static_cast<int64_t>(sheet.frames().size()), count);
    sheet.push(make_frame_batch(numbered_frames(count), 0));
    sheet.finish();
    const at::Tensor picture = read_image(folder / "sheet.png");
    const int64_t last = count - 1;
    EXPECT_EQ(picture[last / 4 * 10][last % 4 * 14][0].item<int>(), last);
  }
}

}  // namespace
}  // namespace flotilla::io
