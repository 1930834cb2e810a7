// What a job does while it runs, as events: one JSON object each, with "event" as its kind. For
// programs that watch a job (flotilla run --events, the fleet). Kinds and fields: docs/running.md.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace flotilla::io {

class EventSink {
 public:
  virtual ~EventSink() = default;
  // `event`: an object with "event". Never throws for a listener that is gone: the job goes on.
  virtual void emit(const nlohmann::json& event) = 0;
};

// The event as one line without its end, "event" in front. Bytes that are no UTF-8 are replaced.
std::string event_line(const nlohmann::json& event);

// One line an event, written at once. A write that fails (a reader that left, a full disk) is
// warned about once, and what follows is dropped.
class JsonLinesEvents final : public EventSink {
 public:
  // Lines go to the end of `path`, which may be a pipe; "-": standard output. Errors:
  // ErrorKind::output.
  explicit JsonLinesEvents(const std::filesystem::path& path);
  ~JsonLinesEvents() override;
  JsonLinesEvents(const JsonLinesEvents&) = delete;
  JsonLinesEvents& operator=(const JsonLinesEvents&) = delete;

  void emit(const nlohmann::json& event) override;

 private:
  std::filesystem::path path_;
  int fd_;
};

}  // namespace flotilla::io
