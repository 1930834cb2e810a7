#include "app/serve_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "app/launcher.h"
#include "base/error.h"
#include "base/temp_registry.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;
using fleet::Socket;

constexpr int kBacklog = 64;

sockaddr_un address_of(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& name = path.native();
  if (name.size() >= sizeof(address.sun_path)) {
    fail(ErrorKind::output,
         fmt::format("the name of a socket has at most {} bytes, \"{}\" has {}; name a shorter one "
                     "with --socket",
                     sizeof(address.sun_path) - 1, name, name.size()));
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  return address;
}

// Of the process at the other end.
ucred peer_of(int fd) {
  ucred peer{};
  peer.uid = static_cast<uid_t>(-1);
  socklen_t size = sizeof(peer);
  ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer;
}

// -1 inside, with errno.
Socket try_call(const fs::path& path) {
  const sockaddr_un address = address_of(path);
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() >= 0 &&
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Socket();
  return socket;
}

// A folder that others may write to could have anything in the place of the socket.
void require_own_folder(const fs::path& folder, ErrorKind kind) {
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0) {
    if (errno == ENOENT && kind == ErrorKind::machine) return;  // nobody serves then
    fail(kind, fmt::format("\"{}\": {}", folder.string(), std::strerror(errno)));
  }
  if (S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() && (facts.st_mode & 077) == 0) return;
  fail(kind,
       fmt::format("\"{}\" must be a folder of your own that others cannot enter (mode 0700); "
                   "name another place with --socket",
                   folder.string()));
}

void make_own_folder(const fs::path& folder) {
  (void)::mkdir(folder.c_str(), 0700);
  require_own_folder(folder, ErrorKind::output);
}

// Held while one server of this folder looks at who is there and takes the place.
Socket lock_folder(const fs::path& folder) {
  Socket lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0 || ::flock(lock.get(), LOCK_EX) != 0)
    fail(ErrorKind::output,
         fmt::format("the folder \"{}\": {}", folder.string(), std::strerror(errno)));
  return lock;
}

void clear_place(const fs::path& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return;
  if (!S_ISSOCK(facts.st_mode) || facts.st_uid != ::geteuid())
    fail(ErrorKind::output,
         fmt::format("\"{}\" is there and is no socket of yours", path.string()));
  if (const Socket living = try_call(path); living.get() >= 0) {
    fail(ErrorKind::failed_jobs,
         fmt::format("a server (process {}) listens at \"{}\" already; name another place with "
                     "--socket",
                     peer_of(living.get()).pid, path.string()));
  }
  ::unlink(path.c_str());
}

}  // namespace

fs::path default_socket() {
  const char* runtime = host().variable("XDG_RUNTIME_DIR");
  const fs::path folder = runtime != nullptr && fs::path(runtime).is_absolute()
                              ? fs::path(runtime) / "flotilla"
                              : fs::path(fmt::format("/tmp/flotilla-{}", ::geteuid()));
  return folder / "serve.sock";
}

ServeSocket::ServeSocket(fs::path path) : path_(std::move(path)) {
  const sockaddr_un address = address_of(path_);
  if (path_ == default_socket()) make_own_folder(path_.parent_path());
  const Socket lock = lock_folder(path_.parent_path());
  clear_place(path_);
  listener_ = Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const mode_t before = ::umask(0177);  // so that it never has another mode than 0600
  const bool bound =
      listener_.get() >= 0 &&
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int error = errno;
  ::umask(before);
  if (bound) entry_ = register_temporary(path_);
  if (!bound || ::listen(listener_.get(), kBacklog) != 0)
    fail(ErrorKind::output, fmt::format("no socket at \"{}\": {}", path_.string(),
                                        std::strerror(bound ? errno : error)));
}

ServeSocket::~ServeSocket() {
  ::unlink(path_.c_str());
  forget_temporary(entry_);
}

std::optional<Socket> ServeSocket::accept() {
  Socket caller(::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (caller.get() < 0 || peer_of(caller.get()).uid != ::geteuid()) return std::nullopt;
  return caller;
}

Socket call_server(const fs::path& path) {
  if (path == default_socket()) require_own_folder(path.parent_path(), ErrorKind::machine);
  Socket socket = try_call(path);
  if (socket.get() < 0) {
    fail(ErrorKind::communication,
         fmt::format("no server listens at \"{}\" ({}); start one with: flotilla serve",
                     path.string(), std::strerror(errno)));
  }
  if (peer_of(socket.get()).uid != ::geteuid())
    fail(ErrorKind::machine, fmt::format("the server at \"{}\" is another user's", path.string()));
  return socket;
}

}  // namespace flotilla::app
