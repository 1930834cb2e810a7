// Pictures of one format, FLOTILLA_FUZZ_PICTURES: the tests' own small ones with that extension.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "fuzz/fuzz_target.h"
#include "fuzz/scratch_file.h"
#include "io/image_reader.h"

namespace flotilla::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxPictureBytes = 8 << 10;

bool starts_with(const Bytes& input, std::string_view magic) {
  return input.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), input.begin(),
                    [](char c, uint8_t byte) { return static_cast<uint8_t>(c) == byte; });
}

uint32_t big_endian_u32(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}

// Every chunk of a PNG gets the checksum of what it holds now.
void repair_png(Bytes& input) {
  constexpr size_t kSignature = 8;
  constexpr size_t kFrame = 12;  // length, name and checksum
  for (size_t at = kSignature; at + kFrame <= input.size();) {
    const size_t length = big_endian_u32(input.data() + at);
    if (length > input.size() - at - kFrame) return;
    const uint8_t* body = input.data() + at + 4;
    const uLong sum = ::crc32(0, body, static_cast<uInt>(length + 4));
    for (size_t i = 0; i < 4; ++i)
      input[at + 8 + length + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += kFrame + length;
  }
}

void repair_webp(Bytes& input) {
  constexpr size_t kHeader = 12;
  if (input.size() < kHeader) return;
  const size_t length = input.size() - 8;
  for (size_t i = 0; i < 4; ++i) input[4 + i] = static_cast<uint8_t>(length >> (8 * i));
}

}  // namespace

std::vector<Bytes> good_inputs() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(FLOTILLA_SOURCE_DIR "/tests/io/data")) {
    const bool is_refused = entry.path().stem() == "animated";
    if (entry.path().extension() == FLOTILLA_FUZZ_PICTURES && !is_refused &&
        entry.file_size() <= kMaxPictureBytes)
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());  // the same order on every machine
  std::vector<Bytes> inputs;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

std::vector<std::string> words() {
  const auto with_zeros = [](std::string_view text, size_t count) {
    return std::string(text.data(), count);
  };
  return {"IHDR",
          "PLTE",
          "IDAT",
          "IEND",
          "tRNS",
          "iCCP",
          "eXIf",
          "zTXt",
          "sBIT",
          "gAMA",
          "acTL",
          "\xff\xd8",
          "\xff\xd9",
          "\xff\xc0",
          "\xff\xc2",
          "\xff\xc4",
          "\xff\xda",
          "\xff\xdb",
          "\xff\xdd",
          "\xff\xe1",
          "\xff\xe2",
          "\xff\xee",
          "Adobe",
          with_zeros("Exif\0\0", 6),
          with_zeros("II*\0", 4),
          with_zeros("MM\0*", 4),
          "ICC_PROFILE",
          "RIFF",
          "WEBP",
          "VP8 ",
          "VP8L",
          "VP8X",
          "ALPH",
          "ANIM",
          "ANMF",
          "EXIF",
          "ICCP",
          "\x9d\x01\x2a"};
}

void repair(Bytes& input, Random& random) {
  if (!chance(random, 85)) return;
  if (starts_with(input, "\x89PNG")) repair_png(input);
  if (starts_with(input, "RIFF")) repair_webp(input);
}

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  const fuzz::ScratchFile file({data, size});
  return fuzz::outcome_of([&] {
    const at::Tensor pixels = io::read_image(file.path());
    check_internal(pixels.dim() == 3 && pixels.size(2) == 3 && pixels.numel() > 0 &&
                       pixels.is_contiguous() && pixels.scalar_type() == at::kByte,
                   "a picture has [H, W, 3] bytes");
  });
}
