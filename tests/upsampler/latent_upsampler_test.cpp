// Files and configurations of the latent upsampler that are refused, and its sizes.
#include "upsampler/latent_upsampler.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "loader/sparse_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla::upsampler {
namespace {

using nlohmann::json;

constexpr const char* kDouble = "ltx23-spatial-upscaler-x2.safetensors";

std::string error_of(ErrorKind kind, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

testing::AssertionResult mentions(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << part << "\" is not in: " << text;
}

UpsamplerConfig read(const json& config) {
  return UpsamplerConfig::from_json(loader::ConfigReader(config, "file: config"));
}

TEST(LatentUpsamplerTest, NamesWhatItDoesNotImplement) {
  const json good = test::open_tiny(kDouble)->config();
  const auto refusal = [&](const char* key, const json& value) {
    json config = good;
    config[key] = value;
    return error_of(ErrorKind::input, [&] { read(config); });
  };
  EXPECT_TRUE(mentions(refusal("temporal_upsample", true), "temporal_upsample"));
  EXPECT_TRUE(mentions(refusal("spatial_upsample", false), "spatial_upsample"));
  EXPECT_TRUE(mentions(refusal("dims", 2), "dims"));
  EXPECT_TRUE(mentions(refusal("_class_name", "Other"), "Other"));
  EXPECT_TRUE(mentions(refusal("mid_channels", 40), "multiple of 32"));
  EXPECT_TRUE(mentions(refusal("num_blocks_per_stage", 0), "num_blocks_per_stage"));
  // The plain pixel shuffle only doubles.
  EXPECT_TRUE(mentions(refusal("spatial_scale", 1.5), "spatial_scale"));
  json odd = good;
  odd["rational_resampler"] = true;
  odd["spatial_scale"] = 1.7;
  EXPECT_TRUE(mentions(error_of(ErrorKind::input, [&] { read(odd); }), "0.75, 1.5, 2, 4"));
}

TEST(LatentUpsamplerTest, TellsSizesBeforeItRuns) {
  json config = test::open_tiny(kDouble)->config();
  EXPECT_EQ(read(config).upsampled(5), 10);
  config["rational_resampler"] = true;
  for (const auto& [scale, cells] : {std::pair{0.75, 6}, {1.5, 12}, {2.0, 16}, {4.0, 32}}) {
    config["spatial_scale"] = scale;
    EXPECT_EQ(read(config).upsampled(8), cells) << scale;
  }
}

TEST(LatentUpsamplerTest, OddSidesComeOutAsForecast) {
  const auto model = LatentUpsampler::from_checkpoint(
      test::open_tiny("ltx23-spatial-upscaler-x1.5.safetensors"), at::kFloat, at::kCPU);
  at::manual_seed(1);
  const at::Tensor big = model.forward(at::randn({2, model.config().channels, 2, 3, 5}));
  EXPECT_EQ(big.sizes(),
            at::IntArrayRef({2, model.config().channels, 2, model.config().upsampled(3),
                             model.config().upsampled(5)}));
}

TEST(LatentUpsamplerTest, RefusesLatentsOfOtherChannels) {
  const auto model =
      LatentUpsampler::from_checkpoint(test::open_tiny(kDouble), at::kFloat, at::kCPU);
  error_of(ErrorKind::config, [&] { model.forward(at::zeros({1, 3, 1, 2, 2})); });
}

TEST(LatentUpsamplerTest, TellsMissingAndExtraTensors) {
  const auto file = test::open_tiny(kDouble);
  auto tensors = file->tensors();
  tensors.erase("final_conv.bias");
  tensors["surplus"] = tensors.at("initial_norm.bias");
  const test::TempDir dir;
  const auto path = dir / "upsampler.safetensors";
  loader::write_sparse_checkpoint(path, tensors, {{"config", file->config().dump()}});
  const std::string text = error_of(ErrorKind::input, [&] {
    LatentUpsampler::from_checkpoint(loader::Checkpoint::open(path), at::kFloat, at::kMeta);
  });
  EXPECT_TRUE(mentions(text, "final_conv.bias"));
  EXPECT_TRUE(mentions(text, "surplus"));
}

}  // namespace
}  // namespace flotilla::upsampler
