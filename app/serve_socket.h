// Where a server is found: a Unix socket with mode 0600, by default in a folder of the user with
// mode 0700. Both sides check who owns it, and who is at the other end.
#pragma once

#include <filesystem>
#include <optional>

#include "fleet/control_socket.h"

namespace flotilla::app {

// $XDG_RUNTIME_DIR/flotilla/serve.sock; /tmp/flotilla-UID/serve.sock without that variable.
std::filesystem::path default_socket();

class ServeSocket {
 public:
  // Listens at `path`; makes the folder of default_socket(). The socket of a server that is gone is
  // replaced. Errors: ErrorKind::failed_jobs (another server listens there); ErrorKind::output (the
  // folder is not the user's own, there is something else, the path is too long).
  explicit ServeSocket(std::filesystem::path path);
  ~ServeSocket();  // removes it; so does a signal
  ServeSocket(const ServeSocket&) = delete;
  ServeSocket& operator=(const ServeSocket&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return listener_.get(); }
  // The next caller, whose socket does not block; nothing when nobody calls, or another user does.
  std::optional<fleet::Socket> accept();

 private:
  std::filesystem::path path_;
  fleet::Socket listener_;
  int entry_ = -1;  // in the registry of what a signal removes
};

// Errors: ErrorKind::communication (no server listens there), ErrorKind::machine (one of another
// user does, or the default folder is another user's).
fleet::Socket call_server(const std::filesystem::path& path);

}  // namespace flotilla::app
