// Order of prompt rows and registers, and the configuration of features and connectors.
#include "text/connector.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/golden.h"
#include "text/context_builder.h"
#include "text/errors.h"
#include "text/gemma_folder.h"

namespace flotilla::text {
namespace {

using nlohmann::json;

json transformer_json(const char* file) {
  return test::open_tiny(file)->config().at("transformer");
}

ConnectorConfig connector_of(const json& transformer, ConnectorKind kind) {
  return ConnectorConfig::from_json(loader::ConfigReader(transformer, "transformer"), kind);
}

FeatureExtractorConfig features_of(const json& transformer) {
  const json gemma = read_gemma_json(test::tiny_dir() / "gemma");
  return FeatureExtractorConfig::from_json(
      loader::ConfigReader(transformer, "transformer"),
      GemmaConfig::from_json(loader::ConfigReader(gemma, "config.json")));
}

TEST(ConnectorTest, PromptRowsKeepTheirOrderAndRegistersTheirPlaces) {
  const at::Tensor features = at::arange(100, 106).to(at::kFloat).view({1, 6, 1});
  const at::Tensor registers = at::arange(4).to(at::kFloat).view({4, 1});
  const auto fill = [&](std::vector<int64_t> mask) {
    const at::Tensor valid = at::tensor(mask).to(at::kBool).unsqueeze(0);
    return fill_with_registers(features, valid, registers, 10).flatten();
  };
  const auto rows = [](std::vector<double> values) { return at::tensor(values).to(at::kFloat); };
  EXPECT_TRUE(at::equal(fill({0, 0, 0, 1, 1, 1}), rows({103, 104, 105, 3, 0, 1, 2, 3, 0, 1})));
  EXPECT_TRUE(at::equal(fill({1, 1, 1, 0, 0, 0}), rows({100, 101, 102, 3, 0, 1, 2, 3, 0, 1})));
  EXPECT_TRUE(at::equal(fill({0, 1, 0, 0, 1, 0}), rows({101, 104, 2, 3, 0, 1, 2, 3, 0, 1})));
  EXPECT_TRUE(
      at::equal(fill({1, 1, 1, 1, 1, 1}), rows({100, 101, 102, 103, 104, 105, 2, 3, 0, 1})));
}

TEST(ConnectorTest, FullLengthPromptLeavesNoRegisters) {
  const at::Tensor features = at::rand({1, 6, 3});
  const at::Tensor mask = at::ones({1, 6}, at::kBool);
  EXPECT_TRUE(at::equal(fill_with_registers(features, mask, at::rand({4, 3}), 6), features));
}

TEST(ConnectorTest, SamplesOfABatchAreFilledEachByItsOwnMask) {
  const at::Tensor features = at::rand({2, 5, 3});
  const at::Tensor registers = at::rand({4, 3});
  const at::Tensor mask = at::tensor({0, 0, 1, 1, 1, 0, 1, 1, 1, 1}).to(at::kBool).view({2, 5});
  const at::Tensor both = fill_with_registers(features, mask, registers, 8);
  for (int64_t b = 0; b < 2; ++b) {
    EXPECT_TRUE(at::equal(
        both.narrow(0, b, 1),
        fill_with_registers(features.narrow(0, b, 1), mask.narrow(0, b, 1), registers, 8)));
  }
}

TEST(ConnectorConfigTest, AudioTakesTheSizesOfVideoWhereItHasNone) {
  json transformer = transformer_json("ltx23-dev.safetensors");
  transformer["audio_connector_num_layers"] = 3;
  const ConnectorConfig video = connector_of(transformer, ConnectorKind::video);
  ConnectorConfig audio = connector_of(transformer, ConnectorKind::audio);
  EXPECT_EQ(audio.num_layers, 3);
  EXPECT_EQ(audio.head_dim, transformer["audio_connector_attention_head_dim"].get<int64_t>());
  for (const char* entry : {"num_attention_heads", "attention_head_dim", "num_layers"}) {
    transformer.erase(std::string("audio_connector_") + entry);
  }
  audio = connector_of(transformer, ConnectorKind::audio);
  EXPECT_EQ(audio.num_heads, video.num_heads);
  EXPECT_EQ(audio.head_dim, video.head_dim);
  EXPECT_EQ(audio.num_layers, video.num_layers);
}

TEST(ConnectorConfigTest, DefaultsAreThoseOfTheFirstRelease) {
  const ConnectorConfig config = connector_of(json::object(), ConnectorKind::audio);
  EXPECT_EQ(config.num_heads, 30);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.max_position, 1);
  EXPECT_EQ(config.rope_type, ops::RopeType::split);
  EXPECT_FALSE(config.double_frequencies);
  EXPECT_FALSE(config.gated);
  EXPECT_TRUE(config.feed_forward_bias);
}

TEST(ConnectorConfigTest, ValuesThatAreNotImplementedAreNamed) {
  const std::pair<const char*, json> cases[] = {
      {"rope_type", "spiral"},
      {"frequencies_precision", "float16"},
      {"use_embeddings_connector", false},
      {"connector_norm_output", false},
      {"connector_num_layers", 0},
      {"connector_num_attention_heads", -8},
      {"connector_positional_embedding_max_pos", json::array({20, 20})},
      {"connector_positional_embedding_max_pos", json::array({0})},
  };
  for (const auto& [key, value] : cases) {
    json transformer = transformer_json("ltx23-dev.safetensors");
    transformer[key] = value;
    const std::string message =
        input_error([&] { connector_of(transformer, ConnectorKind::video); });
    EXPECT_TRUE(mentions(message, key)) << message;
  }
}

TEST(FeatureExtractorConfigTest, HalfOfTheNewEntriesIsRefused) {
  json transformer = transformer_json("ltx23-dev.safetensors");
  transformer.erase("caption_proj_input_norm");
  EXPECT_TRUE(mentions(input_error([&] { features_of(transformer); }), "caption_proj_input_norm"));
}

TEST(FeatureExtractorConfigTest, OtherValuesOfTheNewEntriesAreRefused) {
  json transformer = transformer_json("ltx23-dev.safetensors");
  transformer["caption_projection_first_linear"] = true;
  EXPECT_TRUE(
      mentions(input_error([&] { features_of(transformer); }), "caption_projection_first_linear"));
  transformer["caption_projection_first_linear"] = false;
  transformer["text_encoder_norm_type"] = "per_segment";
  EXPECT_TRUE(mentions(input_error([&] { features_of(transformer); }), "text_encoder_norm_type"));
}

TEST(ConnectorTest, InterleavedRotationChangesTheResult) {
  // The two layouts share weights; a layout that is ignored would give equal contexts.
  const auto checkpoint = test::open_tiny("ltx20-dev.safetensors");
  const json transformer = transformer_json("ltx20-dev.safetensors");
  loader::WeightArena arena(checkpoint, {"model.diffusion_model.video_embeddings_connector."},
                            at::kFloat, at::kCPU);
  loader::WeightBinder binder(arena);
  ConnectorConfig config = connector_of(transformer, ConnectorKind::video);
  const ConnectorWeights weights =
      bind_connector(config, binder.scope("model.diffusion_model.video_embeddings_connector."));
  binder.finish();
  arena.load();
  const at::Tensor features = at::rand({1, 7, config.width()});
  const at::Tensor mask = at::ones({1, 7}, at::kBool);
  const at::Tensor split = run_connector(config, weights, features, mask, 16);
  config.rope_type = ops::RopeType::interleaved;
  const at::Tensor interleaved = run_connector(config, weights, features, mask, 16);
  EXPECT_EQ(split.sizes(), interleaved.sizes());
  EXPECT_GT((split - interleaved).abs().max().item<double>(), 1e-3);
}

}  // namespace
}  // namespace flotilla::text
