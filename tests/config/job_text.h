// Small jobs for the tests of config/: a complete good one, changed line by line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/load.h"

namespace flotilla::test {

inline const std::string kModels =
    "models: {checkpoint: m.safetensors, spatial_upsampler: u.safetensors, text_encoder: gemma}\n";
inline const std::string kGoodJob = kModels + "prompt: a fox\n";
inline const std::string kTwoStageJob =
    "pipeline: ti2vid_two_stages\n"
    "models: {checkpoint: m.safetensors, spatial_upsampler: u.safetensors, text_encoder: gemma,\n"
    "  distilled_lora: {path: lora.safetensors}}\n"
    "prompt: a fox\n";

inline config::LoadedJob load(std::string_view text,
                              const std::vector<config::Override>& overrides = {}) {
  return config::load_job_text(text, "job.yaml", "/jobs", overrides);
}
inline config::Job job_of(std::string_view text,
                          const std::vector<config::Override>& overrides = {}) {
  return load(text, overrides).job;
}

// The message that `text` is refused with; "" when it is accepted. Other exceptions pass through.
inline std::string refusal(std::string_view text,
                           const std::vector<config::Override>& overrides = {}) {
  try {
    load(text, overrides);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::config) throw;
    return error.message();
  }
  return "";
}
// kGoodJob with more lines behind it: they begin in line 3.
inline std::string refusal_with(const std::string& lines) { return refusal(kGoodJob + lines); }

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
inline size_t count_lines(std::string_view text) {
  size_t lines = text.empty() ? 0 : 1;
  for (const char c : text) lines += c == '\n' ? 1 : 0;
  return lines;
}

}  // namespace flotilla::test
