// YUV4MPEG2: a line of text, then raw 4:2:0 frames; every player and encoder of note reads it.
#pragma once

#include <optional>
#include <vector>

#include "base/temp_file.h"
#include "io/file_bytes.h"
#include "io/video_writer.h"

namespace flotilla::io {

class Y4mWriter final : public VideoWriter {
 public:
  explicit Y4mWriter(const VideoWriterOptions& options);
  void push(const FrameBatch& batch) override;
  void set_audio(AudioTrack track) override;
  void finish() override;

 private:
  VideoFormat format_;
  FrameOrder order_;
  PendingFile video_;
  std::optional<PendingFile> sound_;
  std::optional<AudioTrack> track_;
  ByteWriter writer_;
  std::vector<uint8_t> yuv_;  // one frame
};

}  // namespace flotilla::io
