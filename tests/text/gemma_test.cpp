// Configuration and folder faults of the text encoder, and how far its attention reaches.
#include "text/gemma.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "loader/sparse_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "text/errors.h"
#include "text/gemma_folder.h"
#include "text/prompt_encoder.h"

namespace flotilla::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json tiny_json() { return read_gemma_json(test::tiny_dir() / "gemma"); }

GemmaConfig parse(const json& config) {
  return GemmaConfig::from_json(loader::ConfigReader(config, "config.json"));
}

TEST(GemmaConfigTest, SettingsThatAreNotImplementedAreNamed) {
  const std::pair<const char*, json> cases[] = {
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"attention_bias", true},
      {"use_bidirectional_attention", true},
      {"hidden_activation", "silu"},
      {"model_type", "gemma2"},
      {"tie_word_embeddings", false},
      {"num_hidden_layers", 0},
      {"num_attention_heads", 3},
      {"head_dim", 15},
      {"rms_norm_eps", 0.0},
      {"sliding_window", -1},
      {"vocab_size", "many"},
      {"hidden_size", 1e18},
      {"layer_types", json::array({"chunked_attention"})},
  };
  for (const auto& [key, value] : cases) {
    json config = tiny_json();
    config["text_config"][key] = value;
    const std::string message = input_error([&] { parse(config); });
    // Heads are told by the entry that does not divide them.
    EXPECT_TRUE(mentions(message, key)) << key << ": " << message;
  }
}

TEST(GemmaConfigTest, AnotherModelTypeIsRefused) {
  json config = tiny_json();
  config["model_type"] = "llama";
  EXPECT_TRUE(mentions(input_error([&] { parse(config); }), "llama"));
  config.erase("model_type");
  EXPECT_TRUE(mentions(input_error([&] { parse(config); }), "model_type"));
  EXPECT_TRUE(mentions(input_error([&] { parse(json::array()); }), "config.json"));
}

TEST(GemmaConfigTest, SparseConfigurationTakesTheDefaultsOfTheFamily) {
  // As in the released 12B folder.
  const json config = {{"model_type", "gemma3"},
                       {"text_config",
                        {{"hidden_size", 3840},
                         {"intermediate_size", 15360},
                         {"num_attention_heads", 16},
                         {"num_hidden_layers", 48},
                         {"num_key_value_heads", 8},
                         {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                         {"sliding_window", 1024}}}};
  const GemmaConfig parsed = parse(config);
  EXPECT_EQ(parsed.head_dim, 256);
  EXPECT_EQ(parsed.vocab_size, 262208);
  EXPECT_EQ(parsed.num_states(), 49);
  EXPECT_EQ(parsed.full_rope.factor, 8.0);
  EXPECT_EQ(parsed.full_rope.theta, 1e6);
  EXPECT_EQ(parsed.sliding_rope.factor, 1.0);
  EXPECT_EQ(parsed.sliding_rope.theta, 1e4);
  for (size_t i = 0; i < parsed.layers.size(); ++i) {
    EXPECT_EQ(parsed.layers[i] == AttentionSpan::full, i % 6 == 5) << i;
  }
}

TEST(GemmaConfigTest, BothSpellingsOfRotaryAndLayerSettingsMeanTheSame) {
  json config = tiny_json();
  const GemmaConfig old_style = parse(config);
  auto& text = config["text_config"];
  text["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "linear"},
        {"factor", old_style.full_rope.factor},
        {"rope_theta", old_style.full_rope.theta}}},
      {"sliding_attention",
       {{"rope_type", "default"}, {"rope_theta", old_style.sliding_rope.theta}}}};
  for (const char* key : {"rope_scaling", "rope_theta", "rope_local_base_freq", "layer_types"}) {
    text.erase(key);
  }
  const GemmaConfig new_style = parse(config);
  EXPECT_EQ(new_style.full_rope.factor, old_style.full_rope.factor);
  EXPECT_EQ(new_style.full_rope.theta, old_style.full_rope.theta);
  EXPECT_EQ(new_style.sliding_rope.theta, old_style.sliding_rope.theta);
  EXPECT_EQ(new_style.layers, old_style.layers);

  text["rope_parameters"]["full_attention"]["rope_type"] = "yarn";
  EXPECT_TRUE(mentions(input_error([&] { parse(config); }), "yarn"));
  text["rope_parameters"]["full_attention"] = {{"rope_type", "linear"}};
  EXPECT_TRUE(mentions(input_error([&] { parse(config); }), "factor"));
}

