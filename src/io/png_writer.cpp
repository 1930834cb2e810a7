#include "io/png_writer.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <string>

#include "base/error.h"
#include "io/file_bytes.h"

namespace flotilla::io {
namespace {

constexpr int64_t kMaxTiles = 8;
constexpr int64_t kMaxColumns = 4;
constexpr int64_t kGapPixels = 4;
constexpr uint8_t kGapLevel = 255;

struct Target {
  std::vector<uint8_t> bytes;
  std::string error;
};

void on_error(png_structp png, png_const_charp message) {
  static_cast<Target*>(png_get_error_ptr(png))->error = message;
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_write(png_structp png, png_bytep bytes, png_size_t count) {
  auto* target = static_cast<Target*>(png_get_io_ptr(png));
  target->bytes.insert(target->bytes.end(), bytes, bytes + count);
}

void on_flush(png_structp) {}

// No object with a destructor lives here: libpng leaves by longjmp.
bool encode(png_structp png, png_infop info, png_bytepp rows, int64_t width, int64_t height) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8,
               PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  png_write_image(png, rows);
  png_write_end(png, info);
  return true;
}

// Evenly spread over the clip, ends included.
std::vector<int64_t> choose_frames(int64_t num_frames) {
  const int64_t count = std::min(num_frames, kMaxTiles);
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < count; ++i) {
    frames.push_back(count == 1 ? 0 : (i * (num_frames - 1) + (count - 1) / 2) / (count - 1));
  }
  return frames;
}

}  // namespace

std::vector<uint8_t> png_bytes(std::span<const uint8_t> rgb, int64_t width, int64_t height) {
  FLOTILLA_ASSERT(static_cast<int64_t>(rgb.size()) == width * height * 3);
  std::vector<png_bytep> rows(static_cast<size_t>(height));
  for (int64_t y = 0; y < height; ++y) {
    rows[static_cast<size_t>(y)] = const_cast<png_bytep>(rgb.data() + y * width * 3);
  }
  Target target;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &target, on_error, on_warning);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  bool good = info != nullptr;
  if (good) {
    png_set_write_fn(png, &target, on_write, on_flush);
    good = encode(png, info, rows.data(), width, height);
  }
  png_destroy_write_struct(&png, &info);
  if (!good)
    fail(ErrorKind::output,
         fmt::format("a PNG of {}x{} cannot be made: {}", width, height, target.error));
  return std::move(target.bytes);
}

void write_png(const std::filesystem::path& path, std::span<const uint8_t> rgb, int64_t width,
               int64_t height, bool overwrite) {
  PendingFile file(path, overwrite);
  write_bytes(file.temporary(), path, png_bytes(rgb, width, height));
  file.commit();
}

ContactSheet::ContactSheet(const std::filesystem::path& path, const VideoFormat& format,
                           bool overwrite)
    : format_(format),
      order_(format),
      file_(path, overwrite),
      frames_(choose_frames(format.num_frames)) {
  const auto tiles = static_cast<int64_t>(frames_.size());
  columns_ = std::min(tiles, kMaxColumns);
  const int64_t rows = (tiles + columns_ - 1) / columns_;
  width_ = columns_ * (format.width + kGapPixels) - kGapPixels;
  height_ = rows * (format.height + kGapPixels) - kGapPixels;
  sheet_.assign(static_cast<size_t>(width_ * height_ * 3), kGapLevel);
}

void ContactSheet::place(int64_t tile, std::span<const uint8_t> frame) {
  const int64_t top = tile / columns_ * (format_.height + kGapPixels);
  const int64_t left = tile % columns_ * (format_.width + kGapPixels);
  for (int64_t y = 0; y < format_.height; ++y) {
    const auto* line = frame.data() + y * format_.width * 3;
    std::copy(line, line + format_.width * 3, sheet_.begin() + ((top + y) * width_ + left) * 3);
  }
}

void ContactSheet::push(const FrameBatch& batch) {
  order_.accept(batch);
  for (size_t tile = 0; tile < frames_.size(); ++tile) {
    const int64_t index = frames_[tile] - batch.first_frame;
    if (index >= 0 && index < batch.num_frames)
      place(static_cast<int64_t>(tile), batch.frame(index));
  }
}

void ContactSheet::finish() {
  order_.check_complete();
  write_bytes(file_.temporary(), file_.final_path(), png_bytes(sheet_, width_, height_));
  file_.commit();
}

}  // namespace flotilla::io
