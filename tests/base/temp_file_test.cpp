#include "base/temp_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;

class PendingFileTest : public ::testing::Test {
 protected:
  PendingFileTest() {
    std::string name = (fs::temp_directory_path() / "flotilla-base-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~PendingFileTest() override { fs::remove_all(folder_); }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string read(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  static ErrorKind kind_of(const fs::path& path, bool overwrite) {
    try {
      check_output_place(path, overwrite);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::internal;
  }

  fs::path folder_;
};

TEST_F(PendingFileTest, AppearsWholeOnCommit) {
  PendingFile file(folder_ / "clip.mp4", false);
  EXPECT_EQ(file.temporary().extension(), ".mp4");
  write(file.temporary(), "frames");
  EXPECT_FALSE(fs::exists(folder_ / "clip.mp4"));
  file.commit();
  EXPECT_EQ(read(folder_ / "clip.mp4"), "frames");
  EXPECT_EQ(count(), 1U);
}

TEST_F(PendingFileTest, LeavesNothingWithoutCommit) {
  { const PendingFile file(folder_ / "clip.mp4", false); }
  EXPECT_EQ(count(), 0U);
}

TEST_F(PendingFileTest, RefusesToOverwriteUnlessAsked) {
  write(folder_ / "clip.mp4", "old");
  EXPECT_EQ(kind_of(folder_ / "clip.mp4", false), ErrorKind::output);
  PendingFile file(folder_ / "clip.mp4", true);
  write(file.temporary(), "new");
  file.commit();
  EXPECT_EQ(read(folder_ / "clip.mp4"), "new");
}

TEST_F(PendingFileTest, KeepsAFileThatAppearedMeanwhile) {
  PendingFile file(folder_ / "clip.mp4", false);
  write(folder_ / "clip.mp4", "of another job");
  EXPECT_THROW(file.commit(), Error);
  EXPECT_EQ(read(folder_ / "clip.mp4"), "of another job");
}

TEST_F(PendingFileTest, PlaceIsCheckedAndParentsAreMade) {
  check_output_place(folder_ / "a/b/clip.mp4", false);
  EXPECT_TRUE(fs::is_directory(folder_ / "a/b"));
  EXPECT_FALSE(fs::exists(folder_ / "a/b/clip.mp4"));
  EXPECT_EQ(kind_of(folder_ / "a", false), ErrorKind::output);
  write(folder_ / "file", "");
  EXPECT_EQ(kind_of(folder_ / "file/clip.mp4", false), ErrorKind::output);
}

TEST_F(PendingFileTest, LongestNameWorks) {
  const fs::path path = folder_ / (std::string(251, 'n') + ".mp4");
  PendingFile file(path, false);
  write(file.temporary(), "x");
  file.commit();
  EXPECT_EQ(read(path), "x");
}

}  // namespace
}  // namespace flotilla