class GemmaFolderTest : public ::testing::Test {
 protected:
  GemmaFolderTest() {
    for (const char* name : {"config.json", "tokenizer.model", "model.safetensors"}) {
      fs::copy_file(test::tiny_dir() / "gemma" / name, dir_ / name);
      fs::permissions(dir_ / name, fs::perms::owner_write, fs::perm_options::add);
    }
  }

  void edit_config(const std::function<void(json&)>& edit) {
    json config = read_gemma_json(dir_.path());
    edit(config);
    test::write_file(dir_ / "config.json", config.dump());
  }

  // The message with which a prompt encoder on this folder is refused, on the device of dry runs.
  std::string refusal() {
    return input_error([&] {
      const PromptEncoder encoder(test::open_tiny("ltx23-dev.safetensors"), dir_.path(), at::kFloat,
                                  at::kMeta);
    });
  }

  test::TempDir dir_;
};

TEST_F(GemmaFolderTest, CompleteFolderPassesTheCheckWithoutReadingWeights) {
  const Gemma gemma(dir_.path(), at::kFloat, at::kMeta);
  EXPECT_TRUE(gemma.weights().norm.is_meta());
  EXPECT_GT(gemma.weight_bytes(), 0);
}

TEST_F(GemmaFolderTest, AllMissingFilesAreNamedAtOnce) {
  fs::remove(dir_ / "tokenizer.model");
  fs::remove(dir_ / "config.json");
  const std::string message = refusal();
  EXPECT_TRUE(mentions(message, dir_.path().string())) << message;
  EXPECT_TRUE(mentions(message, "has no config.json, tokenizer.model;")) << message;
  fs::remove(dir_ / "model.safetensors");
  EXPECT_TRUE(mentions(refusal(), "tokenizer.model, model.safetensors;"));
}

TEST_F(GemmaFolderTest, PathThatIsNoFolderIsRefused) {
  const auto open = [&] { const Gemma gemma(dir_ / "config.json", at::kFloat, at::kMeta); };
  EXPECT_TRUE(mentions(input_error(open), "is not a folder"));
}

TEST_F(GemmaFolderTest, LfsPointerInPlaceOfTheWeightsIsTold) {
  test::write_file(
      dir_ / "model.safetensors",
      "version https://git-lfs.github.com/spec/v1\noid sha256:"
      "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 497080\n");
  EXPECT_TRUE(mentions(refusal(), "Git-LFS"));
}

TEST_F(GemmaFolderTest, ConfigurationThatIsNotJsonIsTold) {
  test::write_file(dir_ / "config.json", "{\"model_type\": ");
  EXPECT_TRUE(mentions(refusal(), "is not JSON"));
}

TEST_F(GemmaFolderTest, MissingLayersAreListedWithTheFile) {
  edit_config([](json& config) {
    auto& text = config["text_config"];
    text.erase("layer_types");
    text["num_hidden_layers"] = text["num_hidden_layers"].get<int>() + 1;
  });
  const std::string message = refusal();
  EXPECT_TRUE(mentions(message, "missing")) << message;
  EXPECT_TRUE(mentions(message, dir_.path().string())) << message;
}

TEST_F(GemmaFolderTest, SurplusLayersAreListed) {
  edit_config([](json& config) {
    auto& text = config["text_config"];
    text.erase("layer_types");
    text["num_hidden_layers"] = text["num_hidden_layers"].get<int>() - 1;
  });
  EXPECT_TRUE(mentions(refusal(), "unexpected"));
}

TEST_F(GemmaFolderTest, AnotherHiddenSizeThanTheWeightsIsTold) {
  edit_config([](json& config) {
    auto& text = config["text_config"];
    text["hidden_size"] = text["hidden_size"].get<int>() * 2;
  });
  EXPECT_TRUE(mentions(refusal(), "of another shape"));
}

