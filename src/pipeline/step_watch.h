// A thread of each rank that watches its own compute thread while that works on a step or a tile: a
// GPU that hangs or an endless loop would otherwise be seen by nobody where there is one rank, and
// by the others only at the end of their patience. What is too long follows from this run itself:
// many times its slowest step of the same phase, and never less than minutes. So the first step of
// a phase is not watched, nor is what happens between steps (loading, checkpoints, files on slow
// disks). Calls neither Torch nor MPI.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "pipeline/ranks.h"

namespace flotilla::pipeline {

class StepWatch {
 public:
  static constexpr double kLeastPatienceSeconds = 300;
  static constexpr double kSlowestTimes = 20;

  // `least_s` in place of kLeastPatienceSeconds, for tests.
  explicit StepWatch(const Ranks& ranks, double least_s = kLeastPatienceSeconds)
      : ranks_(ranks), least_s_(least_s) {}
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // The compute thread begins to work at `place`, "stage_1, step 3 of 8", where the slowest piece
  // of work took `slowest_s`. When it takes too long, the process ends with exit code 6 and one
  // line. Time in which the process is suspended, or waits for other ranks, does not count.
  void begin(std::string place, double slowest_s);
  // It has got through.
  void end();

 private:
  void run();
  [[noreturn]] void end_process(double worked_s) const;

  Ranks ranks_;
  double least_s_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool watches_ = false;
  double worked_s_ = 0;
  double slowest_s_ = 0;
  std::string place_;
  std::thread thread_;  // from the first begin() on
};

}  // namespace flotilla::pipeline
