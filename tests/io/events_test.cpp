#include "io/events.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/clock.h"
#include "io_support.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using nlohmann::json;

TEST(EventsTest, KindComesFirstAndStrangeBytesStayOneLine) {
  const std::string line = event_line({{"a", "x\ny\xff"}, {"event", "done"}});
  EXPECT_THAT(line, ::testing::StartsWith(R"({"event":"done","a":"x\ny)"));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(json::accept(line));
}

TEST(EventsTest, LinesGoToTheEndOfTheFileAtOnce) {
  const test::TempDir folder;
  test::write_file(folder / "e", "before\n");
  JsonLinesEvents events(folder / "e");
  events.emit({{"event", "phase"}});
  EXPECT_EQ(test::read_file(folder / "e"), "before\n{\"event\":\"phase\"}\n");
  events.emit({{"event", "done"}});
  EXPECT_EQ(test::read_file(folder / "e"), "before\n{\"event\":\"phase\"}\n{\"event\":\"done\"}\n");
}

TEST(EventsTest, ReaderThatLeftCostsTheEventsAndNotTheJob) {
  ::signal(SIGPIPE, SIG_IGN);
  const test::TempDir folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  JsonLinesEvents events(pipe);
  events.emit({{"event", "phase"}});
  ::close(reader);
  EXPECT_NO_THROW(events.emit({{"event", "step"}}));
  EXPECT_NO_THROW(events.emit({{"event", "done"}}));
}

TEST(EventsTest, PlaceThatCannotBeWrittenIsRefused) {
  const test::TempDir folder;
  try {
    JsonLinesEvents(folder / "none/e");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::output);
  }
}

TEST(ClockTest, TimeHasTheOffsetOfTheZone) {
  ::setenv("TZ", "UTC-5:30", 1);  // POSIX: east of Greenwich is negative
  ::tzset();
  EXPECT_EQ(time_text(1764458422.9), "2025-11-30T04:50:22+05:30");
  ::setenv("TZ", "UTC3", 1);
  ::tzset();
  EXPECT_EQ(time_text(1764458422), "2025-11-29T20:20:22-03:00");
  ::unsetenv("TZ");
  ::tzset();
}

}  // namespace
}  // namespace flotilla::io
