#include "io/latents_file.h"

#include <gtest/gtest.h>

#include "io/hdf5_file.h"
#include "io_support.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using testing::error_of;
using testing::holds;

LatentsFile full_file() {
  at::manual_seed(3);
  LatentsFile file;
  file.flotilla_version = "0.1.0 (abc)";
  file.job_yaml = "seed: 7\nprompt: ä\n";
  file.checkpoint_digest = "0123abcd";
  file.seed = INT64_MAX;
  file.world = 3;
  file.sample_rate = 24000;
  for (const char* name : {latents::kVideoContext, latents::kAudioContext, latents::kInitialVideo,
                           latents::kInitialAudio}) {
    file.tensors[name] = at::randn({1, 6, 4});
  }
  for (const char* name : {latents::kStage1Video, latents::kUpscaledVideo, latents::kStage2Video}) {
    file.tensors[name] = at::randn({1, 4, 2, 3, 5});
  }
  for (const char* name : {latents::kStage1Audio, latents::kStage2Audio})
    file.tensors[name] = at::randn({1, 2, 6, 4});
  file.tensors[latents::kDecodedVideo] = at::randint(0, 256, {9, 6, 10, 3}, at::kByte);
  file.tensors[latents::kDecodedAudio] = at::randn({2, 100});
  file.tensors["resume/generator"] = at::randint(0, 256, {5000}, at::kByte);
  file.tensors["resume/video_tokens"] = at::randn({1, 6, 4});
  file.resume_integers = {{"stage", 2}, {"step", 3}};
  file.resume_texts = {{"sampler", "euler"}};
  return file;
}

TEST(LatentsFileTest, RoundTripsEverything) {
  const test::TempDir folder;
  const LatentsFile written = full_file();
  write_latents(folder / "run.h5", written, false);
  const LatentsFile read = read_latents(folder / "run.h5");
  EXPECT_EQ(read.flotilla_version, written.flotilla_version);
  EXPECT_EQ(read.job_yaml, written.job_yaml);
  EXPECT_EQ(read.checkpoint_digest, written.checkpoint_digest);
  EXPECT_EQ(read.seed, written.seed);
  EXPECT_EQ(read.world, written.world);
  EXPECT_EQ(read.sample_rate, written.sample_rate);
  EXPECT_EQ(read.created.size(), std::string("2030-01-01T00:00:00Z").size());
  EXPECT_EQ(read.resume_integers, written.resume_integers);
  EXPECT_EQ(read.resume_texts, written.resume_texts);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (const auto& [name, tensor] : written.tensors)
    EXPECT_TRUE(test::same_bytes(read.tensors.at(name), tensor)) << name;
  EXPECT_EQ(H5File::open(folder / "run.h5").read_dims(latents::kStage1Video),
            (std::vector<std::string>{"batch", "channel", "frame", "height", "width"}));
}

TEST(LatentsFileTest, ReadsOnlyWhatIsAskedForAndNamesWhatIsMissing) {
  const test::TempDir folder;
  LatentsFile file = full_file();
  file.tensors.erase(latents::kStage2Video);
  write_latents(folder / "run.h5", file, false);
  EXPECT_EQ(read_latents(folder / "run.h5", {latents::kStage1Video}).tensors.size(), 1);
  const Error error = error_of([&] { read_latents(folder / "run.h5", {latents::kStage2Video}); });
  EXPECT_TRUE(holds(error, ErrorKind::input, "has no dataset \"stage_2/video_latent\""));
  EXPECT_TRUE(holds(error, ErrorKind::input, "stage_1/video_latent"));
}

TEST(LatentsFileTest, WithoutOptionalPartsTheFileIsStillWhole) {
  const test::TempDir folder;
  LatentsFile file;
  file.tensors[latents::kStage1Video] = at::ones({1, 1, 1, 1, 1});
  write_latents(folder / "run.h5", file, false);
  const LatentsFile read = read_latents(folder / "run.h5");
  EXPECT_EQ(read.tensors.size(), 1);
  EXPECT_TRUE(read.resume_integers.empty());
  EXPECT_EQ(read.sample_rate, 0);
}

