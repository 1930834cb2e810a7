// WebP to RGB bytes with libwebp; the chunks beside the picture (EXIF, profile) are found here.
#include <webp/decode.h>

#include <cstring>
#include <string_view>

#include "base/error.h"
#include "io/image_codec.h"

namespace flotilla::io {
namespace {

// One colour takes a fixed few bytes whatever the size, so only the limit on pixels binds.
constexpr double kMaxPixelsPerByte = 1e9;
constexpr size_t kRiffHeaderBytes = 12;
constexpr size_t kChunkHeaderBytes = 8;

size_t little_endian_u32(const uint8_t* bytes) {
  return bytes[0] | size_t{bytes[1]} << 8 | size_t{bytes[2]} << 16 | size_t{bytes[3]} << 24;
}

// Content of the first chunk with this four-letter name; empty when there is none.
ByteSpan find_chunk(ByteSpan file, std::string_view name) {
  size_t at = kRiffHeaderBytes;
  while (at + kChunkHeaderBytes <= file.size()) {
    const size_t length = little_endian_u32(file.data() + at + 4);
    const size_t start = at + kChunkHeaderBytes;
    if (length > file.size() - start) return {};
    if (std::memcmp(file.data() + at, name.data(), 4) == 0) return file.subspan(start, length);
    at = start + length + length % 2;
  }
  return {};
}

}  // namespace

DecodedImage decode_webp(ByteSpan file) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(file.data(), file.size(), &features) != VP8_STATUS_OK) {
    fail(ErrorKind::input, "damaged WebP: the header cannot be read");
  }
  if (features.has_animation != 0) {
    fail(ErrorKind::input, "is an animated WebP; save one frame of it as a picture");
  }
  check_image_size(features.width, features.height, static_cast<int64_t>(file.size()),
                   kMaxPixelsPerByte);
  DecodedImage image{at::empty({features.height, features.width, 3}, at::kByte)};
  const int stride = features.width * 3;
  if (WebPDecodeRGBInto(file.data(), file.size(), image.pixels.data_ptr<uint8_t>(),
                        static_cast<size_t>(image.pixels.numel()), stride) == nullptr) {
    fail(ErrorKind::input,
         "damaged WebP: the picture cannot be decoded; the file may be cut short");
  }
  image.orientation = exif_orientation(find_chunk(file, "EXIF"));
  image.foreign_profile = is_foreign_profile(find_chunk(file, "ICCP"));
  return image;
}

}  // namespace flotilla::io
