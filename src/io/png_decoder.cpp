// PNG to RGB bytes with libpng.
#include <fmt/format.h>
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/image_codec.h"

namespace flotilla::io {
namespace {

// Deflate cannot pack more than 1032 to 1, and a pixel has at least one bit.
constexpr double kMaxPixelsPerByte = 1032.0 * 8;
constexpr png_alloc_size_t kMaxChunkBytes = 64 << 20;  // profiles and texts, not pixels

struct Source {
  ByteSpan bytes;
  size_t position = 0;
  std::string error;
};

void on_error(png_structp png, png_const_charp message) {
  static_cast<Source*>(png_get_error_ptr(png))->error = message;
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep out, png_size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (source->bytes.size() - source->position < count) png_error(png, "the file is cut short");
  std::memcpy(out, source->bytes.data() + source->position, count);
  source->position += count;
}

// libpng reserves what the head of a chunk says before it reads on, and of the limit on chunks it
// only warns there: so no chunk may go beyond the file. What follows the last chunk is left alone.
void check_chunks(ByteSpan file) {
  constexpr size_t kSignatureBytes = 8;
  constexpr size_t kFrameBytes = 12;  // length, name and checksum
  ByteSpan rest = file.subspan(kSignatureBytes);
  while (rest.size() >= kFrameBytes && std::memcmp(rest.data() + 4, "IEND", 4) != 0) {
    const size_t length = png_get_uint_32(rest.data());
    if (length > rest.size() - kFrameBytes) {
      fail(ErrorKind::input, fmt::format("damaged PNG: a chunk of {} bytes goes beyond the end; "
                                         "the file may be cut short",
                                         length));
    }
    rest = rest.subspan(kFrameBytes + length);
  }
}

class Reader {
 public:
  explicit Reader(ByteSpan bytes) : source_{bytes, 0, {}} {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source_, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      fail(ErrorKind::memory, "libpng cannot start");
    }
    png_set_read_fn(png_, &source_, on_read);
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
    // Of the chunks beside the pixels only these two are wanted; a thousand texts, each unpacked up
    // to the limit above, would fill any memory.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    constexpr png_byte kWanted[] = "iCCP\0eXIf";
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_AS_DEFAULT, kWanted, 2);
  }
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // False: source_.error says why. No object with a destructor lives in the three functions below.
  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_info(png_, info_);
    return true;
  }
  // Reserves memory for a row: only after the size has been checked.
  bool prepare_rows() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    const png_byte color = png_get_color_type(png_, info_);
    png_set_strip_16(png_);
    if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if ((color & PNG_COLOR_MASK_COLOR) == 0) {
      png_set_expand_gray_1_2_4_to_8(png_);
      png_set_gray_to_rgb(png_);
    }
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }
  bool read_pixels(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    png_read_end(png_, info_);
    return true;
  }

  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t height() const { return png_get_image_height(png_, info_); }
  size_t row_bytes() const { return png_get_rowbytes(png_, info_); }
  ByteSpan profile() const {
    png_charp name = nullptr;
    int compression = 0;
    png_bytep bytes = nullptr;
    png_uint_32 count = 0;
    if (png_get_iCCP(png_, info_, &name, &compression, &bytes, &count) == 0) return {};
    return ByteSpan(bytes, count);
  }
  int orientation() const {
    png_bytep exif = nullptr;
    png_uint_32 count = 0;
    if (png_get_eXIf_1(png_, info_, &count, &exif) == 0) return 1;
    return exif_orientation(ByteSpan(exif, count));
  }
  [[noreturn]] void fail_damaged() const {
    fail(ErrorKind::input, "damaged PNG: " + source_.error);
  }

 private:
  Source source_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

DecodedImage decode_png(ByteSpan file) {
  check_chunks(file);
  Reader reader(file);
  if (!reader.read_header()) reader.fail_damaged();
  const int64_t width = reader.width();
  const int64_t height = reader.height();
  check_image_size(width, height, static_cast<int64_t>(file.size()), kMaxPixelsPerByte);
  if (!reader.prepare_rows()) reader.fail_damaged();
  FLOTILLA_ASSERT(reader.row_bytes() == static_cast<size_t>(width) * 3);
  DecodedImage image{at::empty({height, width, 3}, at::kByte)};
  std::vector<png_bytep> rows(static_cast<size_t>(height));
  auto* pixels = image.pixels.data_ptr<uint8_t>();
  for (int64_t y = 0; y < height; ++y) rows[static_cast<size_t>(y)] = pixels + y * width * 3;
  if (!reader.read_pixels(rows.data())) reader.fail_damaged();
  image.orientation = reader.orientation();
  image.foreign_profile = is_foreign_profile(reader.profile());
  return image;
}

}  // namespace flotilla::io