TEST(LatentsFileTest, RefusesOtherVersionsAndOtherFiles) {
  const test::TempDir folder;
  H5PendingFile other(folder / "other.h5", false);
  other.file().write("data", at::ones({2}), {"axis"});
  other.commit();
  EXPECT_TRUE(holds(error_of([&] { read_latents(folder / "other.h5"); }), ErrorKind::input,
                    "no format_version"));
  H5PendingFile newer(folder / "newer.h5", false);
  newer.file().write_integer("", "format_version", kLatentsFormatVersion + 1);
  newer.commit();
  EXPECT_TRUE(holds(error_of([&] { read_latents(folder / "newer.h5"); }), ErrorKind::input,
                    "has format_version 2"));
}

TEST(LatentsFileTest, RefusesATextThatIsDamaged) {
  const test::TempDir folder;
  LatentsFile file = full_file();
  file.job_yaml = "prompt: \xff\xfe";
  write_latents(folder / "run.h5", file, false);
  EXPECT_TRUE(holds(error_of([&] { read_latents(folder / "run.h5"); }), ErrorKind::input,
                    "\"job_yaml\" is damaged"));
}

// The HDF5 library reads memory that is not its own when some of these bytes are wrong.
TEST(LatentsFileTest, NoticesEveryDamageBeforeTheLibraryReadsIt) {
  const test::TempDir folder;
  LatentsFile file = full_file();
  file.tensors = {{latents::kStage1Video, at::ones({1, 1, 1, 1, 2})}};
  write_latents(folder / "run.h5", file, false);
  const std::string whole = test::read_file(folder / "run.h5");
  const auto refused = [&](const std::string& bytes, const std::string& reason) {
    test::write_file(folder / "run.h5", bytes);
    const Error error = error_of([&] { read_latents(folder / "run.h5"); });
    return holds(error, ErrorKind::input, reason);
  };
  for (size_t at = 8; at < whole.size(); at += 11) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_TRUE(refused(damaged, "checksum")) << at;
  }
  for (size_t size = 8; size < whole.size(); size += 501)
    EXPECT_TRUE(refused(whole.substr(0, size), "is truncated")) << size;
  EXPECT_TRUE(refused(whole + "x", "another program has written or changed it"));
  EXPECT_TRUE(refused(whole + whole.substr(whole.size() - 24), "is damaged"));
  EXPECT_TRUE(refused("x" + whole.substr(1), "is not an HDF5 file"));
}

// So that other programs read it.
TEST(LatentsFileTest, ItsSealIsBehindAnHdf5FileOfTheUsualKind) {
  const test::TempDir folder;
  write_latents(folder / "run.h5", full_file(), false);
  const std::string whole = test::read_file(folder / "run.h5");
  test::write_file(folder / "plain.h5", whole.substr(0, whole.size() - 24));
  EXPECT_EQ(H5File::open(folder / "plain.h5").datasets(),
            H5File::open(folder / "run.h5").datasets());
  EXPECT_TRUE(holds(error_of([&] { read_latents(folder / "plain.h5"); }), ErrorKind::input,
                    "has no checksum of this program at its end"));
}

TEST(LatentsFileTest, RefusesDatasetsThatBreakTheSchema) {
  const test::TempDir folder;
  const auto refused = [&](const char* name, const at::Tensor& tensor) {
    H5PendingFile pending(folder / "odd.h5", true);
    H5File& out = pending.file();
    out.write_integer("", "format_version", kLatentsFormatVersion);
    for (const char* key : {"flotilla_version", "job_yaml", "checkpoint_digest", "created"})
      out.write_text("", key, "");
    for (const char* key : {"seed", "world"}) out.write_integer("", key, 1);
    out.write(name, tensor, std::vector<std::string>(static_cast<size_t>(tensor.dim()), "axis"));
    pending.commit();
    EXPECT_TRUE(holds(error_of([&] { read_latents(folder / "odd.h5"); }), ErrorKind::input, name));
  };
  refused(latents::kStage1Video, at::ones({1, 2, 3, 4}));
  refused(latents::kStage1Video, at::ones({1, 2, 3, 4, 5}, at::kByte));
  refused(latents::kDecodedVideo, at::ones({2, 2, 2, 3}));
  refused(latents::kDecodedAudio, at::ones({2, 5}));  // without sample_rate
}

TEST(LatentsFileTest, WritingOutsideTheSchemaIsABrokenInvariant) {
  const test::TempDir folder;
  LatentsFile file;
  file.tensors["stage_3/video_latent"] = at::ones({1});
  EXPECT_TRUE(holds(error_of([&] { write_latents(folder / "a.h5", file, false); }),
                    ErrorKind::internal, "stage_3"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.h5"));
}

}  // namespace
}  // namespace flotilla::io
