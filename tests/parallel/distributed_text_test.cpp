// The text encoder spread over the ranks against the one of a single process: equal bytes on every
// rank for any number of ranks and prompts, no file read twice, and errors told by all.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "comm/agreement.h"
#include "parallel/distributed_text_encoder.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/mpi_main.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"
#include "text/prompt_encoder.h"

namespace flotilla::parallel {
namespace {

using config::TextParallel;
using text::Gemma;
using text::TokenizedPrompt;

constexpr const char* kModels[] = {"ltx20-dev.safetensors", "ltx23-dev.safetensors"};

comm::Communicator& ranks() { return test::ranks().text(); }
int world_size() { return ranks().world_size(); }
std::filesystem::path folder() { return test::tiny_dir() / "gemma"; }

// Of unequal length: nothing but BOS, some words, and more than the sliding window.
std::vector<std::string> prompts(size_t count) {
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += fmt::format("wave {} ", i);
  const std::vector<std::string> all = {"a red kite above the sea", longer, ""};
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)};
}

TextEncoderSetup setup_of(const char* model, TextParallel split, size_t num_prompts) {
  return {.checkpoint = test::open_tiny(model),
          .folder = folder(),
          .split = split,
          .num_prompts = static_cast<int64_t>(num_prompts)};
}

std::vector<TokenizedPrompt> tokens_of(const std::vector<std::string>& texts) {
  const text::Tokenizer tokenizer(folder());
  std::vector<TokenizedPrompt> tokens;
  for (const auto& text : texts) tokens.push_back(tokenizer.encode(text));
  return tokens;
}

// The driver encodes all prompts alone; every rank must have its bytes.
void expect_bytes_of_one_rank(const DistributedTextEncoder& encoder, const TextEncoderSetup& setup,
                              const std::vector<std::string>& texts) {
  const auto contexts = encoder.encode(tokens_of(texts));
  ASSERT_EQ(contexts.size(), texts.size());
  std::optional<text::PromptEncoder> alone;
  if (ranks().is_driver()) {
    alone.emplace(setup.checkpoint, setup.folder, setup.dtype, setup.device);
    alone->load();
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    at::Tensor video = at::empty_like(contexts[i].video);
    at::Tensor audio = at::empty_like(contexts[i].audio);
    if (alone) {
      const auto expected = alone->encode(texts[i]);
      video = expected.video_context;
      audio = expected.audio_context;
    }
    ranks().broadcast(video, 0);
    ranks().broadcast(audio, 0);
    EXPECT_TRUE(test::same_bytes(contexts[i].video, video)) << i;
    EXPECT_TRUE(test::same_bytes(contexts[i].audio, audio)) << i;
  }
}

void check(const TextEncoderSetup& setup) {
  DistributedTextEncoder encoder(&ranks(), setup);
  encoder.load();
  expect_bytes_of_one_rank(encoder, setup, prompts(static_cast<size_t>(setup.num_prompts)));
}

TEST(DistributedTextTest, LayersAreContiguousAndTheLastRankHasTheLastOne) {
  for (int64_t layers = 1; layers <= 50; ++layers) {
    for (int world = 1; world <= 9; ++world) {
      int64_t next = 0;
      int64_t most = 0;
      for (int rank = 0; rank < world; ++rank) {
        const auto range = layers_of_rank(layers, rank, world);
        ASSERT_EQ(range.begin, next);
        next = range.end;
        most = std::max(most, range.size());
      }
      EXPECT_EQ(next, layers);
      EXPECT_EQ(most, (layers + world - 1) / world);
      EXPECT_GT(layers_of_rank(layers, world - 1, world).size(), 0);
    }
  }
}

TEST(DistributedTextTest, ShardedLayersGiveTheBytesOfOneRank) {
  for (const char* model : kModels) {
    for (const size_t count : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} prompts", model, count));
      check(setup_of(model, TextParallel::shard, count));
    }
  }
}

TEST(DistributedTextTest, DealtPromptsGiveTheBytesOfOneRank) {
  for (const char* model : kModels) {
    for (const size_t count : {1, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} prompts", model, count));
      check(setup_of(model, TextParallel::replicate, count));
    }
  }
}

TEST(DistributedTextTest, HalfPrecisionGivesTheBytesOfOneRankToo) {
  for (const auto split : {TextParallel::shard, TextParallel::replicate}) {
    TextEncoderSetup setup = setup_of(kModels[1], split, 2);
    setup.dtype = at::kBFloat16;
    check(setup);
  }
}

