#include "io/image_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/image_codec.h"

namespace flotilla::io {
namespace fs = std::filesystem;
namespace {

// A picture of kMaxImagePixels without any compression is smaller than this.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

std::vector<uint8_t> read_bytes(const fs::path& path) {
  std::error_code code;
  const auto status = fs::status(path, code);
  if (!fs::exists(status)) fail(ErrorKind::input, "no such file");
  if (fs::is_directory(status)) fail(ErrorKind::input, "is a folder; a picture file is expected");
  if (!fs::is_regular_file(status)) fail(ErrorKind::input, "is not a regular file");
  const auto size = static_cast<int64_t>(fs::file_size(path, code));
  if (code) fail(ErrorKind::input, "cannot be read: " + code.message());
  if (size == 0) fail(ErrorKind::input, "the file is empty");
  if (size > kMaxFileBytes) {
    fail(ErrorKind::input, fmt::format("the file has {}; pictures of up to {} are read",
                                       human_bytes(static_cast<double>(size)),
                                       human_bytes(static_cast<double>(kMaxFileBytes))));
  }
  std::ifstream stream(path, std::ios::binary);
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  stream.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!stream) fail(ErrorKind::input, fmt::format("cannot be read: {}", std::strerror(errno)));
  return bytes;
}

bool starts_with(ByteSpan bytes, std::string_view magic, size_t at = 0) {
  return bytes.size() >= at + magic.size() &&
         std::memcmp(bytes.data() + at, magic.data(), magic.size()) == 0;
}

DecodedImage decode(ByteSpan bytes) {
  if (starts_with(bytes, "\x89PNG\r\n\x1a\n")) return decode_png(bytes);
  if (starts_with(bytes, "\xff\xd8\xff")) return decode_jpeg(bytes);
  if (starts_with(bytes, "RIFF") && starts_with(bytes, "WEBP", 8)) return decode_webp(bytes);
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()),
                              std::min<size_t>(bytes.size(), 16));
  fail(ErrorKind::input, fmt::format("is not a PNG, JPEG or WebP picture (it begins with \"{}\")",
                                     excerpt(head, 16)));
}

// Turns stored pixels the way they are to be looked at; [H, W, 3] -> [H, W, 3] or [W, H, 3].
at::Tensor apply_orientation(const at::Tensor& pixels, int orientation) {
  switch (orientation) {
    case 2:
      return pixels.flip({1});
    case 3:
      return pixels.flip({0, 1});
    case 4:
      return pixels.flip({0});
    case 5:
      return pixels.transpose(0, 1);
    case 6:
      return pixels.transpose(0, 1).flip({1});  // quarter turn clockwise
    case 7:
      return pixels.transpose(0, 1).flip({0, 1});
    case 8:
      return pixels.transpose(0, 1).flip({0});  // quarter turn counter-clockwise
    default:
      return pixels;
  }
}

// Little- or big-endian numbers of a TIFF block; out of range reads give 0.
class TiffView {
 public:
  explicit TiffView(ByteSpan bytes) : bytes_(bytes), little_(bytes.size() > 0 && bytes[0] == 'I') {}
  uint32_t u16(size_t at) const { return number(at, 2); }
  uint32_t u32(size_t at) const { return number(at, 4); }

 private:
  uint32_t number(size_t at, size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      value = value << 8 | bytes_[at + (little_ ? count - 1 - i : i)];
    }
    return value;
  }

  ByteSpan bytes_;
  bool little_;
};

}  // namespace

int exif_orientation(ByteSpan exif) {
  constexpr uint32_t kOrientationTag = 0x0112;
  constexpr size_t kEntryBytes = 12;
  if (starts_with(exif, std::string_view("Exif\0\0", 6))) exif = exif.subspan(6);
  if (!starts_with(exif, "II") && !starts_with(exif, "MM")) return 1;
  const TiffView tiff(exif);
  if (tiff.u16(2) != 42) return 1;
  const size_t directory = tiff.u32(4);
  const size_t count = tiff.u16(directory);
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = directory + 2 + i * kEntryBytes;
    if (tiff.u16(entry) != kOrientationTag) continue;
    const uint32_t value = tiff.u16(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

bool is_foreign_profile(ByteSpan profile) {
  if (profile.empty()) return false;
  // Names are ASCII in version 2 profiles, UTF-16 in version 4.
  constexpr std::string_view kNames[] = {"sRGB", std::string_view("s\0R\0G\0B", 7)};
  for (const std::string_view name : kNames) {
    if (std::search(profile.begin(), profile.end(), name.begin(), name.end()) != profile.end())
      return false;
  }
  return true;
}

void check_image_size(int64_t width, int64_t height, int64_t file_bytes,
                      double max_pixels_per_byte) {
  if (width < 1 || height < 1) {
    fail(ErrorKind::input, fmt::format("impossible size {}x{}", width, height));
  }
  if (width > kMaxImagePixels / height) {
    fail(ErrorKind::input, fmt::format("{}x{} pixels; pictures of up to {} million pixels are read",
                                       width, height, kMaxImagePixels / 1'000'000));
  }
  if (static_cast<double>(width * height) > max_pixels_per_byte * static_cast<double>(file_bytes)) {
    fail(ErrorKind::input,
         fmt::format("claims {}x{} pixels in {} bytes: damaged, or made to fill memory", width,
                     height, file_bytes));
  }
}

at::Tensor read_image(const fs::path& path) {
  return with_context(fmt::format("image \"{}\"", path.string()), [&] {
    const std::vector<uint8_t> bytes = read_bytes(path);
    const DecodedImage image = decode(bytes);
    if (image.foreign_profile) {
      log::warn("io",
                "image \"{}\" has a colour profile, which is not applied; convert it to sRGB first",
                path.string());
    }
    return apply_orientation(image.pixels, image.orientation).contiguous();
  });
}

}  // namespace flotilla::io
