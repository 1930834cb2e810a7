// The files that a job leaves: clip, contact sheet, latents, metrics. Places are proven before the
// work starts; every file appears whole or not at all.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "audio/vocoder.h"
#include "config/job.h"
#include "io/frame_sink.h"
#include "io/latents_file.h"
#include "io/png_writer.h"
#include "io/video_writer.h"
#include "pipeline/plan.h"

namespace flotilla::pipeline {

// Tries every output place and container; makes missing folders. Errors: ErrorKind::output
// for all bad places together, ErrorKind::config (a container that cannot be written, a stop file
// that is there),
// ErrorKind::machine (.mp4 without ffmpeg).
void check_outputs(const config::Job& job, bool ffmpeg_found);

// The clip's files while they are written: frames go in through a queue, so encoding runs beside
// decoding.
class ClipWriter {
 public:
  // `comment` goes into the mp4's metadata: the job in force.
  ClipWriter(const config::Job& job, const Plan& plan, const std::filesystem::path& ffmpeg,
             const std::string& comment);

  // Before the last frame, when the job wants sound.
  void set_audio(const audio::Waveform& waveform);
  // finish() of it completes all files.
  io::FrameSink& frames() { return *queue_; }
  // With output.save_frames: uint8 [F, H, W, 3], after finish(); else undefined.
  at::Tensor saved_frames() const { return collector_ ? collector_->frames() : at::Tensor(); }

 private:
  std::unique_ptr<io::VideoWriter> writer_;
  std::unique_ptr<io::ContactSheet> sheet_;
  std::unique_ptr<io::FrameCollector> collector_;
  std::unique_ptr<io::FanOut> fan_out_;
  std::unique_ptr<io::FrameQueue> queue_;  // last: its thread ends before the sinks go
};

// One line a file that was written, for standard output.
std::vector<std::string> describe_outputs(const config::Job& job, const Plan& plan);

}  // namespace flotilla::pipeline
