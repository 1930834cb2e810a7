// The script that makes models of the size of LTX-2.3 22B with empty bodies: its names and shapes
// are those of files that the reference made, and the program accepts them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "pipeline/model_files.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "transformer/transformer.h"

namespace flotilla::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoint = "ltx-2.3-22b-distilled.safetensors";
constexpr const char* kUpsampler = "ltx-2.3-spatial-upscaler-x2.safetensors";
constexpr const char* kLora = "ltx-2.3-22b-lora-384.safetensors";

bool has_python() { return std::system("python3 --version > /dev/null 2>&1") == 0; }

void run_script(const fs::path& folder, const std::string& options) {
  const std::string command = fmt::format(
      "python3 '{}' '{}' {} > /dev/null",
      (test::source_dir() / "scripts/make_sparse_ltx23.py").string(), folder.string(), options);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

void expect_same_tensors(const fs::path& made, const fs::path& original) {
  const auto actual = loader::Checkpoint::open(made);
  const auto expected = loader::Checkpoint::open(original);
  for (const auto& [name, tensor] : expected->tensors()) {
    ASSERT_TRUE(actual->has(name)) << name << " of " << original;
    EXPECT_EQ(actual->tensors().at(name).shape, tensor.shape) << name;
    EXPECT_EQ(actual->tensors().at(name).dtype, tensor.dtype) << name;
  }
  EXPECT_EQ(actual->tensors().size(), expected->tensors().size()) << made;
}

TEST(SparseModelsTest, HaveTheTensorsOfTheReferencesFiles) {
  if (!has_python()) GTEST_SKIP() << "no python3";
  const test::TempDir folder;
  const fs::path tiny = test::tiny_dir();
  run_script(folder.path(),
             fmt::format("--like '{}' '{}' '{}'", (tiny / "ltx23-dev.safetensors").string(),
                         (tiny / "ltx23-spatial-upscaler-x2.safetensors").string(),
                         (tiny / "gemma").string()));
  expect_same_tensors(folder / kCheckpoint, tiny / "ltx23-dev.safetensors");
  expect_same_tensors(folder / kUpsampler, tiny / "ltx23-spatial-upscaler-x2.safetensors");
  expect_same_tensors(folder / "gemma-3-12b", tiny / "gemma");
}

TEST(SparseModelsTest, PassTheAuditAtTheirFullSize) {
  if (!has_python()) GTEST_SKIP() << "no python3";
  const test::TempDir folder;
  run_script(folder.path(), "--lora");
  config::Job job;
  job.models.checkpoint = folder / kCheckpoint;
  job.models.spatial_upsampler = folder / kUpsampler;
  job.models.text_encoder = folder / "gemma-3-12b";
  job.models.loras = {{folder / kLora, 1.0}};
  job.precision = config::Precision::bf16;
  job.images.resize(1);  // the encoder of the video VAE, too
  const ModelFiles files(job.models);
  EXPECT_NO_THROW(audit_models(files, job));

  const auto prefix_parameters = [&](const std::string& prefix, const std::string& without) {
    int64_t parameters = 0;
    for (const auto& [name, tensor] : files.transformer()->tensors()) {
      if (!name.starts_with(prefix)) continue;
      if (!without.empty() && name.find(without) != std::string::npos) continue;

      parameters += tensor.numel();
    }
    return parameters;
  };
  EXPECT_EQ(prefix_parameters("model.diffusion_model.", "embeddings_connector"), 18'988'838'144);
  EXPECT_EQ(prefix_parameters("text_embedding_projection.", ""), 1'156'061'184);
}

}  // namespace
}  // namespace flotilla::pipeline
