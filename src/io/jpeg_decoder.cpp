// JPEG to RGB bytes with libjpeg.
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

#include "base/error.h"
#include "io/image_codec.h"

namespace flotilla::io {
namespace {

// A progressive picture of one colour: 6 bits for a block of 16x16 pixels, rounded up generously.
constexpr double kMaxPixelsPerByte = 1024.0;
// Real progressive files have about ten scans; thousands only serve to burn time.
constexpr int kMaxScans = 200;
constexpr int kExifMarker = JPEG_APP0 + 1;
constexpr int kProfileMarker = JPEG_APP0 + 2;

struct ErrorState {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* state = reinterpret_cast<ErrorState*>(info->err);
  (*info->err->format_message)(info, state->text);
  std::longjmp(state->jump, 1);
}

// libjpeg only warns where data is missing, and fills in grey: for us that is a damaged file.
void on_message(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) leave(info);
}

void on_progress(j_common_ptr info) {
  auto* decoder = reinterpret_cast<j_decompress_ptr>(info);
  if (decoder->input_scan_number <= kMaxScans) return;
  auto* state = reinterpret_cast<ErrorState*>(info->err);
  std::strcpy(state->text, "too many scans");
  std::longjmp(state->jump, 1);
}

class Reader {
 public:
  Reader() {
    info_.err = jpeg_std_error(&error_.manager);
    error_.manager.error_exit = leave;
    error_.manager.emit_message = on_message;
    error_.manager.output_message = [](j_common_ptr) {};
    error_.text[0] = '\0';
    progress_.progress_monitor = on_progress;
  }
  ~Reader() { jpeg_destroy_decompress(&info_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // False: the error text says why. No object with a destructor lives in the two functions below.
  bool read_header(ByteSpan bytes) {
    if (setjmp(error_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, bytes.data(), bytes.size());
    jpeg_save_markers(&info_, kExifMarker, 0xffff);
    jpeg_save_markers(&info_, kProfileMarker, 0xffff);
    jpeg_read_header(&info_, TRUE);
    // CMYK and YCCK go to CMYK; all else libjpeg turns into RGB itself.
    if (info_.num_components == 4) {
      info_.out_color_space = JCS_CMYK;
    } else {
      info_.out_color_space = JCS_RGB;
    }
    return true;
  }
  // `rows` has one pointer a line of output_components * width bytes.
  bool read_pixels(JSAMPROW* rows) {
    if (setjmp(error_.jump) != 0) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      jpeg_read_scanlines(&info_, rows + info_.output_scanline,
                          info_.output_height - info_.output_scanline);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }
  bool is_cmyk() const { return info_.out_color_space == JCS_CMYK; }
  // The first saved marker of `kind` that begins with `magic`; empty when there is none.
  ByteSpan marker(int kind, std::string_view magic) const {
    for (auto* marker = info_.marker_list; marker != nullptr; marker = marker->next) {
      if (marker->marker != kind || marker->data_length < magic.size()) continue;
      if (std::memcmp(marker->data, magic.data(), magic.size()) == 0) {
        return ByteSpan(marker->data, marker->data_length);
      }
    }
    return {};
  }
  [[noreturn]] void fail_damaged() const {
    fail(ErrorKind::input, std::string("damaged JPEG: ") + error_.text);
  }

 private:
  ErrorState error_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_{};
};

// Adobe's inverted CMYK (255: no ink): each colour is its own value times black; [H, W, 4] -> [H,
// W, 3].
at::Tensor cmyk_to_rgb(const at::Tensor& cmyk) {
  const at::Tensor color = cmyk.narrow(2, 0, 3).to(at::kInt);
  const at::Tensor black = cmyk.narrow(2, 3, 1).to(at::kInt);
  const at::Tensor ink = (255 - color) * black + 128;
  // (x + (x >> 8)) >> 8 is x / 255, rounded, as in Pillow.
  const at::Tensor shade = (ink + ink.bitwise_right_shift(8)).bitwise_right_shift(8);
  return (black - shade).clamp(0, 255).to(at::kByte);
}

}  // namespace

DecodedImage decode_jpeg(ByteSpan file) {
  Reader reader;
  if (!reader.read_header(file)) reader.fail_damaged();
  const int64_t width = reader.width();
  const int64_t height = reader.height();
  check_image_size(width, height, static_cast<int64_t>(file.size()), kMaxPixelsPerByte);
  const int64_t channels = reader.is_cmyk() ? 4 : 3;
  at::Tensor pixels = at::empty({height, width, channels}, at::kByte);
  std::vector<JSAMPROW> rows(static_cast<size_t>(height));
  for (int64_t y = 0; y < height; ++y) {
    rows[static_cast<size_t>(y)] = pixels.data_ptr<uint8_t>() + y * width * channels;
  }
  DecodedImage image;
  image.orientation = exif_orientation(reader.marker(kExifMarker, std::string_view("Exif\0\0", 6)));
  image.foreign_profile = is_foreign_profile(reader.marker(kProfileMarker, "ICC_PROFILE"));
  if (!reader.read_pixels(rows.data())) reader.fail_damaged();
  image.pixels = reader.is_cmyk() ? cmyk_to_rgb(pixels) : pixels;
  return image;
}

}  // namespace flotilla::io
