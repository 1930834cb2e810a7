// Whole files, read back: with ffmpeg where there is one, byte by byte for Y4M.
#include "io/video_writer.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cmath>

#include "io/mp4_info.h"
#include "io/mp4_writer.h"
#include "io/subprocess.h"
#include "io_support.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using testing::error_of;
using testing::holds;

constexpr int64_t kSampleRate = 24000;

VideoWriterOptions options_for(const std::filesystem::path& path, const Ffmpeg* ffmpeg = nullptr) {
  VideoWriterOptions options;
  options.path = path;
  if (ffmpeg != nullptr) options.ffmpeg = ffmpeg->path;
  options.format = {96, 64, 9, {24000, 1001}};
  return options;
}

// A grey ramp from left to right, the same in every frame; [F, H, W, 3].
at::Tensor grey_ramp(const VideoFormat& format) {
  const at::Tensor columns = at::arange(format.width) * 255 / (format.width - 1);
  return columns.floor()
      .to(at::kByte)
      .view({1, 1, format.width, 1})
      .expand({format.num_frames, format.height, format.width, 3});
}

AudioTrack tone(double seconds) {
  const auto count = static_cast<int64_t>(seconds * kSampleRate);
  const at::Tensor wave = at::sin(at::arange(count, at::kFloat) * 0.1) * 0.5;
  return make_audio_track(at::stack({wave, -wave}), kSampleRate);
}

void write_clip(const VideoWriterOptions& options, double audio_s = 0.3) {
  const auto writer = make_video_writer(options);
  const at::Tensor frames = grey_ramp(options.format);
  {
    FrameQueue queue(*writer);
    for (int64_t first = 0; first < options.format.num_frames; first += 4) {
      const int64_t count = std::min<int64_t>(4, options.format.num_frames - first);
      queue.push(make_frame_batch(frames.narrow(0, first, count), first));
    }
    if (options.audio) writer->set_audio(tone(audio_s));
    queue.finish();
  }
}

std::vector<uint8_t> decode(const Ffmpeg& ffmpeg, const std::filesystem::path& path,
                            std::vector<std::string> tail) {
  std::vector<std::string> argv{ffmpeg.path.string(),   "-nostdin", "-v", "error", "-i",
                                "file:" + path.string()};
  argv.insert(argv.end(), tail.begin(), tail.end());
  const ProcessResult result = run_process(argv, {}, 60);
  EXPECT_EQ(result.status, 0) << result.errors;
  return result.output;
}

std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ChooseContainerTest, TakesWhatCanBeWrittenAndListsIt) {
  EXPECT_EQ(choose_container("a.mp4", true), Container::mp4);
  EXPECT_EQ(choose_container("A.MP4", true), Container::mp4);
  EXPECT_EQ(choose_container("a.y4m", false), Container::y4m);
  EXPECT_TRUE(holds(error_of([] { choose_container("a.mp4", false); }), ErrorKind::machine, ".y4m"));
  for (const char* name : {"a.mkv", "a.webm", "a.avi", "a.mov", "a", "mp4", ".mp4"}) {
    EXPECT_TRUE(
        holds(error_of([&] { choose_container(name, true); }), ErrorKind::config, "use .mp4"))
        << name;
  }
}

TEST(Mp4WriterTest, GreyRampComesBackWithinTwoLevels) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  VideoWriterOptions options = options_for(folder / "ramp.mp4", &*ffmpeg);
  options.format.width = 256;  // all levels once
  write_clip(options);
  const auto rgb = decode(*ffmpeg, options.path, {"-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"});
  const at::Tensor expected = grey_ramp(options.format).contiguous();
  ASSERT_EQ(static_cast<int64_t>(rgb.size()), expected.numel());
  const at::Tensor actual =
      at::from_blob(const_cast<uint8_t*>(rgb.data()), expected.sizes(), at::kByte);
  EXPECT_TRUE(test::all_close(actual.to(at::kFloat), expected.to(at::kFloat), 2.0, 0.0));
  EXPECT_EQ(files_in(folder.path()), std::vector<std::string>{"ramp.mp4"});
}

