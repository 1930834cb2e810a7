// Pictures of every kind against what the LTX-2 reference sees in them (data/make_pictures.py), and
// bad files.
#include "io/image_reader.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "io/image_codec.h"
#include "io_support.h"
#include "loader/checkpoint.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace flotilla::io {
namespace {

using testing::data_dir;
using testing::error_of;
using testing::holds;

at::Tensor seen(const std::string& name) {
  static const auto file = loader::Checkpoint::open(data_dir() / "seen.safetensors");
  return file->read("seen." + name);
}

class LosslessPicture : public ::testing::TestWithParam<const char*> {};

TEST_P(LosslessPicture, HasThePixelsOfTheReference) {
  const at::Tensor image = read_image(data_dir() / GetParam());
  EXPECT_TRUE(test::same_bytes(image, seen(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(ImageReaderTest, LosslessPicture,
                         ::testing::Values("rgb.png", "one_pixel.png", "grey.png", "rgba.png",
                                           "grey_alpha.png", "palette.png", "one_bit.png",
                                           "oriented.png", "rgb16.png", "grey16.png", "photo.png",
                                           "lossless.webp", "rgba.webp", "oriented.webp"));

class LossyPicture : public ::testing::TestWithParam<const char*> {};

// Decoders of other versions may round another way: two levels.
TEST_P(LossyPicture, IsNearThePixelsOfTheReference) {
  const at::Tensor image = read_image(data_dir() / GetParam());
  EXPECT_TRUE(test::all_close(image.to(at::kFloat), seen(GetParam()).to(at::kFloat), 2.0, 0.0));
}

INSTANTIATE_TEST_SUITE_P(ImageReaderTest, LossyPicture,
                         ::testing::Values("color.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg",
                                           "lossy.webp", "orientation0.jpg", "orientation1.jpg",
                                           "orientation2.jpg", "orientation3.jpg",
                                           "orientation4.jpg", "orientation5.jpg",
                                           "orientation6.jpg", "orientation7.jpg",
                                           "orientation8.jpg", "orientation9.jpg"));

TEST(ImageReaderTest, TellsTheFormatByContentNotByName) {
  const test::TempDir folder;
  const auto path = folder / "odd ä;$(x)' name.txt";
  std::filesystem::copy_file(data_dir() / "rgb.png", path);
  EXPECT_TRUE(test::same_bytes(read_image(path), seen("rgb.png")));
}

TEST(ImageReaderTest, RefusesWhatIsNoPictureAndNamesThePath) {
  const test::TempDir folder;
  test::write_file(folder / "text.png", "a red fox");
  test::write_file(folder / "empty.png", "");
  const auto refused = [&](const std::string& name, const std::string& reason) {
    const Error error = error_of([&] { read_image(folder / name); });
    EXPECT_TRUE(holds(error, ErrorKind::input, (folder / name).string()));
    EXPECT_TRUE(holds(error, ErrorKind::input, reason));
  };
  refused("text.png", "is not a PNG, JPEG or WebP picture (it begins with \"a red fox\")");
  refused("empty.png", "empty");
  refused("missing.png", "no such file");
  refused(".", "folder");
}

TEST(ImageReaderTest, RefusesAnimations) {
  EXPECT_TRUE(holds(error_of([] { read_image(data_dir() / "animated.webp"); }), ErrorKind::input,
                    "animated"));
}

// Cut at every quarter and one byte before the end that matters.
TEST(ImageReaderTest, RefusesTruncatedFilesOfEveryFormat) {
  const test::TempDir folder;
  for (const char* name :
       {"photo.png", "palette.png", "color.jpg", "progressive.jpg", "cmyk.jpg", "lossless.webp"}) {
    const std::string whole = test::read_file(data_dir() / name);
    for (const size_t quarter : {1, 2, 3}) {
      test::write_file(folder / name, whole.substr(0, whole.size() * quarter / 4));
      const Error error = error_of([&] { read_image(folder / name); });
      EXPECT_TRUE(holds(error, ErrorKind::input, "damaged"))
          << name << " cut to " << quarter << "/4";
    }
  }
}

TEST(ImageReaderTest, SurvivesDamageAnywhere) {
  const test::TempDir folder;
  for (const char* name : {"rgb.png", "palette.png", "orientation6.jpg", "progressive.jpg",
                           "rgba.webp", "lossy.webp"}) {
    const std::string whole = test::read_file(data_dir() / name);
    for (size_t at = 0; at < whole.size(); at += 7) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x5a);
      test::write_file(folder / name, damaged);
      try {
        const at::Tensor image = read_image(folder / name);
        EXPECT_EQ(image.size(2), 3);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
      }
    }
  }
}

void put_u32(std::string& bytes, size_t at, uint32_t value) {
  for (int i = 0; i < 4; ++i)
    bytes[at + static_cast<size_t>(i)] = static_cast<char>(value >> (24 - 8 * i));
}

uint32_t crc32_of(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char letter : bytes) {
    crc ^= static_cast<uint8_t>(letter);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~crc;
}

TEST(ImageReaderTest, RefusesSizesThatTheFileCannotHold) {
  const test::TempDir folder;
  std::string bomb = test::read_file(data_dir() / "rgb.png");
  const auto refused = [&](uint32_t width, uint32_t height, const std::string& reason) {
    put_u32(bomb, 16, width);
    put_u32(bomb, 20, height);
    put_u32(bomb, 29, crc32_of(bomb.substr(12, 17)));
    test::write_file(folder / "bomb.png", bomb);
    EXPECT_TRUE(
        holds(error_of([&] { read_image(folder / "bomb.png"); }), ErrorKind::input, reason));
  };
  refused(9000, 9000, "claims 9000x9000 pixels");
  refused(90000, 90000, "million pixels");
}

// libpng would reserve what the chunk claims.
TEST(ImageReaderTest, RefusesChunksThatTheFileCannotHold) {
  const test::TempDir folder;
  constexpr size_t kHeaderEnd = 33;
  std::string claim("\0\0\0\0eXIfMM\0*", 12);
  put_u32(claim, 0, 2'023'349'723);
  std::string picture = test::read_file(data_dir() / "rgb.png");
  picture.insert(kHeaderEnd, claim);
  test::write_file(folder / "claim.png", picture);
  EXPECT_TRUE(holds(error_of([&] { read_image(folder / "claim.png"); }), ErrorKind::input,
                    "damaged PNG: a chunk of 2023349723 bytes goes beyond the end"));
}

TEST(ImageReaderTest, LeavesAloneWhatFollowsThePicture) {
  const test::TempDir folder;
  test::write_file(folder / "more.png", test::read_file(data_dir() / "rgb.png") +
                                            "\xff\xff\xff\xff and more of no format");
  EXPECT_TRUE(test::same_bytes(read_image(folder / "more.png"), seen("rgb.png")));
}

TEST(ImageReaderTest, KnowsSrgbProfilesByTheirNames) {
  const auto foreign = [](std::string_view text) {
    return is_foreign_profile(ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  };
  EXPECT_FALSE(foreign(""));
  EXPECT_FALSE(foreign("desc IEC61966-2.1 sRGB"));
  EXPECT_FALSE(foreign(std::string_view("mluc\0s\0R\0G\0B", 12)));
  EXPECT_TRUE(foreign("Display P3"));
}

TEST(ImageReaderTest, ReadsOrientationInBothByteOrdersAndIgnoresNonsense) {
  const std::vector<uint8_t> little{'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12,
                                    1,   3,   0,  1, 0, 0, 0, 6, 0, 0, 0};
  const std::vector<uint8_t> big{'M',  'M', 0, 42, 0, 0, 0, 8, 0, 1, 1,
                                 0x12, 0,   3, 0,  0, 0, 1, 0, 8, 0, 0};
  EXPECT_EQ(exif_orientation(little), 6);
  EXPECT_EQ(exif_orientation(big), 8);
  for (size_t size = 0; size < little.size() - 3; ++size)
    EXPECT_EQ(exif_orientation(ByteSpan(little).first(size)), 1);
  std::vector<uint8_t> far = little;
  far[7] = 0xff;  // directory far outside
  EXPECT_EQ(exif_orientation(far), 1);
}

}  // namespace
}  // namespace flotilla::io
