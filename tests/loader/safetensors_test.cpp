// Headers of strangers: every way to lie about sizes is refused before anything is read.
#include "loader/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

std::string with_length(const std::string& header, const std::string& data, uint64_t length) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xFF);
  return file + header + data;
}
std::string file_of(const std::string& header, const std::string& data) {
  return with_length(header, data, header.size());
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) {
    test::write_file(dir_ / "x.safetensors", bytes);
    try {
      loader::read_safetensors_header(dir_ / "x.safetensors");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      EXPECT_THAT(error.what(), HasSubstr("x.safetensors"));
      return error.what();
    }
    return "accepted";
  }
  test::TempDir dir_;
};

TEST_F(SafetensorsTest, ReadsTensorsAndMetadata) {
  test::write_file(
      dir_ / "x.safetensors",
      file_of(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
              R"("s":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})",
              std::string(10, '\0')));
  const auto header = loader::read_safetensors_header(dir_ / "x.safetensors");
  EXPECT_EQ(header.metadata.at("k"), "v");
  EXPECT_EQ(header.tensors.at("a").shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header.tensors.at("s").numel(), 1);
  EXPECT_EQ(header.tensors.at("s").dtype, at::kBFloat16);
}

TEST_F(SafetensorsTest, RefusesWhatIsNotSafetensors) {
  EXPECT_THAT(refusal(""), HasSubstr("shorter than"));
  EXPECT_THAT(refusal(with_length("{}", "", 1U << 30)), HasSubstr("claims"));
  EXPECT_THAT(refusal(with_length("{}", "", UINT64_MAX)), HasSubstr("claims"));
  EXPECT_THAT(refusal(file_of("not json", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(file_of("[1]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
              HasSubstr("Git-LFS"));
}

TEST_F(SafetensorsTest, RefusesLyingEntries) {
  const auto one = [&](const std::string& entry, size_t bytes) {
    return refusal(file_of("{\"a\":" + entry + "}", std::string(bytes, '\0')));
  };
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4),
              HasSubstr("needs 8 bytes"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4),
              HasSubstr("outside the file"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8),
              HasSubstr("outside the file"));
  EXPECT_THAT(one(R"({"dtype":"Q7","shape":[2],"data_offsets":[0,8]})", 8),
              HasSubstr("unknown dtype"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,8]})", 8),
              HasSubstr("impossible shape"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})", 8),
              HasSubstr("impossible shape"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})", 8),
              HasSubstr("impossible shape"));
  EXPECT_THAT(one(R"({"shape":[2],"data_offsets":[0,8]})", 8), HasSubstr("lacks dtype"));
  EXPECT_THAT(one(R"(7)", 0), HasSubstr("lacks dtype"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 12),
              HasSubstr("speaks of"));
}

TEST_F(SafetensorsTest, RefusesOverlapAndHoles) {
  EXPECT_THAT(refusal(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                              std::string(6, '\0'))),
              HasSubstr("overlap"));
  EXPECT_THAT(refusal(file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})",
                              std::string(5, '\0'))),
              HasSubstr("overlap or leave holes"));
}

TEST_F(SafetensorsTest, MissingFileAndFolderAreToldApart) {
  EXPECT_THAT([&] { loader::read_safetensors_header(dir_ / "none"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("does not exist")));
  EXPECT_THAT([&] { loader::read_safetensors_header(dir_.path()); },
              ::testing::ThrowsMessage<Error>(HasSubstr("is not a file")));
}

// Random damage to a real header never crashes and never throws anything but Error.
TEST_F(SafetensorsTest, SurvivesDamagedHeaders) {
  const std::string good =
      test::read_file(test::tiny_dir() / "vae-small-23.safetensors").substr(0, 4096);
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (int i = 0; i < 1 + round % 5; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    bytes.resize(random() % bytes.size() + 1);
    refused += refusal(bytes) != "accepted" ? 1 : 0;
  }
  EXPECT_EQ(refused, 2000);  // every copy is cut off
}

}  // namespace
}  // namespace flotilla
