// The events of a whole job; phases and steps are told by Phases. Kinds and fields:
// docs/running.md.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/error.h"
#include "pipeline/phases.h"
#include "pipeline/run_job.h"

namespace flotilla::pipeline {

// The job is checked and planned, and begins.
nlohmann::json accepted_event(const PreparedJob& prepared);
// All outputs are written.
nlohmann::json done_event(const PreparedJob& prepared, const Phases& phases);
// It ended otherwise; ErrorKind::stopped too.
nlohmann::json error_event(ErrorKind kind, std::string_view message);

}  // namespace flotilla::pipeline
