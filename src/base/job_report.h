// What a rank reports to the process that controls its job (app/controller.h), over a socket: exit
// codes that mpirun would not pass on. Nothing happens in a process without a controller. The
// socket's number is global, like the table of temporary files: those who end a job in a fault have
// nobody left who could hand it to them.
#pragma once

#include <cstdint>

namespace flotilla {

struct JobReport {
  enum class What : int32_t {
    start,    // value: the rank; detail: Open MPI's number of the job
    verdict,  // value: exit code of the whole job, from the one rank that reports its fault
    end,      // value: exit code of this rank, which has nothing left to do
  };
  What what = What::start;
  int32_t value = 0;
  int64_t detail = 0;
};

// A connected SOCK_SEQPACKET socket; -1: none any more.
void set_report_socket(int fd) noexcept;
// Never blocks; async-signal-safe.
void send_report(const JobReport& report) noexcept;

}  // namespace flotilla
