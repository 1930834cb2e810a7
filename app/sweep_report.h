// What flotilla sweep tells of its points: the list before, the forecast, the table at the end.
#pragma once

#include "config/sweep.h"
#include "pipeline/sweep.h"

namespace flotilla::app {

// --list: each point of the selection with its name, state and settings.
void list_points(const config::Sweep& sweep, const pipeline::SweepSelection& selection,
                 bool as_json);

// --dry-run: prepares each point of the selection without running it, for `world_size` ranks; the
// number of points that would fail.
int64_t forecast_points(const config::Sweep& sweep, const pipeline::SweepSelection& selection,
                        const pipeline::Host& host, int64_t world_size, bool as_json);

void report_points(const config::Sweep& sweep, const pipeline::SweepResult& result, bool as_json);

}  // namespace flotilla::app
