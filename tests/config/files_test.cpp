#include <gtest/gtest.h>

#include <filesystem>

#include "config/job_files.h"
#include "config/job_text.h"
#include "config/validate.h"
#include "support/temp_dir.h"

namespace flotilla::config {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::count_lines;
using test::refusal_with;

std::string files_refusal(const LoadedJob& loaded) {
  try {
    validate_files(loaded.job, loaded.origins);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.message();
  }
  return "";
}

std::string load_refusal(const fs::path& file) {
  try {
    load_job(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.message();
  }
  return "";
}

TEST(FilesTest, ReportsAllMissingFilesWithTheirKeys) {
  const test::TempDir folder;
  test::write_file(
      folder / "job.yaml",
      test::kTwoStageJob + "images: [{path: a.png}]\ntext: {enhance: true, enhancer: e}\n");
  test::write_file(folder / "u.safetensors", "x");
  test::write_file(folder / "e", "not a folder");
  fs::create_directory(folder / "m.safetensors");
  const std::string message = files_refusal(load_job(folder / "job.yaml"));
  EXPECT_EQ(count_lines(message), 5U) << message;
  EXPECT_TRUE(contains(message, ":2:22: models.checkpoint: is a folder; expected a file: "));
  EXPECT_TRUE(contains(message, "models.text_encoder: no such file: "));
  EXPECT_TRUE(contains(message, ":3:26: models.distilled_lora.path: no such file: "));
  EXPECT_TRUE(contains(message, ":5:17: images[0].path: no such file: "));
  EXPECT_TRUE(contains(message, "text.enhancer: is no folder"));
}

TEST(FilesTest, AcceptsFilesThatAreThere) {
  const test::TempDir folder;
  test::write_file(folder / "job.yaml", test::kGoodJob);
  for (const char* name : {"m.safetensors", "u.safetensors"}) test::write_file(folder / name, "x");
  fs::create_directory(folder / "gemma");
  EXPECT_EQ(files_refusal(load_job(folder / "job.yaml")), "");
  fs::remove(folder / "gemma");
  test::write_file(folder / "gemma", "one file");
  EXPECT_EQ(files_refusal(load_job(folder / "job.yaml")), "");
}

TEST(FilesTest, RefusesOutputsThatCollide) {
  const std::string message =
      refusal_with("output: {path: m.safetensors, latents: a, metrics: ./x/../a}\n");
  EXPECT_EQ(count_lines(message), 2U) << message;
  EXPECT_TRUE(contains(message, "output.path: is the same file as models.checkpoint"));
  EXPECT_TRUE(contains(message, "output.metrics: is the same file as output.latents"));
  EXPECT_TRUE(contains(refusal_with("output: {path: s}\nlimits: {stop_file: s}\n"),
                       "is the same file as limits.stop_file"));
}

TEST(FilesTest, SeesThroughLinksBetweenOutputsAndInputs) {
  const test::TempDir folder;
  test::write_file(folder / "m.safetensors", "x");
  fs::create_symlink(folder / "m.safetensors", folder / "link.mp4");
  test::write_file(folder / "job.yaml",
                   test::kGoodJob + "output: {path: link.mp4, metrics: job.json}\n");
  fs::create_symlink("job.yaml", folder / "job.json");
  try {
    load_job(folder / "job.yaml");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.message(), "output.path: is the same file as models.checkpoint"));
    EXPECT_TRUE(contains(error.message(),
                         "output.metrics: is the same file as the file that "
                         "holds the job"));
  }
}

TEST(FilesTest, SeesThroughLinksToFilesThatAreNotThereYet) {
  const test::TempDir folder;
  fs::create_directory(folder / "disk");
  fs::create_directory_symlink("disk", folder / "here");
  fs::create_symlink("disk/a.mp4", folder / "dangling");
  test::write_file(folder / "job.yaml",
                   test::kGoodJob + "output: {path: here/a.mp4, metrics: dangling}\n");
  EXPECT_TRUE(contains(load_refusal(folder / "job.yaml"),
                       "output.metrics: is the same file as output.path"));
}

TEST(FilesTest, OutputsNeverReplaceAFileOfAnInputFolder) {
  const test::TempDir folder;
  fs::create_directories(folder / "gemma/sub");
  for (const char* name : {"gemma/config.json", "gemma/sub/x.h5", "blob"})
    test::write_file(folder / name, "x");
  fs::create_symlink("../blob", folder / "gemma/weights.png");
  const auto refusal_of = [&](const std::string& output) {
    test::write_file(folder / "job.yaml", test::kGoodJob + "output: {" + output + "}\n");
    return load_refusal(folder / "job.yaml");
  };
  for (const char* output :
       {"metrics: gemma/config.json", "latents: gemma/sub/x.h5", "contact_sheet: gemma/weights.png",
        "contact_sheet: blob", "metrics: ./gemma/../gemma/config.json"}) {
    EXPECT_TRUE(contains(refusal_of(output), "would replace a file of models.text_encoder"))
        << output;
  }
  EXPECT_TRUE(contains(refusal_of("path: gemma"), "is the same file as models.text_encoder"));
  EXPECT_EQ(refusal_of("metrics: gemma/new.json"), "");
}

TEST(FilesTest, SoundBesideAClipIsAnOutputToo) {
  const Job job = test::job_of(test::kGoodJob + "output: {path: a.Y4M}\n");
  const auto files = output_files(job);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[1].path, "/jobs/a.wav");
  EXPECT_EQ(output_files(test::job_of(test::kGoodJob + "output: {path: a.mp4}\n")).size(), 1U);
  EXPECT_EQ(
      output_files(test::job_of(test::kGoodJob + "output: {path: a.y4m, audio: false}\n")).size(),
      1U);
  EXPECT_TRUE(contains(refusal_with("images: [{path: a.wav}]\noutput: {path: a.y4m}\n"),
                       "output.path: is the same file as images[0].path: /jobs/a.wav"));
}

TEST(FilesTest, FileThatHoldsTheTextIsNoOutput) {
  try {
    load_job_text(test::kGoodJob + "output: {path: a.mp4}\n", "x", "/jobs", {}, "/jobs/a.mp4");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.message(), "the file that holds the job: /jobs/a.mp4"));
  }
}

TEST(FilesTest, ExtensionsTellTheKindsOfOutputsApart) {
  const std::string message =
      refusal_with("output: {latents: a.mp4, metrics: a.yaml,\n  contact_sheet: a.jpg}\n");
  EXPECT_EQ(count_lines(message), 3U) << message;
  EXPECT_TRUE(contains(message, "output.latents: \".mp4\" is the extension of another kind"));
  EXPECT_TRUE(contains(message, "expected .h5 or .hdf5, or none"));
  EXPECT_TRUE(contains(message, "output.metrics: \".yaml\""));
  EXPECT_TRUE(contains(message, "output.contact_sheet: \".jpg\""));
  EXPECT_EQ(refusal_with("output: {latents: a.HDF5, metrics: b, contact_sheet: c.PNG}\n"), "");
}

}  // namespace
}  // namespace flotilla::config
