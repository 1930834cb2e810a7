// Still pictures for conditioning: PNG, JPEG and WebP files to RGB bytes.
// The format is told from the first bytes, never from the name. Pictures are data from strangers:
// the claimed size is held against the file's size and a fixed limit before memory is reserved.
// Rules, those of the LTX-2 reference (Pillow's convert("RGB")) unless said otherwise:
//   grey is repeated in three channels; palettes are looked up; alpha and transparency are dropped,
//   the colours below are kept as stored; 16 bits a channel keep the high byte (Pillow turns 16-bit
//   grey into white instead); CMYK and YCCK JPEGs are taken as Adobe writes them, inverted; the
//   EXIF orientation is applied, mirrored ones too (the reference turns only 3, 6 and 8), and
//   impossible values such as 0 are ignored; a colour profile other than
//   sRGB is not applied (the reference converts it), which the log says.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>

namespace flotilla::io {

// Largest picture that is read: pixels, whatever the format.
inline constexpr int64_t kMaxImagePixels = 100'000'000;

// uint8 [H, W, 3] on the CPU. Errors (ErrorKind::input, with the path): missing, a folder, empty,
// no picture that is read here, damaged or cut short, too large.
at::Tensor read_image(const std::filesystem::path& path);

}  // namespace flotilla::io
