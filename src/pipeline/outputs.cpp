#include "pipeline/outputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/temp_file.h"
#include "config/job_files.h"

namespace flotilla::pipeline {

void check_outputs(const config::Job& job, bool ffmpeg_found) {
  io::choose_container(job.output.path, ffmpeg_found);
  std::vector<std::string> faults;
  for (const auto& file : config::output_files(job)) {
    // A run that goes on from its checkpoint writes the next one in its place.
    const bool goes_on =
        file.key == "checkpoint.path" && job.checkpoint.resume != config::Resume::never;
    try {
      check_output_place(file.path, job.output.overwrite || goes_on);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::output) throw;
      faults.push_back(error.message());
    }
  }
  std::error_code ignored;
  if (!job.limits.stop_file.empty() && std::filesystem::exists(job.limits.stop_file, ignored)) {
    fail(ErrorKind::config,
         fmt::format("limits.stop_file \"{}\" is there already; remove it to run "
                     "the job",
                     job.limits.stop_file.string()));
  }
  if (!faults.empty()) fail(ErrorKind::output, fmt::format("{}", fmt::join(faults, "\n")));
}

ClipWriter::ClipWriter(const config::Job& job, const Plan& plan,
                       const std::filesystem::path& ffmpeg, const std::string& comment) {
  io::VideoWriterOptions options;
  options.path = job.output.path;
  options.ffmpeg = ffmpeg;
  options.format = plan.format;
  options.overwrite = job.output.overwrite;
  options.audio = job.output.audio;
  options.comment = comment;
  writer_ = io::make_video_writer(options);
  std::vector<io::FrameSink*> sinks = {writer_.get()};
  if (!job.output.contact_sheet.empty()) {
    sheet_ = std::make_unique<io::ContactSheet>(job.output.contact_sheet, plan.format,
                                                job.output.overwrite);
    sinks.push_back(sheet_.get());
  }
  if (job.output.save_frames) {
    collector_ = std::make_unique<io::FrameCollector>(plan.format);
    sinks.push_back(collector_.get());
  }
  fan_out_ = std::make_unique<io::FanOut>(std::move(sinks));
  queue_ = std::make_unique<io::FrameQueue>(*fan_out_);
}

void ClipWriter::set_audio(const audio::Waveform& waveform) {
  writer_->set_audio(io::make_audio_track(waveform.samples[0], waveform.sample_rate));
}

std::vector<std::string> describe_outputs(const config::Job& job, const Plan& plan) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("clip           {}  ({} x {}, {} frames, {} fps, {:.2f} s, {})",
                              job.output.path.string(), plan.format.width, plan.format.height,
                              plan.format.num_frames, job.video.frame_rate.to_string(),
                              plan.format.duration_s(),
                              job.output.audio ? "with sound" : "silent"));
  const auto add = [&lines](const char* what, const std::filesystem::path& path) {
    if (!path.empty()) lines.push_back(fmt::format("{:<14} {}", what, path.string()));
  };
  add("contact sheet", job.output.contact_sheet);
  add("latents", job.output.latents);
  add("metrics", job.output.metrics);
  return lines;
}

}  // namespace flotilla::pipeline
