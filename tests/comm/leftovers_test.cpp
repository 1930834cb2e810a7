// What ended jobs have left of Open MPI's and NCCL's files: only what nobody uses is told, with a
// command that works.
#include "comm/leftovers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "support/temp_dir.h"

namespace flotilla::comm {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kNoProcess = 2'147'483'647;  // larger than any id

class LeftoversTest : public testing::Test {
 protected:
  fs::path file(const std::string& name) const {
    test::write_file(shared_ / name, "x");
    age(shared_ / name);
    return shared_ / name;
  }
  fs::path session(int process) const {
    const fs::path folder = temporary_ / "ompi.host.0" / fmt::format("pid.{}", process);
    fs::create_directories(folder / "0" / "1");
    age(folder);
    return folder;
  }
  static void age(const fs::path& path) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }

  test::TempDir dir_;
  fs::path temporary_ = dir_ / "it's temporary";
  fs::path shared_ = dir_ / "shared";

  void SetUp() override {
    fs::create_directories(temporary_);
    fs::create_directories(shared_);
  }
};

TEST_F(LeftoversTest, AreFilesThatNoProcessUses) {
  const fs::path segment = file("vader_segment.host.0.1a0001.0");
  const fs::path ended = session(kNoProcess);
  session(getpid());
  file("somebody.else");
  test::write_file(shared_ / "vader_segment.host.0.1b0001.0", "a job that starts now");
  const fs::path open = file("nccl-AbC123");
  const int descriptor = ::open(open.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_THAT(find_leftovers(temporary_, shared_), ElementsAre(ended, segment));
  ::close(descriptor);
  EXPECT_THAT(find_leftovers(temporary_, shared_), ElementsAre(ended, open, segment));
}

TEST_F(LeftoversTest, AreRemovedByTheCommandThatIsTold) {
  file("psm_shm.1");
  session(kNoProcess);
  const std::string text = leftovers_text(find_leftovers(temporary_, shared_));
  EXPECT_THAT(text, HasSubstr("ended jobs left 2 files or folders"));
  const std::string command = text.substr(text.find("rm -r"));
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_THAT(find_leftovers(temporary_, shared_), ElementsAre());
}

TEST_F(LeftoversTest, AreTheFirstOnesOfMany) {
  for (int i = 0; i < 30; ++i) file(fmt::format("nccl-{:06}", i));
  const std::string text = leftovers_text(find_leftovers(temporary_, shared_));
  EXPECT_THAT(text, HasSubstr("left 30 files"));
  EXPECT_THAT(text, HasSubstr("the first 12"));
  EXPECT_THAT(text, HasSubstr("nccl-000011'"));
  EXPECT_EQ(text.find("nccl-000012"), std::string::npos);
}

TEST_F(LeftoversTest, OfNothingAreNotMentioned) {
  EXPECT_EQ(leftovers_text(find_leftovers(temporary_, shared_)), "");
  EXPECT_EQ(leftovers_text(find_leftovers(dir_ / "none", dir_ / "none")), "");
}

}  // namespace
}  // namespace flotilla::comm
