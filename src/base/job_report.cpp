#include "base/job_report.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace flotilla {
namespace {

constinit std::atomic<int> report_socket{-1};
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

void set_report_socket(int fd) noexcept { report_socket.store(fd); }

void send_report(const JobReport& report) noexcept {
  const int fd = report_socket.load();
  if (fd >= 0) (void)!::send(fd, &report, sizeof(report), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void send_last_words(ErrorKind kind, std::string_view text, Culprit culprit) noexcept {
  const int fd = report_socket.load();
  if (fd < 0) return;
  JobReport report{JobReport::What::words, static_cast<int32_t>(kind),
                   static_cast<int64_t>(culprit)};
  std::array<iovec, 2> parts = {
      iovec{&report, sizeof(report)},
      iovec{const_cast<char*>(text.data()), std::min(text.size(), kMaxWordsBytes)}};
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  (void)!::sendmsg(fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace flotilla
