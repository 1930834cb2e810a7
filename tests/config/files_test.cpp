#include <gtest/gtest.h>

#include <filesystem>

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
      refusal_with("output: {path: a.mp4, latents: ./x/../a.mp4, metrics: m.safetensors}\n");
  EXPECT_EQ(count_lines(message), 2U) << message;
  EXPECT_TRUE(contains(message, "output.latents: is the same file as output.path"));
  EXPECT_TRUE(contains(message, "output.metrics: is the same file as models.checkpoint"));
  EXPECT_TRUE(contains(refusal_with("output: {path: s}\nlimits: {stop_file: s}\n"),
                       "is the same file as limits.stop_file"));
}

TEST(FilesTest, SeesThroughLinksBetweenOutputsAndInputs) {
  const test::TempDir folder;
  test::write_file(folder / "m.safetensors", "x");
  fs::create_symlink(folder / "m.safetensors", folder / "link.mp4");
  test::write_file(folder / "job.yaml",
                   test::kGoodJob + "output: {path: link.mp4, metrics: job.yaml}\n");
  try {
    load_job(folder / "job.yaml");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.message(), "output.path: is the same file as models.checkpoint"));
    EXPECT_TRUE(contains(error.message(), "output.metrics: is the same file as the job file"));
  }
}

}  // namespace
}  // namespace flotilla::config
