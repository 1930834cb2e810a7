#include "base/job_report.h"

#include <sys/socket.h>

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

}  // namespace flotilla
