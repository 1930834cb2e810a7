// What a rank reports to the process that controls its job (app/controller.h, fleet/controller.h),
// over a socket: exit codes and causes that mpirun would not pass on. Nothing happens in a process
// without a controller. The socket's number is global, like the table of temporary files: those who
// end a job in a fault have nobody left who could hand it to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace flotilla {

struct JobReport {
  enum class What : int32_t {
    start,    // value: the rank; detail: Open MPI's number of the job
    verdict,  // value: exit code of the whole job, from the one rank that reports its fault
    end,      // value: exit code of this rank, which has nothing left to do
    words,    // value: the ErrorKind of what ends the job; detail: the Culprit; the text follows
  };
  What what = What::start;
  int32_t value = 0;
  int64_t detail = 0;
};

// A connected SOCK_SEQPACKET socket; -1: none any more.
void set_report_socket(int fd) noexcept;
// Never blocks; async-signal-safe.
void send_report(const JobReport& report) noexcept;
// What ends the job, from the rank that reports it; cut to kMaxWordsBytes.
inline constexpr size_t kMaxWordsBytes = 4000;
enum class Culprit : int32_t { sender, several };
void send_last_words(ErrorKind kind, std::string_view text,
                     Culprit culprit = Culprit::sender) noexcept;

}  // namespace flotilla
