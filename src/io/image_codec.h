// The three picture decoders behind read_image(); each gets the bytes of a whole file.
// The C libraries leave by longjmp, so every decoder keeps its objects outside of the guarded part.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

namespace flotilla::io {

struct DecodedImage {
  at::Tensor pixels;             // uint8 [H, W, 3], as stored
  int orientation = 1;           // EXIF, 1 to 8
  bool foreign_profile = false;  // a colour profile other than sRGB
};

using ByteSpan = std::span<const uint8_t>;

// Errors: ErrorKind::input, without the path.
DecodedImage decode_png(ByteSpan file);
DecodedImage decode_jpeg(ByteSpan file);
DecodedImage decode_webp(ByteSpan file);

// Throws unless width x height can be the size of a picture of `file_bytes` bytes that a format
// packs at most `max_pixels_per_byte` to the byte.
void check_image_size(int64_t width, int64_t height, int64_t file_bytes,
                      double max_pixels_per_byte);
// Orientation of an EXIF block (TIFF structure, with or without the "Exif\0\0" in front); 1 when
// there is none or it is not 1 to 8.
int exif_orientation(ByteSpan exif);
// Whether an ICC profile (empty: none) does not call itself sRGB.
bool is_foreign_profile(ByteSpan profile);

}  // namespace flotilla::io
