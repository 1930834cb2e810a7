// Charts of a run as inline SVG, from its metrics. They have texts and titles, so that they can be
// read without colours.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace flotilla::app::html {

// A lane a rank, a bar a phase; `timeline`: that of the metrics. "" when it is empty or no list.
std::string timeline_chart(const nlohmann::json& timeline);

// Bars from 0 to the largest of `values` (seconds, a step each).
std::string step_chart(const nlohmann::json& values);

}  // namespace flotilla::app::html
