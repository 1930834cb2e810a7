// The process as the system sees it: signals and the three standard streams.
#pragma once

namespace flotilla::app {

// First thing in main():
// - SIGINT, SIGTERM, SIGHUP and SIGUSR1 remove unfinished outputs and then end the process as they
//   always do (a shell reports 128 + number). One that the caller has set to be ignored (nohup)
//   stays so.
// - SIGPIPE and SIGXFSZ are ignored: a reader that left, and a file beyond the limit on its size,
//   show as errors of the write.
// - A standard stream that the caller has closed is put back as one that refuses use; otherwise the
//   next file that is opened would take its number, and get the log lines.
// - Standard output is kept back until flush_results().
void set_up_process();

// From now on the first of these signals only leaves its number for held_signal(); the second one
// ends the process as before. Signals within a fifth of a second count as one: some launchers
// deliver them twice.
void hold_first_signal();
// 0: none came.
int held_signal() noexcept;
// As if `signal` had come and were held, whether or not this process holds signals yet: the wish of
// a controller, which comes as a message.
void leave_signal(int signal) noexcept;

// Writes out what was printed. Errors (ErrorKind::output): it cannot be written.
void flush_results();

}  // namespace flotilla::app