TEST(Mp4WriterTest, HasTagsIndexRateAndBothStreams) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  VideoWriterOptions options = options_for(folder / "clip.mp4", &*ffmpeg);
  options.comment = "prompt: \"ä; x=1\"\nseed: 7\n";
  write_clip(options);
  const Mp4Info info = read_mp4_info(options.path);
  EXPECT_TRUE(info.index_in_front);
  ASSERT_TRUE(info.video && info.audio && info.video->color);
  EXPECT_EQ(info.video->width, 96);
  EXPECT_EQ(info.video->height, 64);
  EXPECT_EQ(info.video->num_samples, 9);
  EXPECT_EQ(info.video->duration * 24000, info.video->timescale * 9 * 1001);
  EXPECT_EQ(info.video->color->primaries, 1);
  EXPECT_EQ(info.video->color->transfer, 1);
  EXPECT_EQ(info.video->color->matrix, 1);
  EXPECT_FALSE(info.video->color->full_range);
  EXPECT_EQ(info.audio->codec, "mp4a");
  EXPECT_EQ(info.audio->channels, 2);
  EXPECT_EQ(info.audio->sample_rate, kSampleRate);
  EXPECT_NEAR(info.audio->shown_s, options.format.duration_s(), 2e-3);
  // The stream itself carries the tags too, and the comment is whole.
  const ProcessResult said = run_process(
      {ffmpeg->path.string(), "-hide_banner", "-i", "file:" + options.path.string()}, {}, 30);
  EXPECT_NE(said.errors.find("yuv420p(tv, bt709"), std::string::npos) << said.errors;
  EXPECT_NE(said.errors.find("23.98 fps"), std::string::npos) << said.errors;
  const auto metadata = decode(*ffmpeg, options.path, {"-f", "ffmetadata", "pipe:1"});
  const std::string text(metadata.begin(), metadata.end());
  EXPECT_NE(text.find("comment=prompt: \"ä\\; x\\=1\"\\\nseed: 7\\\n"), std::string::npos) << text;
}

TEST(Mp4WriterTest, SoundIsCutOrFilledToTheVideo) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  for (const double seconds : {0.1, 1.5}) {
    VideoWriterOptions options = options_for(folder / "clip.mp4", &*ffmpeg);
    options.overwrite = true;
    write_clip(options, seconds);
    EXPECT_NEAR(read_mp4_info(options.path).audio->shown_s, options.format.duration_s(), 2e-3)
        << seconds;
  }
}

TEST(Mp4WriterTest, WithoutAudioThereIsNoSoundStream) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  VideoWriterOptions options = options_for(folder / "silent.mp4", &*ffmpeg);
  options.audio = false;
  options.format.rate = {25, 1};
  write_clip(options);
  const Mp4Info info = read_mp4_info(options.path);
  EXPECT_FALSE(info.audio.has_value());
  EXPECT_TRUE(info.index_in_front);
  EXPECT_EQ(info.video->duration * 25, info.video->timescale * 9);
}

TEST(Mp4WriterTest, WritesUnderOddNames) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  std::filesystem::create_directory(folder / "my dir ä;$(x)'\"");
  const std::string longest = std::string(251, 'n') + ".mp4";
  for (const std::string& name : {std::string("-y.mp4"), std::string("http:x %d.mp4"), longest}) {
    const VideoWriterOptions options = options_for(folder / "my dir ä;$(x)'\"" / name, &*ffmpeg);
    write_clip(options);
    EXPECT_EQ(read_mp4_info(options.path).video->num_samples, 9) << name;
  }
  const auto old_folder = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_clip(options_for("-dash.mp4", &*ffmpeg));
  EXPECT_TRUE(std::filesystem::exists("-dash.mp4"));
  std::filesystem::current_path(old_folder);
}

TEST(Mp4WriterTest, KeepsAnExistingFileWithoutOverwrite) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  test::write_file(folder / "clip.mp4", "mine");
  EXPECT_TRUE(holds(error_of([&] { write_clip(options_for(folder / "clip.mp4", &*ffmpeg)); }),
                    ErrorKind::output, "overwrite"));
  EXPECT_EQ(test::read_file(folder / "clip.mp4"), "mine");
}

TEST(Mp4WriterTest, AbandonedClipLeavesNothing) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  {
    const VideoWriterOptions options = options_for(folder / "clip.mp4", &*ffmpeg);
    const auto writer = make_video_writer(options);
    writer->push(make_frame_batch(grey_ramp(options.format).narrow(0, 0, 2), 0));
  }
  EXPECT_TRUE(files_in(folder.path()).empty());
}

TEST(Mp4WriterTest, EncoderThatDiesIsReported) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const test::TempDir folder;
  VideoWriterOptions options = options_for(folder / "clip.mp4", &*ffmpeg);
  options.preset = "no such preset";
  const Error error = error_of([&] { write_clip(options); });
  EXPECT_TRUE(holds(error, ErrorKind::output, "clip.mp4"));
  EXPECT_TRUE(holds(error, ErrorKind::output, "no such preset"));
  EXPECT_TRUE(files_in(folder.path()).empty());
}

