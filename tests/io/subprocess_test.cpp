#include "io/subprocess.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "io_support.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using testing::error_of;
using testing::holds;

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

bool is_running(pid_t id) { return ::kill(id, 0) == 0; }

TEST(SubprocessTest, PassesInputThroughAndReportsTheStatus) {
  std::vector<uint8_t> input(3'000'000);
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<uint8_t>(i * 7);
  const ProcessResult result = run_process({"/bin/cat"}, input, 30);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output, input);
}

TEST(SubprocessTest, UsesNoShell) {
  const std::string odd = "a b;$(x)'\"*\n-";
  const ProcessResult result = run_process({"/bin/echo", "-n", odd}, {}, 30);
  EXPECT_EQ(result.output, bytes_of(odd));
}

TEST(SubprocessTest, KeepsErrorsAndExitCode) {
  const ProcessResult result = run_process({"/bin/sh", "-c", "echo trouble >&2; exit 7"}, {}, 30);
  EXPECT_EQ(describe_status(result.status), "exit code 7");
  EXPECT_EQ(result.errors, "trouble");
}

TEST(SubprocessTest, ChattyChildDoesNotBlock) {
  const ProcessResult result =
      run_process({"/bin/sh", "-c", "head -c 5000000 /dev/zero >&2; echo done"}, {}, 30);
  EXPECT_EQ(result.output, bytes_of("done\n"));
}

TEST(SubprocessTest, MissingProgramIsAnErrorThatNamesIt) {
  EXPECT_TRUE(holds(error_of([] { Process({"/no/such/program"}, false); }), ErrorKind::machine,
                    "/no/such/program"));
  EXPECT_TRUE(holds(error_of([] { Process({"/etc/hostname"}, false); }), ErrorKind::machine,
                    "cannot start"));
}

TEST(SubprocessTest, WritingToADeadChildReturnsFalseWithoutSignal) {
  Process process({"/bin/false"}, false);
  process.wait(10);
  const std::vector<uint8_t> data(1 << 20);
  EXPECT_FALSE(process.write(data, 10));
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(SubprocessTest, DestructionKillsAndReaps) {
  pid_t id = 0;
  {
    const Process process({"/bin/sleep", "100"}, false);
    id = process.id();
    EXPECT_TRUE(is_running(id));
  }
  EXPECT_FALSE(is_running(id));
}

TEST(SubprocessTest, TimeLimitsHold) {
  EXPECT_TRUE(holds(error_of([] {
                      run_process({"/bin/sleep", "100"}, {}, 0.1);
                    }),
                    ErrorKind::machine, "0.1 s"));
  Process process({"/bin/sleep", "100"}, false);
  EXPECT_EQ(process.wait(0.05), std::nullopt);
  const std::vector<uint8_t> data(1 << 20);
  EXPECT_TRUE(
      holds(error_of([&] { process.write(data, 0.1); }), ErrorKind::output, "took no data"));
}

TEST(SubprocessTest, ChildSeesOnlyItsStandardStreams) {
  const ProcessResult result =
      run_process({"/bin/sh", "-c", "ls /proc/self/fd | tr '\\n' ' '"}, {}, 30);
  // 3 is the folder that ls itself reads.
  EXPECT_EQ(result.output, bytes_of("0 1 2 3 "));
}

TEST(SubprocessTest, ChildHasNoBlockedOrIgnoredSignals) {
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const ProcessResult result =
      run_process({"/bin/grep", "-E", "SigBlk|SigIgn", "/proc/self/status"}, {}, 30);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  EXPECT_EQ(result.output, bytes_of("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"));
}

TEST(SubprocessTest, ChildDiesWithTheThreadThatStartedIt) {
  std::optional<Process> process;
  std::thread([&] {
    process.emplace(std::vector<std::string>{"/bin/sleep", "100"}, false);
  }).join();
  const auto status = process->wait(10);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(describe_status(*status), "killed by signal 9");
}

TEST(SubprocessTest, FindsProgramsInAListOfFolders) {
  const test::TempDir folder;
  test::write_file(folder / "tool", "#!/bin/sh\n");
  EXPECT_EQ(find_program("tool", folder.path().string()), std::nullopt);  // not executable
  std::filesystem::permissions(folder / "tool", std::filesystem::perms::owner_all);
  EXPECT_EQ(find_program("tool", "/nowhere:.::" + folder.path().string()), folder / "tool");
  EXPECT_EQ(find_program("tool", ""), std::nullopt);
  EXPECT_EQ(find_ffmpeg({}, folder.path().string()), std::nullopt);
}

TEST(SubprocessTest, FfmpegIsAskedOnceWhileItIsTheSameFile) {
  const test::TempDir folder;
  const auto install = [&](const std::string& version, const std::string& encoder) {
    test::write_file(folder / "ffmpeg", fmt::format("#!/bin/sh\necho \"$2\" >> '{}'\n"
                                                    "echo 'ffmpeg version {} x'\n"
                                                    "echo ' V libx264 {} '\n",
                                                    (folder / "asked").string(), version, encoder));
    std::filesystem::permissions(folder / "ffmpeg", std::filesystem::perms::owner_all);
  };
  FfmpegFinder finder;
  EXPECT_EQ(finder.find(folder.path().string()), std::nullopt);
  install("5.1", "");
  for (int job = 0; job < 3; ++job) {
    const auto found = finder.find(folder.path().string());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->version, "5.1");
    EXPECT_FALSE(found->can_write_mp4());
  }
  EXPECT_EQ(test::read_file(folder / "asked"), "-version\n-encoders\n");
  install("5.1.1", "aac");
  EXPECT_TRUE(finder.find(folder.path().string())->can_write_mp4());
  EXPECT_EQ(finder.find("/nowhere"), std::nullopt);
  std::filesystem::remove(folder / "ffmpeg");
  EXPECT_EQ(finder.find(folder.path().string()), std::nullopt);
}

TEST(SubprocessTest, ProgramThatIsNotFfmpegIsRefused) {
  EXPECT_TRUE(
      holds(error_of([] { find_ffmpeg("/bin/echo", ""); }), ErrorKind::machine, "is not ffmpeg"));
  EXPECT_TRUE(holds(error_of([] { find_ffmpeg("/bin/false", ""); }), ErrorKind::machine,
                    "not a working ffmpeg"));
}

}  // namespace
}  // namespace flotilla::io
