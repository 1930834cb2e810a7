// RGB to 4:2:0 for video files: BT.709, limited range, 8 bits.
#pragma once

#include <cstdint>
#include <span>

namespace flotilla::io {

// One frame [height, width, 3] of R'G'B' bytes (0..255) to the planes Y [height, width], Cb and Cr
// [height / 2, width / 2] in a row; both sides even. Y = 16 + 219 Y', C = 128 + 224 C' with
// Y' = 0.2126 R' + 0.7152 G' + 0.0722 B' (ITU-R BT.709-6, items 3.2 to 3.4), rounded to nearest.
// A chroma sample is the mean of its 2x2 pixels, so it sits in their centre, as in the LTX-2
// reference.
void rgb_to_yuv420(std::span<const uint8_t> rgb, int64_t width, int64_t height,
                   std::span<uint8_t> yuv);

inline constexpr int64_t yuv420_frame_bytes(int64_t width, int64_t height) {
  return width * height * 3 / 2;
}

}  // namespace flotilla::io
