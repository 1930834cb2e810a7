// A program's call to a server: requests out, events in (docs/commands/serve.md).
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/options.h"
#include "app/serve_request.h"
#include "app/serve_socket.h"

namespace flotilla::app {

void add_socket_option(po::options_description& options);

class ServerCall {
 public:
  // To the server of --socket, or the user's own. Errors: those of call_server().
  explicit ServerCall(const po::variables_map& values);

  // Errors (ErrorKind::communication): the server is gone.
  void send(const nlohmann::json& request);
  // The next event; waits, and calls `look` ten times a second. Errors (ErrorKind::communication):
  // the server is gone, or is none.
  nlohmann::json next(const std::function<void()>& look = [] {});

 private:
  fleet::Socket socket_;
  LineReader lines_;
};

// Of an event "error": says it in the log; the exit code.
int report_error_event(const nlohmann::json& event);

}  // namespace flotilla::app
