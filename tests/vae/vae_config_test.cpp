// Configurations and files of the video VAE that are refused, and both layouts that are read.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "loader/sparse_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "vae/decoder.h"
#include "vae/encoder.h"

namespace flotilla::vae {
namespace {

using nlohmann::json;

template <typename Body>
std::string input_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

testing::AssertionResult mentions(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << part << "\" is not in: " << text;
}

json tiny_config() { return test::open_tiny("vae-small-23.safetensors")->config().at("vae"); }

DecoderConfig read_decoder(const json& config) {
  return DecoderConfig::from_json(loader::ConfigReader(config, "file: config.vae"));
}
EncoderConfig read_encoder(const json& config) {
  return EncoderConfig::from_json(loader::ConfigReader(config, "file: config.vae"));
}
std::string decoder_error(const char* key, const json& value) {
  json config = tiny_config();
  config[key] = value;
  return input_error([&] { read_decoder(config); });
}
std::string encoder_error(const char* key, const json& value) {
  json config = tiny_config();
  config[key] = value;
  return input_error([&] { read_encoder(config); });
}

TEST(VaeConfigTest, NamesWhatTheDecoderDoesNotImplement) {
  EXPECT_TRUE(mentions(decoder_error("_class_name", "CausalDiffusionVAE"), "CausalDiffusionVAE"));
  EXPECT_TRUE(mentions(decoder_error("norm_layer", "group_norm"), "group_norm"));
  EXPECT_TRUE(mentions(decoder_error("dims", 2), "dims"));
  EXPECT_TRUE(mentions(decoder_error("timestep_conditioning", true), "timestep_conditioning"));
  EXPECT_TRUE(mentions(decoder_error("timestep_conditioning", nullptr), "timestep_conditioning"));
  EXPECT_TRUE(mentions(decoder_error("spatial_padding_mode", "circular"), "circular"));
  EXPECT_TRUE(mentions(decoder_error("use_quant_conv", true), "use_quant_conv"));
  EXPECT_TRUE(mentions(decoder_error("decoder_blocks", json::array({{"attn", json::object()}})),
                       "\"attn\" is not implemented"));
  const json noisy = json::array({{"res_x", {{"num_layers", 1}, {"inject_noise", true}}}});
  EXPECT_TRUE(mentions(decoder_error("decoder_blocks", noisy), "inject_noise"));
}

TEST(VaeConfigTest, NamesWhatTheEncoderDoesNotImplement) {
  EXPECT_TRUE(mentions(encoder_error("latent_log_var", "none"), "latent_log_var"));
  EXPECT_TRUE(mentions(encoder_error("spatial_padding_mode", "replicate"), "replicate"));
  const json attention = json::array({{"res_x", 1}, {"attn", json::object()}});
  EXPECT_TRUE(mentions(encoder_error("encoder_blocks", attention), "encoder_blocks[1]"));
  const json uneven = json::array({{"compress_all_res", {{"multiplier", 3}}}});
  EXPECT_TRUE(mentions(encoder_error("encoder_blocks", uneven), "does not divide"));
}

TEST(VaeConfigTest, RefusesListsThatAreNotBlocks) {
  EXPECT_TRUE(mentions(decoder_error("decoder_blocks", 3), "decoder_blocks"));
  EXPECT_TRUE(mentions(decoder_error("decoder_blocks", json::array({"res_x"})), "[name, options]"));
  EXPECT_TRUE(mentions(decoder_error("decoder_blocks", json::array({{"res_x", json::object()}})),
                       "num_layers"));
  EXPECT_TRUE(
      mentions(decoder_error("decoder_blocks", json::array({{"res_x", 0}})), "must be 1 to 65536"));
  EXPECT_TRUE(mentions(decoder_error("decoder_blocks", json::array({{"res_x", 1 << 30}})),
                       "must be 1 to 65536"));
  EXPECT_TRUE(mentions(decoder_error("latent_channels", 0), "latent_channels"));
}

// The key of the file rules both sides when it is there; else each has its own default.
TEST(VaeConfigTest, PaddingHasAnotherDefaultOnEachSide) {
  json config = tiny_config();
  config["spatial_padding_mode"] = "reflect";
  EXPECT_EQ(read_encoder(config).padding, SpatialPadding::reflect);
  config.erase("spatial_padding_mode");
  EXPECT_EQ(read_encoder(config).padding, SpatialPadding::zeros);
  EXPECT_EQ(read_decoder(config).padding, SpatialPadding::reflect);
  config["encoder_spatial_padding_mode"] = "reflect";
  EXPECT_EQ(read_encoder(config).padding, SpatialPadding::reflect);
}

TEST(VaeConfigTest, ReadsAnEncoderThatIsNested) {
  const json flat = tiny_config();
  const json nested = {{"_class_name", "CausalDiffusionVAE"},
                       {"encoder",
                        {{"in_channels", flat["in_channels"]},
                         {"out_channels", flat["latent_channels"]},
                         {"blocks", flat["encoder_blocks"]},
                         {"patch_size", flat["patch_size"]}}}};
  const EncoderConfig a = read_encoder(flat), b = read_encoder(nested);
  EXPECT_EQ(a.latent_channels, b.latent_channels);
  EXPECT_EQ(a.blocks.size(), b.blocks.size());
  EXPECT_EQ(a.scale().height, b.scale().height);
}

// A sparse file of the tiny VAE with some change to its names and metadata.
class VaeFileTest : public testing::Test {
 protected:
  using Tensors = std::map<std::string, loader::TensorInfo>;