// A file system of one megabyte, unmounted at the end.
class SmallDisk {
 public:
  SmallDisk() : good_(::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=1m") == 0) {}
  ~SmallDisk() {
    if (good_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool good() const { return good_; }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  test::TempDir folder_;
  bool good_;
};

class FullDiskTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FullDiskTest, IsAnOutputErrorAndLeavesNothing) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const SmallDisk disk;
  if (!disk.good()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  VideoWriterOptions options = options_for(disk.path() / GetParam(), &*ffmpeg);
  options.format = {512, 512, 24, {24, 1}};
  options.crf = 1;
  const auto writer = make_video_writer(options);
  const Error error = error_of([&] {
    const at::Tensor frames = at::randint(0, 256, {24, 512, 512, 3}, at::kByte);
    for (int64_t first = 0; first < 24; ++first)
      writer->push(make_frame_batch(frames.narrow(0, first, 1), first));
    writer->set_audio(tone(1.0));
    writer->finish();
  });
  EXPECT_TRUE(holds(error, ErrorKind::output, GetParam()));
  EXPECT_TRUE(holds(error, ErrorKind::output, "No space left"));
  EXPECT_FALSE(std::filesystem::exists(options.path));
}

INSTANTIATE_TEST_SUITE_P(VideoWriterTest, FullDiskTest, ::testing::Values("full.mp4", "full.y4m"));

TEST(VideoWriterTest, RefusesWhatFourTwoZeroCannotHold) {
  const test::TempDir folder;
  VideoWriterOptions options = options_for(folder / "clip.y4m");
  options.format.width = 97;
  EXPECT_TRUE(holds(error_of([&] { make_video_writer(options); }), ErrorKind::config, "97x64"));
}

TEST(Y4mWriterTest, WritesFramesAndSoundBeside) {
  const test::TempDir folder;
  const VideoWriterOptions options = options_for(folder / "clip.y4m");
  write_clip(options);
  EXPECT_EQ(files_in(folder.path()), (std::vector<std::string>{"clip.wav", "clip.y4m"}));
  const std::string video = test::read_file(options.path);
  const std::string header = "YUV4MPEG2 W96 H64 F24000:1001 Ip A1:1 C420jpeg XCOLORRANGE=LIMITED\n";
  ASSERT_EQ(video.substr(0, header.size()), header);
  const size_t frame_bytes = 6 + 96 * 64 * 3 / 2;
  ASSERT_EQ(video.size(), header.size() + 9 * frame_bytes);
  const std::string last = video.substr(header.size() + 8 * frame_bytes);
  EXPECT_EQ(last.substr(0, 6), "FRAME\n");
  // The first two columns are grey 0 and 2 (2.68, floored): 16 and 16 + 219 * 2 / 255 = 17.7; no
  // colour.
  EXPECT_EQ(static_cast<uint8_t>(last[6]), 16);
  EXPECT_EQ(static_cast<uint8_t>(last[7]), 18);
  EXPECT_EQ(static_cast<uint8_t>(last.back()), 128);
  const std::string sound = test::read_file(folder / "clip.wav");
  const auto samples = static_cast<size_t>(std::llround(options.format.duration_s() * kSampleRate));
  EXPECT_EQ(sound.size(), 44 + samples * 2 * 2);
  EXPECT_EQ(sound.substr(0, 4) + sound.substr(8, 8), "RIFFWAVEfmt ");
}

TEST(Y4mWriterTest, WithoutAudioThereIsNoWav) {
  const test::TempDir folder;
  VideoWriterOptions options = options_for(folder / "clip.y4m");
  options.audio = false;
  write_clip(options);
  EXPECT_EQ(files_in(folder.path()), std::vector<std::string>{"clip.y4m"});
}

TEST(Mp4InfoTest, RefusesDamagedFiles) {
  const test::TempDir folder;
  test::write_file(folder / "text.mp4", "this is not a film at all, whatever its name says");
  EXPECT_TRUE(
      holds(error_of([&] { read_mp4_info(folder / "text.mp4"); }), ErrorKind::input, "text.mp4"));
  EXPECT_TRUE(
      holds(error_of([&] { read_mp4_info(folder / "none.mp4"); }), ErrorKind::input, "opened"));
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const VideoWriterOptions options = options_for(folder / "clip.mp4", &*ffmpeg);
  write_clip(options);
  const std::string whole = test::read_file(options.path);
  for (size_t at = 0; at < whole.size(); at += 97) {
    test::write_file(folder / "cut.mp4", whole.substr(0, at));
    EXPECT_EQ(error_of([&] { read_mp4_info(folder / "cut.mp4"); }).kind(), ErrorKind::input) << at;
  }
}

}  // namespace
}  // namespace flotilla::io
