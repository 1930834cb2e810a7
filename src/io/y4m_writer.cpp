#include "io/y4m_writer.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "io/yuv.h"

namespace flotilla::io {
namespace {

std::span<const uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

Y4mWriter::Y4mWriter(const VideoWriterOptions& options)
    : format_(options.format),
      order_(options.format),
      video_(options.path, options.overwrite),
      writer_(video_.temporary(), options.path),
      yuv_(static_cast<size_t>(yuv420_frame_bytes(format_.width, format_.height))) {
  if (options.audio) sound_.emplace(sound_path(options.path), options.overwrite);
  // C420jpeg: chroma in the middle of its four pixels. The format has no field for BT.709; it is
  // what readers assume at these sizes.
  writer_.write(as_bytes(
      fmt::format("YUV4MPEG2 W{} H{} F{}:{} Ip A1:1 C420jpeg XCOLORRANGE=LIMITED\n", format_.width,
                  format_.height, format_.rate.numerator, format_.rate.denominator)));
}

void Y4mWriter::push(const FrameBatch& batch) {
  order_.accept(batch);
  for (int64_t i = 0; i < batch.num_frames; ++i) {
    rgb_to_yuv420(batch.frame(i), format_.width, format_.height, yuv_);
    writer_.write(as_bytes("FRAME\n"));
    writer_.write(yuv_);
  }
}

void Y4mWriter::set_audio(AudioTrack track) {
  FLOTILLA_ASSERT(sound_.has_value());
  track_ = std::move(track);
}

void Y4mWriter::finish() {
  order_.check_complete();
  FLOTILLA_ASSERT(sound_.has_value() == track_.has_value());
  writer_.close();
  if (sound_) {
    write_bytes(sound_->temporary(), sound_->final_path(),
                wav_bytes(fit_audio(std::move(*track_), format_)));
    sound_->commit();
  }
  video_.commit();
}

}  // namespace flotilla::io
