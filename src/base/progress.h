// Progress of long work: a bar with ETA on a terminal, plain lines elsewhere (a log file, a pipe).
// One bar at a time, on standard error, from rank 0 only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace flotilla {

class Progress {
 public:
  // `enabled` false makes it silent (other ranks, --quiet). `done` items were finished before, by
  // another run. Whether standard error is a terminal is found out here.
  Progress(std::string title, int64_t total, bool enabled = true, int64_t done = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of `total` items are finished.
  void update(int64_t done);
  double elapsed_s() const;
  // Seconds to the end, by the items finished so far; 0 before the first one.
  double eta_s() const;

 private:
  void draw(int64_t done, bool last);

  std::string title_;
  int64_t total_;
  bool enabled_;
  bool terminal_;
  int64_t done_;
  int64_t done_before_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace flotilla
