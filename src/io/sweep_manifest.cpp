#include "io/sweep_manifest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "io/clock.h"

namespace flotilla::io {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kEvents = {PointEvent::started, PointEvent::stopped, PointEvent::done,
                                PointEvent::failed};

[[noreturn]] void fail_manifest(const fs::path& file, const char* what) {
  fail(ErrorKind::output, fmt::format("cannot {} the sweep's manifest \"{}\": {}", what,
                                      file.string(), std::strerror(errno)));
}

void write_all(int fd, std::string_view text, const fs::path& file) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_manifest(file, "write");
    text.remove_prefix(static_cast<size_t>(count));
  }
}

// So that the file is there after a power cut too.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

bool ends_a_line(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  char last = '\n';
  return size <= 0 || (::pread(fd, &last, 1, size - 1) == 1 && last == '\n');
}

std::optional<PointEvent> event_of(const std::string& word) {
  const auto found = std::find_if(kEvents.begin(), kEvents.end(),
                                  [&](PointEvent event) { return to_string(event) == word; });
  return found == kEvents.end() ? std::nullopt : std::optional(*found);
}

bool is_manifest(const fs::path& path) {
  return path.extension() == ".jsonl" && path.filename().string().starts_with("sweep");
}

void read_manifest(const fs::path& file, std::vector<PointRecord>& records) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    fail(ErrorKind::input, fmt::format("the sweep's manifest \"{}\" cannot be read: {}",
                                       file.string(), std::strerror(errno)));
  }
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool is_cut = in.eof();
    if (line.empty()) continue;
    auto record = parse_record(line);
    if (record && !is_cut) {
      records.push_back(std::move(*record));
    } else if (!is_cut) {
      log::warn("sweep", "{}:{}: no record of a point, passed over", file.string(), number);
    }
  }
}

}  // namespace

std::string_view to_string(PointEvent event) {
  switch (event) {
    case PointEvent::started:
      return "started";
    case PointEvent::stopped:
      return "stopped";
    case PointEvent::done:
      return "done";
    case PointEvent::failed:
      return "failed";
  }
  return "?";
}

SweepManifest::SweepManifest(const fs::path& file)
    : file_(file), fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (fd_ < 0) fail_manifest(file_, "open");
  if (!ends_a_line(fd_)) write_all(fd_, "\n", file_);
  sync_folder(file_.parent_path());
}

SweepManifest::~SweepManifest() { ::close(fd_); }

void SweepManifest::append(const PointRecord& record) {
  write_all(fd_, record_line(record) + '\n', file_);
  if (::fsync(fd_) != 0) fail_manifest(file_, "sync");
}

std::string record_line(const PointRecord& record) {
  Json json = {{"point", record.point},
               {"hash", record.hash},
               {"state", to_string(record.event)},
               {"name", record.name},
               {"values", Json::object()},
               {"seed", record.seed ? Json(*record.seed) : Json()},
               {"time", time_text(record.time_s)},
               {"time_s", record.time_s},
               {"output", record.output},
               {"world", record.world},
               {"version", record.version},
               {"host", record.host},
               {"process", record.process}};
  for (const auto& [key, value] : record.values) json["values"][key] = value;
  if (record.event != PointEvent::started) {
    json["exit_code"] = record.exit_code;
    json["seconds"] = record.seconds;
  }
  if (!record.error.empty()) json["error"] = record.error;
  if (record.event == PointEvent::done) {
    json["checksum"] = record.checksum;
    json["files"] = Json::array();
    for (const auto& [name, bytes, checksum] : record.files)
      json["files"].push_back({{"name", name}, {"bytes", bytes}, {"checksum", checksum}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<PointRecord> parse_record(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  try {
    PointRecord record;
    const auto event = event_of(json.at("state").get<std::string>());
    if (!event) return std::nullopt;
    record.event = *event;
    record.point = json.at("point").get<int64_t>();
    record.hash = json.at("hash").get<std::string>();
    record.name = json.value("name", "");
    const Json values = json.value("values", Json::object());
    for (const auto& [key, value] : values.items())
      record.values.emplace_back(key, value.get<std::string>());
    if (json.contains("seed") && !json["seed"].is_null())
      record.seed = json["seed"].get<uint64_t>();
    record.exit_code = json.value("exit_code", 0);
    record.error = json.value("error", "");
    record.time_s = json.value("time_s", 0.0);
    record.seconds = json.value("seconds", 0.0);
    record.output = json.value("output", "");
    record.checksum = json.value("checksum", "");
    for (const Json& file : json.value("files", Json::array()))
      record.files.push_back({file.at("name").get<std::string>(), file.at("bytes").get<int64_t>(),
                              file.at("checksum").get<std::string>()});
    record.world = json.value("world", int64_t{1});
    record.version = json.value("version", "");
    record.host = json.value("host", "");
    record.process = json.value("process", int64_t{0});
    return record;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;  // of another type than expected
  }
}

std::vector<PointRecord> read_manifests(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (is_manifest(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<PointRecord> records;
  for (const auto& file : files) read_manifest(file, records);
  std::stable_sort(records.begin(), records.end(),
                   [](const PointRecord& a, const PointRecord& b) { return a.time_s < b.time_s; });
  return records;
}

std::optional<RecordedFile> record_file(const fs::path& folder, const std::string& name) {
  std::ifstream in(folder / name, std::ios::binary);
  std::vector<char> buffer(1 << 20);
  uint64_t hash = kHashStart;
  RecordedFile file{.name = name};
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash = add_to_hash(hash, {buffer.data(), static_cast<size_t>(in.gcount())});
    file.bytes += in.gcount();
  }
  if (!in.eof()) return std::nullopt;
  file.checksum = hash_text(hash);
  return file;
}

}  // namespace flotilla::io
