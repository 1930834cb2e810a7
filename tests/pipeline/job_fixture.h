// Whole jobs from YAML in a folder of their own, for tests of what is refused and what files hold.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "pipeline/jobs.h"
#include "support/temp_dir.h"

namespace flotilla::test {

class JobTest : public ::testing::Test {
 protected:
  // A job of 128 x 64, 9 frames on the tiny model. `models` are lines of that section, `more`
  // further keys.
  static std::string job_text(const std::string& pipeline, const std::string& models,
                              const std::string& more) {
    return fmt::format(
        "schema_version: 1\npipeline: {0}\nmodels:\n  checkpoint: {1}/ltx23-dev.safetensors\n"
        "  spatial_upsampler: {1}/ltx23-spatial-upscaler-x2.safetensors\n"
        "  text_encoder: {1}/gemma\n{2}prompt: a boat\n"
        "video: {{width: 128, height: 64, num_frames: 9, frame_rate: 24}}\n"
        "precision: fp32\ndevice: cpu\n{3}",
        pipeline, tiny_dir().string(), models, more);
  }

  // Everything into the test's folder, as .y4m, so that no ffmpeg is needed.
  static std::string outputs(const std::string& more = "") {
    return fmt::format("output: {{path: clip.y4m, latents: clip.h5, metrics: clip.json{}}}\n",
                       more);
  }

  config::LoadedJob load(const std::string& text) const {
    return config::load_job_text(text, "job.yaml", dir_.path());
  }

  pipeline::PreparedJob run(const std::string& text) const {
    auto prepared = pipeline::prepare_job(load(text), host());
    pipeline::run_job(prepared, host());
    return prepared;
  }

  // The error of preparing the job.
  Error refusal(const std::string& text) const {
    try {
      pipeline::prepare_job(load(text), host());
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorKind::internal, "accepted");
  }

  TempDir dir_;
};

}  // namespace flotilla::test
