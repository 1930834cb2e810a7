// How jobs and fleets fail, as the program that has the Controller sees it (docs/fleet.md). All are
// flotilla::Error with the ranks that are at fault, as far as they are known.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace flotilla::fleet {

// What some ranks have in common.
struct RankError {
  std::vector<int> ranks;
  ErrorKind kind = ErrorKind::internal;
  std::string text;
};

class FleetError : public Error {
 public:
  FleetError(ErrorKind kind, std::vector<int> ranks, std::string text)
      : Error(kind, std::move(text)), ranks_(std::move(ranks)) {}
  const std::vector<int>& ranks() const noexcept { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// The fleet did not come up; no process of it is left.
class StartError : public FleetError {
  using FleetError::FleetError;
};

// A job is in flight, or its stream has not been read to its end. (ErrorKind::failed_jobs)
class ControllerBusyError : public FleetError {
  using FleetError::FleetError;
};

// The job was refused by all ranks alike. The fleet takes the next one.
class SymmetricRunnerError : public FleetError {
  using FleetError::FleetError;
};

// Some ranks failed and others did not, or with other errors. All came to the end of the job, so
// the fleet takes the next one; but ranks that disagree point to a fault in the runner.
class AsymmetricRunnerError : public FleetError {
 public:
  // Kind and ranks are those of all reports, the kind of the first one.
  explicit AsymmetricRunnerError(std::vector<RankError> reports);
  const std::vector<RankError>& reports() const noexcept { return reports_; }

 private:
  std::vector<RankError> reports_;
};

// The fleet is of no more use, and its processes end. All later calls throw it, with the first
// cause.
class PoisonedError : public FleetError {
  using FleetError::FleetError;
};

// shutdown() came first. (ErrorKind::usage)
class ClosedError : public FleetError {
  using FleetError::FleetError;
};

}  // namespace flotilla::fleet
