// The manifest of a sweep: what is written comes back, and a line that a crash cut off does not
// spoil the rest.
#include "io/sweep_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "io/name_locks.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using ::testing::ElementsAre;

PointRecord record_at(double time_s, PointEvent event = PointEvent::done) {
  return {.point = 3,
          .hash = "00ff00ff00ff00ff",
          .event = event,
          .name = "0003_a",
          .values = {{"seed", "7"}, {"prompt", "a \"fox\"\n\xff"}},
          .seed = 0xFFFF'FFFF'FFFF'FFFF,
          .exit_code = event == PointEvent::failed ? 3 : 0,
          .error = event == PointEvent::failed ? "no such file" : "",
          .time_s = time_s,
          .seconds = 1.5,
          .output = "0003_a.mp4",
          .files = {{"0003_a.mp4", 12, "abc"}, {"0003_a.h5", 1 << 20, "def"}},
          .checksum = "def",
          .world = 4,
          .version = "0.1.0 (1a2b3c)",
          .host = "node7",
          .process = 1234};
}

std::vector<double> times_of(const std::vector<PointRecord>& records) {
  std::vector<double> times;
  for (const auto& record : records) times.push_back(record.time_s);
  return times;
}

TEST(SweepManifestTest, RecordsComeBackAsTheyWere) {
  const PointRecord written = record_at(1.7e9);
  const auto read = parse_record(record_line(written));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->point, 3);
  EXPECT_EQ(read->hash, written.hash);
  EXPECT_EQ(read->event, PointEvent::done);
  EXPECT_EQ(read->name, "0003_a");
  EXPECT_EQ(read->values.at(0), written.values.at(0));
  EXPECT_EQ(read->seed, written.seed);
  EXPECT_EQ(read->time_s, 1.7e9);
  EXPECT_EQ(read->seconds, 1.5);
  EXPECT_EQ(read->output, written.output);
  EXPECT_EQ(read->files, written.files);
  EXPECT_EQ(read->checksum, "def");
  EXPECT_EQ(read->world, 4);
  EXPECT_EQ(read->version, written.version);
  EXPECT_EQ(read->host, "node7");
  EXPECT_EQ(read->process, 1234);
  const auto failed = parse_record(record_line(record_at(1, PointEvent::failed)));
  EXPECT_EQ(failed->event, PointEvent::failed);
  EXPECT_EQ(failed->exit_code, 3);
  EXPECT_EQ(failed->error, "no such file");
}

TEST(SweepManifestTest, ALineIsOneLineAndOtherTextIsNone) {
  EXPECT_EQ(record_line(record_at(1)).find('\n'), std::string::npos);
  for (const char* text : {"", "{}", "[1]", "3", "{\"point\": 3, \"hash\": \"a\"}",
                           "{\"point\": \"x\", \"hash\": \"a\", \"state\": \"done\"}",
                           "{\"point\": 3, \"hash\": \"a\", \"state\": \"eaten\"}"})
    EXPECT_FALSE(parse_record(text)) << text;
}

TEST(SweepManifestTest, FilesOfAFolderAreReadTogetherByTime) {
  const test::TempDir dir;
  {
    SweepManifest one(dir / "sweep.1-of-2.jsonl");
    SweepManifest two(dir / "sweep.2-of-2.jsonl");
    one.append(record_at(10));
    two.append(record_at(20));
    one.append(record_at(30));
    two.append(record_at(5));
  }
  test::write_file(dir / "other.jsonl", record_line(record_at(1)) + "\n");
  EXPECT_THAT(times_of(read_manifests(dir.path())), ElementsAre(5, 10, 20, 30));
  EXPECT_TRUE(read_manifests(dir / "none").empty());
}

TEST(SweepManifestTest, ATornLineIsPassedOverAndTheNextOneIsWhole) {
  const test::TempDir dir;
  const auto file = dir / "sweep.jsonl";
  const std::string line = record_line(record_at(1));
  for (size_t cut = 0; cut < line.size(); cut += 7) {
    test::write_file(file, line + "\n" + line.substr(0, cut));
    EXPECT_EQ(read_manifests(dir.path()).size(), 1u) << cut;
    SweepManifest(file).append(record_at(2));
    EXPECT_THAT(times_of(read_manifests(dir.path())), ElementsAre(1, 2)) << cut;
  }
}

TEST(SweepManifestTest, PlacesThatCannotBeWrittenAreErrors) {
  try {
    SweepManifest manifest("/proc/no/sweep.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::output);
  }
}

TEST(SweepManifestTest, ChecksumsTellFilesApart) {
  const test::TempDir dir;
  test::write_file(dir / "a", "one");
  test::write_file(dir / "b", "two");
  const auto a = record_file(dir.path(), "a");
  ASSERT_TRUE(a);
  EXPECT_EQ(a->bytes, 3);
  EXPECT_NE(a->checksum, record_file(dir.path(), "b")->checksum);
  test::write_file(dir / "b", "one");
  EXPECT_EQ(a->checksum, record_file(dir.path(), "b")->checksum);
  EXPECT_FALSE(record_file(dir.path(), "c"));
}

TEST(NameLocksTest, KeepOthersOutUntilTheyGo) {
  const test::TempDir dir;
  NameLocks mine(dir / "lock");
  EXPECT_TRUE(mine.try_lock("a"));
  EXPECT_TRUE(mine.try_lock("a"));  // already held
  {
    NameLocks other(dir / "lock");
    EXPECT_FALSE(other.try_lock("a"));
    EXPECT_TRUE(other.try_lock("b"));
    EXPECT_FALSE(mine.try_lock("b"));
  }
  EXPECT_TRUE(mine.try_lock("b"));
}

}  // namespace
}  // namespace flotilla::io
