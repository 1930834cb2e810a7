#include "base/temp_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/temp_registry.h"

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

TEST_F(PendingFileTest, NameThatIsTooLongIsRefusedAtOnce) {
  EXPECT_EQ(kind_of(folder_ / (std::string(252, 'n') + ".mp4"), false), ErrorKind::output);
  EXPECT_EQ(kind_of(folder_ / (std::string(252, 'n') + ".mp4"), true), ErrorKind::output);
  EXPECT_EQ(kind_of(folder_ / "clip.mp4/", true), ErrorKind::output);
  EXPECT_EQ(kind_of("", true), ErrorKind::output);
  EXPECT_EQ(count(), 0U);
}

TEST_F(PendingFileTest, WhatIsNoPlainFileIsNeverReplaced) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (folder_ / "socket").string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::close(socket);
  fs::create_directory(folder_ / "folder");
  fs::create_symlink("/dev/null", folder_ / "null");
  fs::create_symlink("circle", folder_ / "circle");
  for (const char* name : {"pipe", "socket", "folder", "null", "circle", "/dev/null"}) {
    for (const bool overwrite : {false, true}) {
      EXPECT_EQ(kind_of(folder_ / name, overwrite), ErrorKind::output) << name;
    }
  }
}

TEST_F(PendingFileTest, LinkStaysAndItsFileIsWritten) {
  fs::create_directory(folder_ / "disk");
  write(folder_ / "disk/clip.mp4", "old");
  fs::create_symlink("disk/clip.mp4", folder_ / "hop.mp4");
  fs::create_symlink(folder_ / "hop.mp4", folder_ / "link.mp4");
  EXPECT_EQ(kind_of(folder_ / "link.mp4", false), ErrorKind::output);
  PendingFile file(folder_ / "link.mp4", true);
  EXPECT_EQ(file.temporary().parent_path(), folder_ / "disk");
  write(file.temporary(), "new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.mp4") && fs::is_symlink(folder_ / "hop.mp4"));
  EXPECT_EQ(read(folder_ / "disk/clip.mp4"), "new");
}

TEST_F(PendingFileTest, LinkToNothingYetGetsItsFile) {
  fs::create_symlink("disk/clip.mp4", folder_ / "link.mp4");
  check_output_place(folder_ / "link.mp4", false);
  PendingFile file(folder_ / "link.mp4", false);
  write(file.temporary(), "new");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.mp4"));
  EXPECT_EQ(read(folder_ / "disk/clip.mp4"), "new");
}

// A process id comes again in another container; what a killed run has left there is not ours.
TEST_F(PendingFileTest, TemporaryNameThatIsTakenIsLeftAlone) {
  const fs::path first = PendingFile(folder_ / "clip.mp4", false).temporary();
  const std::string name = first.filename().string();
  const size_t dash = name.find_last_of('-');
  const int counter = std::stoi(name.substr(dash + 1));
  const fs::path taken =
      folder_ / (name.substr(0, dash + 1) + std::to_string(counter + 1) + ".tmp.mp4");
  write(taken, "of another run");
  { const PendingFile file(folder_ / "clip.mp4", false); }
  EXPECT_EQ(read(taken), "of another run");
}

TEST_F(PendingFileTest, SignalHandlerRemovesWhatIsUnfinishedAndNothingElse) {
  PendingFile done(folder_ / "done.mp4", false);
  done.commit();
  write(folder_ / ".other.1-0.tmp.mp4", "of another run");
  const pid_t child = ::fork();
  if (child == 0) {
    const PendingFile one(folder_ / "one.mp4", false);
    PendingFile two(folder_ / "two.mp4", false);
    const PendingFile moved(std::move(two));
    remove_temporaries();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs::exists(folder_ / "done.mp4") && fs::exists(folder_ / ".other.1-0.tmp.mp4"));
  EXPECT_EQ(count(), 2U);
}

TEST_F(PendingFileTest, RegistryTakesAnyNumberOfFilesInTurn) {
  for (int i = 0; i < 100; ++i) {
    const int entry = register_temporary(folder_ / "x");
    ASSERT_GE(entry, 0);
    forget_temporary(entry);
  }
}

}  // namespace
}  // namespace flotilla
