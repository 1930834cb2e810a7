// The processes of the ranks as other ranks of the machine see them, through /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace flotilla::comm {

// One process of this machine. The start time tells it from a later one with the same id.
struct Process {
  int world_rank = 0;
  pid_t pid = 0;
  int64_t start_ticks = 0;  // since boot; field 22 of /proc/<pid>/stat
};
Process this_process(int world_rank);

enum class ProcessState { works, stopped, gone };  // stopped: by SIGSTOP or a debugger
ProcessState look_at(const Process& process);
// Whatever process has that id now.
ProcessState look_at(pid_t process);
inline bool is_alive(const Process& process) { return look_at(process) != ProcessState::gone; }

}  // namespace flotilla::comm
