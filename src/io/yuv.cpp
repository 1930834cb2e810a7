#include "io/yuv.h"

#include <cmath>

#include "base/error.h"

namespace flotilla::io {
namespace {

// Fixed point with 16 bits: the error of a sum stays below 2e-3 levels.
constexpr int kShift = 16;
constexpr double kRed = 0.2126;
constexpr double kGreen = 0.7152;
constexpr double kBlue = 0.0722;

constexpr int fixed(double value) {
  return static_cast<int>(value * (1 << kShift) + (value < 0 ? -0.5 : 0.5));
}

struct Weights {
  int red;
  int green;
  int blue;
};
constexpr double kLumaScale = 219.0 / 255.0;
constexpr double kChromaScale = 224.0 / 255.0;
constexpr double kCbScale = kChromaScale / (2 * (1 - kBlue));
constexpr double kCrScale = kChromaScale / (2 * (1 - kRed));
constexpr Weights kLuma{fixed(kRed * kLumaScale), fixed(kGreen* kLumaScale),
                        fixed(kBlue* kLumaScale)};
// The green weight takes the rounding, so that grey has no colour at all.
constexpr int kHalfCb = fixed((1 - kBlue) * kCbScale);
constexpr int kHalfCr = fixed((1 - kRed) * kCrScale);
constexpr Weights kCb{fixed(-kRed * kCbScale), -kHalfCb - fixed(-kRed* kCbScale), kHalfCb};
constexpr Weights kCr{kHalfCr, -kHalfCr - fixed(-kBlue* kCrScale), fixed(-kBlue* kCrScale)};

// `extra` more bits of shift for a sum of 2^extra pixels.
uint8_t level(const Weights& weights, int red, int green, int blue, int offset, int extra) {
  const int shift = kShift + extra;
  const int sum = weights.red * red + weights.green * green + weights.blue * blue;
  return static_cast<uint8_t>((sum + (offset << shift) + (1 << (shift - 1))) >> shift);
}

}  // namespace

void rgb_to_yuv420(std::span<const uint8_t> rgb, int64_t width, int64_t height,
                   std::span<uint8_t> yuv) {
  FLOTILLA_ASSERT(width % 2 == 0 && height % 2 == 0);
  FLOTILLA_ASSERT(static_cast<int64_t>(rgb.size()) == width * height * 3);
  FLOTILLA_ASSERT(static_cast<int64_t>(yuv.size()) == yuv420_frame_bytes(width, height));
  uint8_t* luma = yuv.data();
  uint8_t* cb = luma + width * height;
  uint8_t* cr = cb + width * height / 4;
  for (int64_t i = 0; i < width * height; ++i) {
    const uint8_t* pixel = rgb.data() + i * 3;
    luma[i] = level(kLuma, pixel[0], pixel[1], pixel[2], 16, 0);
  }
  for (int64_t y = 0; y < height; y += 2) {
    const uint8_t* upper = rgb.data() + y * width * 3;
    const uint8_t* lower = upper + width * 3;
    for (int64_t x = 0; x < width; x += 2, upper += 6, lower += 6) {
      const int red = upper[0] + upper[3] + lower[0] + lower[3];
      const int green = upper[1] + upper[4] + lower[1] + lower[4];
      const int blue = upper[2] + upper[5] + lower[2] + lower[5];
      *cb++ = level(kCb, red, green, blue, 128, 2);
      *cr++ = level(kCr, red, green, blue, 128, 2);
    }
  }
}

}  // namespace flotilla::io
