// What became of the points of a sweep: one JSON object a line, appended and synced as it happens,
// in files of the sweep's folder that begin with "sweep" and end with ".jsonl". Each process that
// works on the folder at the same time has a file of its own; read together, they tell what is
// done. A line that a crash has cut off is passed over. Layout: docs/sweep.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::io {

enum class PointEvent { started, stopped, done, failed };
std::string_view to_string(PointEvent event);

struct RecordedFile {
  std::string name;  // in the sweep's folder
  int64_t bytes = 0;
  std::string checksum;  // of all its bytes
  bool operator==(const RecordedFile&) const = default;
};

struct PointRecord {
  int64_t point = 0;
  std::string hash;  // config::job_hash()
  PointEvent event = PointEvent::started;
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;  // keys that the sweep sets
  std::optional<uint64_t> seed;
  int exit_code = 0;
  std::string error;                // of stopped and failed
  double time_s = 0;                // since 1970, when it happened
  double seconds = 0;               // since the point was started
  std::string output;               // the clip, in the sweep's folder
  std::vector<RecordedFile> files;  // done: all files of the point
  // Done: of the latents that were decoded, where they are kept, else of the clip's bytes. Equal
  // for equal results, whatever stands around them in the files.
  std::string checksum;
  int64_t world = 1;
  std::string version;  // of the program
  std::string host;
  int64_t process = 0;
};

class SweepManifest {
 public:
  // Opens or creates `file`; a last line without an end gets one. Errors: ErrorKind::output.
  explicit SweepManifest(const std::filesystem::path& file);
  ~SweepManifest();
  SweepManifest(const SweepManifest&) = delete;
  SweepManifest& operator=(const SweepManifest&) = delete;

  // On disk when this returns. Errors: ErrorKind::output.
  void append(const PointRecord& record);

 private:
  std::filesystem::path file_;
  int fd_;
};

// The line of a record, and back; nothing for text that is none.
std::string record_line(const PointRecord& record);
std::optional<PointRecord> parse_record(std::string_view line);

// The records of every manifest in `folder`, oldest first; empty where there is no folder. Warns of
// lines that are no records, apart from a last one. Errors (ErrorKind::input): a manifest cannot be
// read.
std::vector<PointRecord> read_manifests(const std::filesystem::path& folder);

// Size and checksum of a file; nothing when it cannot be read.
std::optional<RecordedFile> record_file(const std::filesystem::path& folder,
                                        const std::string& name);

}  // namespace flotilla::io
