// The sockets between a controller and its ranks: in the abstract namespace, so that no file stays
// behind. Orders and reports go as whole packets; the messages of a fleet as a stream (frame.h).
#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>

#include "base/job_report.h"
#include "fleet/lifeline.h"

namespace flotilla::fleet {

// Owner of a descriptor.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int get() const { return fd_; }
  int release() noexcept;

 private:
  int fd_;
};

// A name that no other listener of this machine has.
std::string new_socket_name();

enum class SocketKind { packets, stream };
// Errors (ErrorKind::machine): the system has no such socket left.
Socket listen_at(const std::string& name, SocketKind kind = SocketKind::packets);
// -1 inside, with errno: nobody listens.
Socket connect_to(const std::string& name, SocketKind kind = SocketKind::packets);
// The next caller; nothing when nobody calls, or a process of another user does.
struct Caller {
  Socket socket;
  pid_t pid;
};
std::optional<Caller> accept_caller(const Socket& listener);

// False when the other side is gone. The welcome takes copies of the descriptors `streams` along.
bool send_order(int fd, const Order& order) noexcept;
bool send_welcome(int fd, const std::array<int, 2>& streams) noexcept;
// Waits; false when the other side is gone. `streams` gets what came along, which the caller owns.
bool receive_welcome(int fd, std::array<int, 2>& streams) noexcept;
bool receive_order(int fd, Order& order) noexcept;

// A report that is there: nothing when none is. `gone`: the other side has left.
// `words` gets what follows the report in its packet.
std::optional<JobReport> receive_report(int fd, bool& gone, std::string* words = nullptr);

}  // namespace flotilla::fleet
