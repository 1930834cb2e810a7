#include "app/server_call.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kLookEveryMs = 100;

[[noreturn]] void fail_gone() {
  fail(ErrorKind::communication, "the server has ended before it has answered");
}

}  // namespace

void add_socket_option(po::options_description& options) {
  options.add_options()("socket", po::value<std::string>()->value_name("PATH"),
                        "of the server (default: that of flotilla serve)");
}

ServerCall::ServerCall(const po::variables_map& values)
    : socket_(call_server(values.count("socket") != 0
                              ? fs::absolute(values["socket"].as<std::string>())
                              : default_socket())) {}

void ServerCall::send(const json& request) {
  const std::string line = request.dump() + '\n';
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t count = ::send(socket_.get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // it may have said why: next() tells
    left.remove_prefix(static_cast<size_t>(count));
  }
}

json ServerCall::next(const std::function<void()>& look) {
  while (true) {
    if (const auto line = lines_.next()) {
      json event = json::parse(*line, /*cb=*/nullptr, /*allow_exceptions=*/false);
      if (event.is_object() && event.contains("event") && event["event"].is_string()) return event;
      fail(ErrorKind::communication,
           fmt::format("what answers is no flotilla server: \"{}\"", excerpt(*line)));
    }
    look();
    pollfd waiting{socket_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kLookEveryMs) <= 0) continue;
    std::array<char, 1 << 16> bytes;
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_gone();
    lines_.add({bytes.data(), static_cast<size_t>(count)});
  }
}

int report_error_event(const json& event) {
  const int code = event.value("exit_code", exit_code(ErrorKind::internal));
  const std::string text = event.value("message", "");
  if (code == exit_code(ErrorKind::stopped)) {
    log::warn("submit", "{}", text);
  } else {
    log::error(event.value("kind", "internal"), "{}", text);
  }
  return code;
}

}  // namespace flotilla::app
