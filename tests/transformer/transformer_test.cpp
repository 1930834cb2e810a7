// Bad files and what they are refused with; the audit before any weight is read.
#include "transformer/transformer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "loader/sparse_checkpoint.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBlock0 = "model.diffusion_model.transformer_blocks.0.";

// A sparse copy of the tiny checkpoint's header, changed by `change`.
template <typename Change>
std::shared_ptr<const loader::Checkpoint> changed_copy(const test::TempDir& dir, Change change) {
  const auto original = test::open_tiny("ltx23-dev.safetensors");
  auto tensors = original->tensors();
  nlohmann::json config = original->config();
  change(tensors, config);
  loader::write_sparse_checkpoint(dir / "copy.safetensors", tensors, {{"config", config.dump()}});
  return loader::Checkpoint::open(dir / "copy.safetensors");
}

std::string refusal(const std::shared_ptr<const loader::Checkpoint>& checkpoint) {
  try {
    const transformer::Transformer model(checkpoint, at::kFloat, at::kMeta);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "accepted";
}

TEST(TransformerFileTest, AuditReadsNoWeights) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  const transformer::Transformer model(checkpoint, at::kFloat, at::kMeta);
  EXPECT_EQ(checkpoint->bytes_read(), 0);
  EXPECT_GT(model.weight_bytes(), 0);
}

TEST(TransformerFileTest, MissingExtraAndMisshapenTensorsAreToldTogether) {
  const test::TempDir dir;
  const auto checkpoint = changed_copy(dir, [](auto& tensors, auto&) {
    tensors.erase(std::string(kBlock0) + "attn1.to_q.bias");
    tensors.emplace(std::string(kBlock0) + "attn1.to_z.bias", loader::TensorInfo{at::kFloat, {3}});
    tensors.at(std::string(kBlock0) + "scale_shift_table").shape[0] = 6;
  });
  const std::string text = refusal(checkpoint);
  EXPECT_THAT(text, HasSubstr("copy.safetensors"));
  EXPECT_THAT(text, HasSubstr("missing (1)"));
  EXPECT_THAT(text, HasSubstr("attn1.to_q.bias"));
  EXPECT_THAT(text, HasSubstr("unexpected (1)"));
  EXPECT_THAT(text, HasSubstr("attn1.to_z.bias"));
  EXPECT_THAT(text, HasSubstr("scale_shift_table is [6, "));
  EXPECT_THAT(text, HasSubstr("expected [9, "));
}

TEST(TransformerFileTest, UnimplementedConfigurationValuesAreNamed) {
  const test::TempDir dir;
  const auto with = [&](const std::string& key, const nlohmann::json& value) {
    return refusal(
        changed_copy(dir, [&](auto&, auto& config) { config["transformer"][key] = value; }));
  };
  EXPECT_THAT(with("qk_norm", "layer_norm"),
              HasSubstr("\"qk_norm\": \"layer_norm\" is not implemented"));
  EXPECT_THAT(with("rope_type", "spiral"), HasSubstr("\"rope_type\""));
  EXPECT_THAT(with("num_layers", "two"), HasSubstr("\"num_layers\""));
  EXPECT_THAT(with("num_layers", -1), HasSubstr("must be 1 to 1048576"));
  EXPECT_THAT(with("num_layers", 1048577), HasSubstr("must be 1 to 1048576"));
  EXPECT_THAT(with("audio_num_attention_heads", 4), HasSubstr("must equal num_attention_heads"));
  EXPECT_THAT(with("positional_embedding_max_pos", {20}), HasSubstr("list of 3"));
}

TEST(TransformerFileTest, MoreLayersThanTheFileHasAreMissingTensors) {
  const test::TempDir dir;
  const auto checkpoint =
      changed_copy(dir, [](auto&, auto& config) { config["transformer"]["num_layers"] = 3; });
  EXPECT_THAT(refusal(checkpoint), HasSubstr("transformer_blocks.2."));
}

}  // namespace
}  // namespace flotilla
