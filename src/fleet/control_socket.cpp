#include "fleet/control_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>

#include "base/error.h"

namespace flotilla::fleet {
namespace {

int type_of(SocketKind kind) {
  return (kind == SocketKind::packets ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC;
}

struct Address {
  explicit Address(const std::string& name) {
    value.sun_family = AF_UNIX;
    // sun_path[0] stays 0: the abstract namespace.
    const size_t count = std::min(name.size(), sizeof(value.sun_path) - 1);
    std::memcpy(value.sun_path + 1, name.data(), count);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }

  sockaddr_un value{};
  socklen_t size = 0;
};

using Streams = std::array<int, 2>;

// A message of an Order and room for two descriptors.
struct Letter {
  explicit Letter(Order& order) : part{&order, sizeof(order)} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  Letter(const Letter&) = delete;
  Letter& operator=(const Letter&) = delete;

  iovec part;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(Streams))> control{};
  msghdr header{};
};

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}
Socket::Socket(Socket&& other) noexcept : fd_(other.release()) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
int Socket::release() noexcept { return std::exchange(fd_, -1); }

std::string new_socket_name() {
  std::random_device random;
  return fmt::format("flotilla.{}.{:08x}{:08x}", ::getpid(), random(), random());
}

Socket listen_at(const std::string& name, SocketKind kind) {
  constexpr int kBacklog = 1024;  // all ranks may call at once
  const Address address(name);
  Socket listener(::socket(AF_UNIX, type_of(kind) | SOCK_NONBLOCK, 0));
  if (listener.get() < 0 || ::bind(listener.get(), address.get(), address.size) != 0 ||
      ::listen(listener.get(), kBacklog) != 0)
    fail(ErrorKind::machine, fmt::format("no socket for the ranks: {}", std::strerror(errno)));
  return listener;
}

Socket connect_to(const std::string& name, SocketKind kind) {
  const Address address(name);
  Socket socket(::socket(AF_UNIX, type_of(kind), 0));
  if (socket.get() >= 0 && ::connect(socket.get(), address.get(), address.size) != 0)
    return Socket();
  return socket;
}

std::optional<Caller> accept_caller(const Socket& listener) {
  Socket socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.get() < 0) return std::nullopt;
  ucred who{};
  socklen_t size = sizeof(who);
  const bool known = ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  if (!known || who.uid != ::geteuid()) return std::nullopt;
  return Caller{std::move(socket), who.pid};
}

bool send_order(int fd, const Order& order) noexcept {
  return ::send(fd, &order, sizeof(order), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(order);
}

bool send_welcome(int fd, const Streams& streams) noexcept {
  Order order{Order::What::welcome};
  Letter letter(order);
  cmsghdr* control = CMSG_FIRSTHDR(&letter.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(streams));
  std::memcpy(CMSG_DATA(control), streams.data(), sizeof(streams));
  return ::sendmsg(fd, &letter.header, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(order);
}

bool receive_welcome(int fd, Streams& streams) noexcept {
  Order order;
  Letter letter(order);
  ssize_t count = 0;
  do {
    count = ::recvmsg(fd, &letter.header, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  const cmsghdr* control = CMSG_FIRSTHDR(&letter.header);
  if (count != sizeof(order) || control == nullptr || control->cmsg_type != SCM_RIGHTS ||
      control->cmsg_len != CMSG_LEN(sizeof(streams)))
    return false;
  std::memcpy(streams.data(), CMSG_DATA(control), sizeof(streams));
  return true;
}

bool receive_order(int fd, Order& order) noexcept {
  ssize_t count = 0;
  do {
    count = ::recv(fd, &order, sizeof(order), 0);
  } while (count < 0 && errno == EINTR);
  return count == sizeof(order);
}

std::optional<JobReport> receive_report(int fd, bool& gone, std::string* words) {
  JobReport report;
  std::array<char, kMaxWordsBytes> text{};
  std::array<iovec, 2> parts = {iovec{&report, sizeof(report)}, iovec{text.data(), text.size()}};
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  const ssize_t count = ::recvmsg(fd, &packet, MSG_DONTWAIT);
  if (count >= static_cast<ssize_t>(sizeof(report))) {
    if (words != nullptr) words->assign(text.data(), static_cast<size_t>(count) - sizeof(report));
    return report;
  }
  gone = count >= 0 || (errno != EAGAIN && errno != EINTR);
  return std::nullopt;
}

}  // namespace flotilla::fleet
