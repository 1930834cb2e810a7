// How a job went on each rank, gathered at its end: the agreement that decides what the controller
// hears, and how that is written in a frame of kind `end`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "fleet/errors.h"
#include "fleet/message.h"

namespace flotilla::fleet {

struct JobEnd {
  std::vector<RankError> errors;  // none: it went well
  bool alike = false;             // one error, of all ranks
};

// Collective; the same on all ranks. `own`: the error of this rank. When the others do not come and
// do not get on for `patience_s` (they wait in a collective call that this rank has left), `own`
// passes on as it is. Errors (ErrorKind::communication): a rank is gone.
JobEnd gather_outcomes(comm::Communicator& world, const std::optional<Error>& own,
                       double patience_s);

// "rank 3", "ranks 1, 2".
std::string ranks_text(const std::vector<int>& ranks);
// "rank 1: text", a line for each.
std::string describe(const std::vector<RankError>& errors);

Message to_message(const JobEnd& end);
// Errors (ErrorKind::communication): no such message.
JobEnd job_end_from(const Message& message);
// Nothing when the job went well; else throws SymmetricRunnerError or AsymmetricRunnerError.
void throw_errors(const JobEnd& end);

}  // namespace flotilla::fleet
