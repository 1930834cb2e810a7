// The two pages of flotilla report, as HTML.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "app/html.h"

namespace flotilla::app {

// Of a run: settings, clip, contact sheet, timeline, steps, exchange, memory. `metrics`: what is in
// the file `path`. What is missing there is missing on the page.
std::string run_page(const nlohmann::json& metrics, const std::filesystem::path& path,
                     html::Files& files);

// Of a sweep's folder: clips along the axes, failed points by name, a table that can be sorted.
// Errors (ErrorKind::input): the folder has no manifest, or one that cannot be read.
std::string sweep_page(const std::filesystem::path& folder, html::Files& files);

}  // namespace flotilla::app
