#include "io/events.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace flotilla::io {
namespace {

// False: cannot be written; errno says why.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

int open_lines(const std::filesystem::path& path) {
  if (path == "-") return ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

}  // namespace

std::string event_line(const nlohmann::json& event) {
  nlohmann::ordered_json line = {{"event", event.at("event")}};
  for (const auto& [key, value] : event.items()) line[key] = value;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

JsonLinesEvents::JsonLinesEvents(const std::filesystem::path& path)
    : path_(path), fd_(open_lines(path)) {
  if (fd_ >= 0) return;
  fail(ErrorKind::output, fmt::format("--events: \"{}\" cannot be opened for writing: {}",
                                      path.string(), std::strerror(errno)));
}

JsonLinesEvents::~JsonLinesEvents() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonLinesEvents::emit(const nlohmann::json& event) {
  if (fd_ < 0) return;
  // One write a line, so that lines of several writers do not mix.
  if (write_all(fd_, event_line(event) + "\n")) return;
  log::warn("events", "\"{}\" cannot be written any more ({}); the job goes on without events",
            path_.string(), std::strerror(errno));
  ::close(fd_);
  fd_ = -1;
}

}  // namespace flotilla::io
