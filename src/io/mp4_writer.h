// mp4 through the ffmpeg program; see video_writer.h for the settings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/temp_file.h"
#include "io/subprocess.h"
#include "io/video_writer.h"

namespace flotilla::io {

class Mp4Writer final : public VideoWriter {
 public:
  explicit Mp4Writer(const VideoWriterOptions& options);
  void push(const FrameBatch& batch) override;
  void set_audio(AudioTrack track) override;
  void finish() override;

 private:
  std::vector<std::string> video_command() const;
  std::vector<std::string> mux_command(const std::filesystem::path& video) const;
  // Waits for the end of a run of ffmpeg. Errors: ErrorKind::output unless it went well.
  void end_process(Process& process) const;
  [[noreturn]] void fail_process(Process& process) const;
  void mux();
  void verify() const;

  VideoWriterOptions options_;
  FrameOrder order_;
  PendingFile file_;
  std::optional<PendingFile> silent_;  // the video alone, while sound is to come
  std::optional<AudioTrack> track_;
  std::optional<Process> encoder_;
  std::vector<uint8_t> yuv_;  // one frame
};

}  // namespace flotilla::io
