#include "loader/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "loader/config_reader.h"
#include "loader/sparse_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string length_prefix(size_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

// One tensor of two bytes-aligned-to-nothing bf16 values (1.0, -2.0), behind one stray byte tensor.
void write_unaligned(const std::filesystem::path& path, const std::string& name) {
  std::string header = R"({"_":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},")" + name +
                       R"(":{"dtype":"BF16","shape":[2],"data_offsets":[1,5]}})";
  if (header.size() % 2 != 0) header += ' ';
  test::write_file(path,
                   length_prefix(header.size()) + header + std::string("\x07\x80\x3F\x00\xC0", 5));
}

TEST(CheckpointTest, ReadsUnalignedTensorsAndConverts) {
  const test::TempDir dir;
  write_unaligned(dir / "a.safetensors", "w");
  const auto checkpoint = loader::Checkpoint::open(dir / "a.safetensors");
  EXPECT_TRUE(test::same_bytes(checkpoint->read("w"), at::tensor({1.0F, -2.0F}).to(at::kBFloat16)));
  at::Tensor wide = at::empty({2}, at::kFloat);
  checkpoint->read_into("w", wide);
  EXPECT_TRUE(test::same_bytes(wide, at::tensor({1.0F, -2.0F})));
  EXPECT_EQ(checkpoint->bytes_read(), 8);
}

TEST(CheckpointTest, RowsAreReadAlone) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const std::string name = "model.diffusion_model.proj_out.weight";
  const at::Tensor whole = checkpoint->read(name);
  const int64_t before = checkpoint->bytes_read();
  const at::Tensor rows = checkpoint->read_rows(name, 3, 5);
  EXPECT_TRUE(test::same_bytes(rows, whole.narrow(0, 3, 2).contiguous()));
  EXPECT_EQ(checkpoint->bytes_read() - before, static_cast<int64_t>(rows.nbytes()));
  EXPECT_THROW(checkpoint->read_rows(name, 3, whole.size(0) + 1), Error);
}

TEST(CheckpointTest, ShardsAreOneSetOfNames) {
  const test::TempDir dir;
  write_unaligned(dir / "one.safetensors", "w1");
  test::write_file(dir / "model.safetensors.index.json",
                   R"({"weight_map":{"w1":"one.safetensors"}})");
  const auto checkpoint = loader::Checkpoint::open(dir.path());
  EXPECT_TRUE(checkpoint->has("w1"));
  EXPECT_TRUE(checkpoint->has_prefix("w"));
  EXPECT_FALSE(checkpoint->has_prefix("x"));
}

TEST(CheckpointTest, BadFoldersAreRefused) {
  const test::TempDir dir;
  EXPECT_THAT([&] { loader::Checkpoint::open(dir.path()); },
              ThrowsMessage<Error>(HasSubstr("neither model.safetensors")));
  test::write_file(dir / "model.safetensors.index.json",
                   R"({"weight_map":{"w":"../../etc/passwd"}})");
  EXPECT_THAT([&] { loader::Checkpoint::open(dir.path()); },
              ThrowsMessage<Error>(HasSubstr("plain file name")));
  test::write_file(dir / "model.safetensors.index.json",
                   R"({"weight_map":{"w":"gone.safetensors"}})");
  EXPECT_THAT([&] { loader::Checkpoint::open(dir.path()); },
              ThrowsMessage<Error>(HasSubstr("does not exist")));
}

TEST(CheckpointTest, MetadataIsNamedWhenItLacks) {
  const test::TempDir dir;
  write_unaligned(dir / "a.safetensors", "w");
  const auto checkpoint = loader::Checkpoint::open(dir / "a.safetensors");
  EXPECT_THAT([&] { checkpoint->config(); },
              ThrowsMessage<Error>(HasSubstr("no \"config\" in its metadata")));
  EXPECT_EQ(checkpoint->model_version(), "");
}

TEST(CheckpointTest, DigestTellsFilesApart) {
  const auto tiny = test::open_tiny("ltx23-dev.safetensors");
  EXPECT_EQ(tiny->digest(), test::open_tiny("ltx23-dev.safetensors")->digest());
  EXPECT_NE(tiny->digest(), test::open_tiny("ltx20-dev.safetensors")->digest());
  EXPECT_EQ(tiny->model_version(), "2.3.0");
}

// Real sizes without real weights: 80 GB of names, a few kilobytes of disk.
TEST(CheckpointTest, SparseCopyHasTheTrueHeader) {
  const test::TempDir dir;
  loader::write_sparse_checkpoint(
      dir / "big.safetensors", {{"w", {at::kBFloat16, {10000, 4000000}}}, {"x", {at::kFloat, {3}}}},
      {{"config", "{}"}});
  const auto checkpoint = loader::Checkpoint::open(dir / "big.safetensors");
  EXPECT_EQ(checkpoint->tensors().at("w").bytes(), 80'000'000'000);
  EXPECT_TRUE(checkpoint->config().empty());
  EXPECT_TRUE(test::same_bytes(checkpoint->read("x"), at::zeros({3})));
}

TEST(ConfigReaderTest, NamesWhatIsWrong) {
  const nlohmann::json json = {{"a", 1}, {"b", "text"}, {"c", {{"d", true}}}, {"n", nullptr}};
  const loader::ConfigReader reader(json, "file: config");
  EXPECT_EQ(reader.get<int64_t>("a"), 1);
  EXPECT_EQ(reader.get<int64_t>("n", 5), 5);
  EXPECT_TRUE(reader.object("c").get<bool>("d"));
  EXPECT_THAT([&] { reader.get<int64_t>("b"); },
              ThrowsMessage<Error>(HasSubstr("file: config: \"b\"")));
  EXPECT_THAT([&] { reader.get<int64_t>("z"); },
              ThrowsMessage<Error>(HasSubstr("\"z\" is missing")));
  EXPECT_THAT([&] { reader.require<std::string>("b", {"other"}); },
              ThrowsMessage<Error>(HasSubstr("implemented: [\"other\"]")));
  EXPECT_THAT([&] { reader.object("a"); }, ThrowsMessage<Error>(HasSubstr("not a JSON object")));
}

}  // namespace
}  // namespace flotilla
