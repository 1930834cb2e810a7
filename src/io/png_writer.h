// PNG files of frames, and the contact sheet: a few frames of the clip in one picture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/temp_file.h"
#include "io/frame_sink.h"

namespace flotilla::io {

// RGB bytes [height, width, 3] as a PNG. Errors: ErrorKind::output.
std::vector<uint8_t> png_bytes(std::span<const uint8_t> rgb, int64_t width, int64_t height);
// Writes RGB bytes [height, width, 3], whole or not at all. Errors: ErrorKind::output.
void write_png(const std::filesystem::path& path, std::span<const uint8_t> rgb, int64_t width,
               int64_t height, bool overwrite);

// Up to 8 frames, the first and the last among them, evenly spread, in a grid of up to 4 columns;
// tiles of full size with narrow white lines between them.
class ContactSheet final : public FrameSink {
 public:
  // Creates the temporary file. Errors: ErrorKind::output.
  ContactSheet(const std::filesystem::path& path, const VideoFormat& format, bool overwrite);
  void push(const FrameBatch& batch) override;
  void finish() override;

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  // Which frames are shown.
  const std::vector<int64_t>& frames() const { return frames_; }

 private:
  void place(int64_t tile, std::span<const uint8_t> frame);

  VideoFormat format_;
  FrameOrder order_;
  PendingFile file_;
  std::vector<int64_t> frames_;
  int64_t columns_;
  int64_t width_;
  int64_t height_;
  std::vector<uint8_t> sheet_;  // [height_, width_, 3]
};

}  // namespace flotilla::io