TEST_F(GemmaFolderTest, EncoderThatTheCheckpointWasNotTrainedWithIsTold) {
  for (const char* file : {"ltx23-dev.safetensors", "ltx20-dev.safetensors"}) {
    for (const bool wider : {true, false}) {
      GemmaConfig other = parse(tiny_json());
      if (wider) other.hidden_size *= 2;
      if (!wider) other.layers.push_back(AttentionSpan::full);
      const std::string message = input_error([&] {
        const ContextBuilder contexts(test::open_tiny(file), other, "some/gemma", at::kFloat,
                                      at::kMeta);
      });
      EXPECT_TRUE(mentions(message, "some/gemma")) << message;
      EXPECT_TRUE(mentions(message, file)) << message;
      EXPECT_TRUE(mentions(message, fmt::to_string(other.hidden_size))) << message;
    }
  }
}

TEST_F(GemmaFolderTest, TokenizerOfALargerModelIsTold) {
  // The demo model's tokenizer has more pieces than the tiny model has embeddings.
  const fs::path other = test::source_dir() / "models/demo/gemma/tokenizer.model";
  if (!fs::exists(other)) GTEST_SKIP() << "the demo model is not there";
  fs::copy_file(other, dir_ / "tokenizer.model", fs::copy_options::overwrite_existing);
  EXPECT_TRUE(mentions(refusal(), "pieces"));
}

TEST_F(GemmaFolderTest, NamesOfBothHuggingFaceLayoutsAreAccepted) {
  const auto source = loader::Checkpoint::open(dir_.path());
  std::map<std::string, loader::TensorInfo> renamed;
  const std::string old_prefix = "language_model.model.";
  for (const auto& [name, info] : source->tensors()) {
    if (name.starts_with(old_prefix)) {
      renamed["model.language_model." + name.substr(old_prefix.size())] = info;
    } else {
      renamed["model." + name] = info;
    }
  }
  loader::write_sparse_checkpoint(dir_ / "model.safetensors", renamed, {});
  const Gemma gemma(dir_.path(), at::kFloat, at::kMeta);
  EXPECT_EQ(gemma.weights().layers.size(), gemma.config().layers.size());

  renamed["model.surprise.weight"] = renamed.begin()->second;
  loader::write_sparse_checkpoint(dir_ / "model.safetensors", renamed, {});
  EXPECT_TRUE(mentions(refusal(), "model.surprise.weight"));
}

TEST(GemmaForwardTest, SlidingLayersForgetWhatIsBehindTheWindow) {
  Gemma gemma(test::tiny_dir() / "gemma", at::kFloat, at::kCPU);
  gemma.load();
  GemmaConfig config = gemma.config();
  config.sliding_window = 4;
  std::fill(config.layers.begin(), config.layers.end(), AttentionSpan::sliding);
  // A token sees window - 1 before it per layer, so changing the first one reaches this far:
  const int64_t reach = (config.sliding_window - 1) * config.num_layers();
  const at::Tensor ids = at::arange(10, 10 + 2 * reach).unsqueeze(0);
  at::Tensor changed = ids.clone();
  changed[0][0] = 9;
  const at::Tensor mask = at::ones_like(ids);
  const at::Tensor a = gemma_forward(config, gemma.weights(), ids, mask).states.back()[0];
  const at::Tensor b = gemma_forward(config, gemma.weights(), changed, mask).states.back()[0];
  EXPECT_FALSE(at::equal(a.narrow(0, reach, 1), b.narrow(0, reach, 1)));
  EXPECT_TRUE(at::equal(a.narrow(0, reach + 1, reach - 1), b.narrow(0, reach + 1, reach - 1)));
}

TEST(GemmaForwardTest, TokensDoNotSeeTheFuture) {
  Gemma gemma(test::tiny_dir() / "gemma", at::kFloat, at::kCPU);
  gemma.load();
  const at::Tensor ids = at::arange(10, 20).unsqueeze(0);
  at::Tensor changed = ids.clone();
  changed[0][9] = 9;
  const at::Tensor mask = at::ones_like(ids);
  const at::Tensor a = gemma.forward(ids, mask).states.back()[0];
  const at::Tensor b = gemma.forward(changed, mask).states.back()[0];
  EXPECT_TRUE(at::equal(a.narrow(0, 0, 9), b.narrow(0, 0, 9)));
  EXPECT_FALSE(at::equal(a[9], b[9]));
}

}  // namespace
}  // namespace flotilla::text