  std::shared_ptr<const loader::Checkpoint> write(const Tensors& tensors, const json& config) {
    const auto path = dir_ / "vae.safetensors";
    loader::write_sparse_checkpoint(path, tensors, {{"config", config.dump()}});
    return loader::Checkpoint::open(path);
  }
  static void check(const std::shared_ptr<const loader::Checkpoint>& file) {
    VideoEncoder::from_checkpoint(file, at::kFloat, at::kMeta);
    VideoDecoder::from_checkpoint(file, at::kFloat, at::kMeta);
  }

  const std::shared_ptr<const loader::Checkpoint> tiny_ =
      test::open_tiny("vae-small-23.safetensors");
  test::TempDir dir_;
};

TEST_F(VaeFileTest, ReadsBareNamesAndAFlatConfiguration) {
  Tensors bare;
  for (const auto& [name, info] : tiny_->tensors())
    bare[name.substr(std::string("vae.").size())] = info;
  check(write(bare, tiny_->config()));
  check(write(bare, tiny_->config().at("vae")));
}

TEST_F(VaeFileTest, TellsMissingExtraAndMisshapenTensors) {
  Tensors tensors = tiny_->tensors();
  tensors.erase("vae.decoder.conv_in.conv.bias");
  tensors["vae.decoder.surplus"] = tensors.at("vae.decoder.conv_out.conv.bias");
  auto& shape = tensors.at("vae.decoder.conv_out.conv.weight").shape;
  std::swap(shape[0], shape[1]);
  const auto file = write(tensors, tiny_->config());
  const std::string text = input_error([&] { check(file); });
  EXPECT_TRUE(mentions(text, "vae.decoder.conv_in.conv.bias"));
  EXPECT_TRUE(mentions(text, "vae.decoder.surplus"));
  EXPECT_TRUE(mentions(text, "vae.decoder.conv_out.conv.weight"));
}

TEST_F(VaeFileTest, TellsAFileWithoutAVae) {
  const auto audio = test::open_tiny("audio-vae-small.safetensors");
  EXPECT_TRUE(mentions(input_error([&] { check(audio); }), "holds no video VAE"));
  EXPECT_TRUE(
      mentions(input_error([&] { check(write(tiny_->tensors(), json::object())); }), "vae"));
}

}  // namespace
}  // namespace flotilla::vae