// Bytes that all ranks read from the files of both models.
int64_t bytes_of_all_ranks(const DistributedTextEncoder& encoder, const TextEncoderSetup& setup) {
  at::Tensor bytes =
      at::full({1}, encoder.bytes_read() + setup.checkpoint->bytes_read(), at::kLong);
  ranks().all_reduce_sum(bytes);
  return bytes.item<int64_t>();
}

int64_t bytes_of_one_encoder(const char* model) {
  const auto checkpoint = test::open_tiny(model);
  text::PromptEncoder alone(checkpoint, folder(), at::kFloat, at::kCPU);
  alone.load();
  return alone.gemma().bytes_read() + checkpoint->bytes_read();
}

TEST(DistributedTextTest, WeightsAreReadOnceByAllRanksTogether) {
  for (const auto split : {TextParallel::shard, TextParallel::replicate}) {
    for (const size_t count : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} prompts", count));
      const TextEncoderSetup setup = setup_of(kModels[1], split, count);
      DistributedTextEncoder encoder(&ranks(), setup);
      EXPECT_EQ(bytes_of_all_ranks(encoder, setup), 0);
      encoder.load();
      EXPECT_EQ(bytes_of_all_ranks(encoder, setup), bytes_of_one_encoder(kModels[1]));
    }
  }
}

TEST(DistributedTextTest, RankWithoutPromptHoldsNothing) {
  const TextEncoderSetup setup = setup_of(kModels[1], TextParallel::replicate, 2);
  DistributedTextEncoder encoder(&ranks(), setup);
  encoder.load();
  EXPECT_EQ(encoder.weight_bytes() > 0, ranks().rank() < 2);
  const int64_t read = encoder.bytes_read() + setup.checkpoint->bytes_read();
  EXPECT_EQ(read > 0, ranks().rank() < 2);
}

// The tiny folder with a NaN in the last row of its embedding; the driver makes it.
void write_damaged_gemma(const std::filesystem::path& folder) {
  std::filesystem::copy(test::tiny_dir() / "gemma", folder);
  const auto original = loader::Checkpoint::open(folder);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, info] : original->tensors()) {
    tensors[name] = original->read(name);
    if (name.ends_with("embed_tokens.weight")) tensors[name][-1][0] = std::nanf("");
  }
  std::filesystem::remove(folder / "model.safetensors");
  test::write_safetensors(folder / "model.safetensors", tensors);
}

// Also by ranks that read nothing themselves.
TEST(DistributedTextTest, DamagedWeightIsToldByAllRanks) {
  const test::TempDir own;
  const std::filesystem::path damaged = ranks().broadcast((own.path() / "gemma").string(), 0);
  if (ranks().is_driver()) write_damaged_gemma(damaged);
  ranks().barrier("folder written", 60);
  for (const auto split : {TextParallel::shard, TextParallel::replicate}) {
    TextEncoderSetup setup = setup_of(kModels[1], split, 2);
    setup.folder = damaged;
    DistributedTextEncoder encoder(&ranks(), setup);
    try {
      encoder.load();
      ADD_FAILURE() << "no error";
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      EXPECT_THAT(error.what(), testing::HasSubstr("embed_tokens.weight"));
    }
  }
  ranks().barrier("folder read", 60);
}

TEST(DistributedTextTest, LoadedModelOfOneRankIsNotReadAgain) {
  for (const auto split : {TextParallel::shard, TextParallel::replicate}) {
    TextEncoderSetup setup = setup_of(kModels[1], split, 2);
    if (ranks().is_driver()) {
      setup.gemma = std::make_shared<Gemma>(folder(), at::kFloat, at::kCPU);
      setup.gemma->load();
    }
    DistributedTextEncoder encoder(&ranks(), setup);
    encoder.load();
    if (ranks().is_driver()) {
      EXPECT_EQ(encoder.bytes_read(), 0);
    }
    if (split == TextParallel::replicate && world_size() > 1) {
      EXPECT_EQ(encoder.bytes_read() > 0, ranks().rank() == 1);
    }
    expect_bytes_of_one_rank(encoder, setup, prompts(2));
  }
}

TEST(DistributedTextTest, ProcessAloneNeedsNoCommunicator) {
  // Each rank for itself.
  const TextEncoderSetup setup = setup_of(kModels[0], TextParallel::shard, 2);
  DistributedTextEncoder encoder(nullptr, setup);
  encoder.load();
  expect_bytes_of_one_rank(encoder, setup, prompts(2));
}

}  // namespace
}  // namespace flotilla::parallel
