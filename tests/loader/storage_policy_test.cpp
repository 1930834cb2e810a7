// Which tensors lie in which type, the numbers of e4m3, scales of files and of rows, and files that
// do not fit a policy.
#include "loader/storage_policy.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "loader/weight_arena.h"
#include "support/compare.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using loader::FileStorage;
using loader::StoragePolicy;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = std::map<std::string, at::Tensor>;

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;
const std::string kPrefix = "model.diffusion_model.";
const std::string kQuery = kPrefix + "transformer_blocks.3.attn1.to_q.weight";
const std::string kGate = kPrefix + "transformer_blocks.3.attn1.to_gate_logits.weight";

TEST(QuantisedLayerTest, ProjectionsAndFeedForwardsOfTheBlocksAreMeant) {
  for (const char* name :
       {"transformer_blocks.0.attn1.to_q.weight", "transformer_blocks.0.attn1.to_k.bias",
        "transformer_blocks.47.audio_attn2.to_v.weight",
        "transformer_blocks.1.audio_to_video_attn.to_out.0.weight",
        "transformer_blocks.1.video_to_audio_attn.to_out.0.bias",
        "transformer_blocks.1.ff.net.0.proj.weight", "transformer_blocks.1.audio_ff.net.2.bias"}) {
    EXPECT_TRUE(loader::is_quantised_layer(kPrefix + name)) << name;
  }
  for (const char* name :
       {"transformer_blocks.0.attn1.to_gate_logits.weight",
        "transformer_blocks.0.attn1.q_norm.weight", "transformer_blocks.0.scale_shift_table",
        "patchify_proj.weight", "proj_out.bias", "adaln_single.linear.weight",
        "video_embeddings_connector.transformer_1d_blocks.0.attn1.to_q.weight",
        "transformer_blocks.0.attn1.to_q.weight_scale"}) {
    EXPECT_FALSE(loader::is_quantised_layer(kPrefix + name)) << name;
  }
}

class StoragePolicyTest : public ::testing::Test {
 protected:
  FileStorage storage(const Tensors& tensors, StoragePolicy policy) const {
    test::write_safetensors(dir_ / "m.safetensors", tensors);
    return FileStorage(loader::Checkpoint::open(dir_ / "m.safetensors"), policy);
  }
  // As the arena holds them.
  std::unique_ptr<loader::WeightArena> loaded(const Tensors& tensors, StoragePolicy policy) const {
    test::write_safetensors(dir_ / "m.safetensors", tensors);
    auto arena =
        std::make_unique<loader::WeightArena>(loader::Checkpoint::open(dir_ / "m.safetensors"),
                                              std::vector<std::string>{kPrefix}, policy, at::kCPU);
    arena->load();
    return arena;
  }
  static at::Tensor bits(const at::Tensor& e4m3) { return e4m3.view(at::kByte); }

  test::TempDir dir_;
};

// The format: sign, 4 bits of exponent (bias 7), 3 of mantissa; subnormals in steps of 2^-9, the
// largest number 448; ties go to the even mantissa.
TEST_F(StoragePolicyTest, CastRoundsToTheNearestEvenNumber) {
  const std::vector<std::pair<float, int>> table = {
      {0.0F, 0x00},        {-0.0F, 0x80},      {1.0F, 0x38},        {-1.0F, 0xB8},
      {448.0F, 0x7E},      {-448.0F, 0xFE},    {460.0F, 0x7E},      {432.0F, 0x7E},
      {0.015625F, 0x08},   {1.0F / 512, 0x01}, {1.0F / 1024, 0x00}, {1.5F / 512, 0x02},
      {2.5F / 512, 0x02},  {1.0625F, 0x38},    {1.1875F, 0x3A},     {1.0703125F, 0x39},
      {0.30078125F, 0x2A}, {-3.25F, 0xC5},     {-3.75F, 0xC7}};
  std::vector<float> values;
  std::vector<int> expected;
  for (const auto& [value, code] : table) {
    values.push_back(value);
    expected.push_back(code);
  }
  const at::Tensor row = at::tensor(values).unsqueeze(0);
  for (const auto stored : {at::kFloat, at::kBFloat16}) {  // all of them are exact in both
    const auto arena = loaded({{kQuery, row.to(stored)}}, StoragePolicy::fp8_cast());
    const at::Tensor codes = bits(arena->views().at(kQuery)).to(at::kInt).flatten();
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(codes[static_cast<int64_t>(i)].item<int>(), expected[i]) << values[i];
  }
}

TEST_F(StoragePolicyTest, CastKeepsEverythingElseWide) {
  const Tensors tensors = {{kQuery, at::randn({4, 16})},
                           {kGate, at::randn({2, 16})},
                           {kPrefix + "transformer_blocks.3.attn1.to_q.bias", at::randn({4})},
                           {kPrefix + "count", at::ones({2}, at::kInt)}};
  const auto cast = loaded(tensors, StoragePolicy::fp8_cast());
  EXPECT_EQ(cast->views().at(kQuery).scalar_type(), kE4m3);
  EXPECT_EQ(cast->views().at(kPrefix + "transformer_blocks.3.attn1.to_q.bias").scalar_type(),
            kE4m3);
  EXPECT_EQ(cast->views().at(kGate).scalar_type(), at::kBFloat16);
  EXPECT_EQ(cast->views().at(kPrefix + "count").scalar_type(), at::kInt);
  EXPECT_TRUE(cast->row_scales().empty());
  const auto scaled = loaded(tensors, StoragePolicy::fp8_scaled_mm());
  EXPECT_EQ(scaled->views().at(kQuery).scalar_type(), kE4m3);
  EXPECT_EQ(scaled->views().at(kPrefix + "transformer_blocks.3.attn1.to_q.bias").scalar_type(),
            at::kBFloat16);
  EXPECT_EQ(scaled->row_scales().size(), 1U);
}

TEST_F(StoragePolicyTest, NumberBeyondTheRangeIsRefusedByName) {
  EXPECT_THAT(
      [&] {
        loaded({{kQuery, at::full({2, 16}, 500.0F)}}, StoragePolicy::fp8_cast());
      },
      ThrowsMessage<Error>(
          AllOf(HasSubstr("attn1.to_q.weight"), HasSubstr("448"), HasSubstr("m.safetensors"))));
}

// weight = e4m3 * scale, rounded to bfloat16, and to e4m3 again where that is how it is stored.
TEST_F(StoragePolicyTest, CastMultipliesTheScalesOfTheFileIn) {
  const at::Tensor values = at::randn({6, 16}).mul(100).to(kE4m3);
  const at::Tensor gate = at::randn({2, 16}).mul(100).to(kE4m3);
  for (const at::Tensor& scale : {at::full({}, 0.0123F), at::rand({6}) + 0.01F}) {
    const auto arena =
        loaded({{kQuery, values},
                {kQuery + "_scale", scale},
                {kPrefix + "transformer_blocks.3.attn1.to_q.input_scale", at::full({}, 3.0F)},
                {kGate, gate},
                {kGate + "_scale", at::full({1}, 0.5F)}},
               StoragePolicy::fp8_cast());
    EXPECT_EQ(arena->views().size(), 2U);
    const at::Tensor factor = scale.dim() == 0 ? scale : scale.unsqueeze(1);
    const at::Tensor expected = (values.to(at::kFloat) * factor).to(at::kBFloat16).to(kE4m3);
    EXPECT_TRUE(test::same_bytes(bits(arena->views().at(kQuery)), bits(expected)));
    EXPECT_TRUE(
        test::same_bytes(arena->views().at(kGate), (gate.to(at::kFloat) * 0.5F).to(at::kBFloat16)));
  }
}

TEST_F(StoragePolicyTest, BareNumbersOfTheFileAreTakenAsTheyAre) {
  const at::Tensor values = at::randn({6, 16}).to(kE4m3);
  const auto arena = loaded({{kQuery, values}, {kGate, values}}, StoragePolicy::fp8_cast());
  EXPECT_TRUE(test::same_bytes(bits(arena->views().at(kQuery)), bits(values)));
  EXPECT_TRUE(test::same_bytes(arena->views().at(kGate), values.to(at::kBFloat16)));
}

TEST_F(StoragePolicyTest, RowsAreScaledToTheWholeRange) {
  at::Tensor weight = at::randn({70, 32}).to(at::kBFloat16);
  weight[1] *= 1000;
  weight[2].zero_();
  const auto arena = loaded({{kQuery, weight}}, StoragePolicy::fp8_scaled_mm());
  const at::Tensor& values = arena->views().at(kQuery);
  const at::Tensor& scales = arena->row_scales().at(kQuery);
  ASSERT_EQ(scales.sizes().vec(), std::vector<int64_t>{70});
  const at::Tensor largest = values.to(at::kFloat).abs().amax(1);
  EXPECT_EQ(largest[0].item<float>(), 448.0F);
  EXPECT_EQ(largest[1].item<float>(), 448.0F);
  EXPECT_EQ(largest[2].item<float>(), 0.0F);
  // Half a step of 3 bits of mantissa, and of the subnormals below.
  const at::Tensor wide = weight.to(at::kFloat);
  const at::Tensor error = (values.to(at::kFloat) * scales.unsqueeze(1) - wide).abs();
  EXPECT_TRUE((error <= wide.abs() / 16 + scales.unsqueeze(1) / 1024).all().item<bool>());
}

TEST_F(StoragePolicyTest, ScaledFileKeepsItsNumbersAndChoosesItsLayers) {
  const std::string other = kPrefix + "transformer_blocks.0.attn1.to_q.weight";
  const at::Tensor values = at::randn({16, 32}).mul(60).to(kE4m3);
  const auto arena = loaded({{kQuery, values},
                             {kQuery + "_scale", at::full({}, 0.25F)},
                             {kGate, values},
                             {kGate + "_scale", at::rand({16, 1})},
                             {other, at::randn({4, 8}).to(at::kBFloat16)}},
                            StoragePolicy::fp8_scaled_mm());
  EXPECT_TRUE(test::same_bytes(bits(arena->views().at(kQuery)), bits(values)));
  EXPECT_TRUE(test::same_bytes(arena->row_scales().at(kQuery), at::full({16}, 0.25F)));
  EXPECT_EQ(arena->views().at(kGate).scalar_type(), kE4m3);
  EXPECT_EQ(arena->views().at(other).scalar_type(), at::kBFloat16);
}

TEST_F(StoragePolicyTest, RowsDoNotDependOnTheShareThatTheyAreReadIn) {
  const at::Tensor values = at::randn({40, 24}).mul(60).to(kE4m3);
  const Tensors files[] = {{{kQuery, at::randn({40, 24})}},
                           {{kQuery, values}, {kQuery + "_scale", at::rand({40})}}};
  for (const Tensors& tensors : files) {
    for (const auto& policy : {StoragePolicy::fp8_cast(), StoragePolicy::fp8_scaled_mm()}) {
      const FileStorage file = storage(tensors, policy);
      const bool scaled = file.has_row_scales(kQuery);
      const auto read = [&](int64_t begin, int64_t end) {
        const at::Tensor out = at::empty({end - begin, 24}, file.dtype_of(kQuery));
        const at::Tensor scales = scaled ? at::empty({end - begin}) : at::Tensor();
        file.read_rows(kQuery, begin, end, out, scales);
        return std::pair(bits(out), scales);
      };
      const auto [whole, whole_scales] = read(0, 40);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, 17}, {17, 40}}) {
        const auto [part, scales] = read(begin, end);
        EXPECT_TRUE(test::same_bytes(part, whole.narrow(0, begin, end - begin).contiguous()));
        if (scaled)
          EXPECT_TRUE(test::same_bytes(scales, whole_scales.narrow(0, begin, end - begin)));
      }
    }
  }
}

// Field by field: what is in the file, and which policies take it.
TEST_F(StoragePolicyTest, PoliciesThatDoNotFitAreRefusedWithOneThatDoes) {
  const at::Tensor narrow = at::ones({4, 16}).to(kE4m3);
  const Tensors wide = {{kQuery, at::ones({4, 16}).to(at::kBFloat16)}};
  const Tensors bare = {{kQuery, narrow}};
  const Tensors scaled = {{kQuery, narrow}, {kQuery + "_scale", at::ones({})}};
  const auto check = [&](const Tensors& tensors, StoragePolicy policy) {
    const FileStorage file = storage(tensors, policy);
    file.check(kPrefix);
  };
  const StoragePolicy cast = StoragePolicy::fp8_cast();
  const StoragePolicy mm = StoragePolicy::fp8_scaled_mm();
  for (const StoragePolicy& policy : {StoragePolicy(at::kFloat), StoragePolicy(at::kBFloat16)}) {
    EXPECT_NO_THROW(check(wide, policy));
    EXPECT_THAT([&] { check(bare, policy); },
                ThrowsMessage<Error>(AllOf(
                    HasSubstr("precision: " + std::string(policy.name()) + " does not fit"),
                    HasSubstr("m.safetensors"), HasSubstr("1 tensors as F8_E4M3 without scales"),
                    HasSubstr("use precision: fp8_cast,"))));
    EXPECT_THAT([&] { check(scaled, policy); },
                ThrowsMessage<Error>(AllOf(HasSubstr("as F8_E4M3 with scales"),
                                           HasSubstr("fp8_cast (or fp8_scaled_mm on a GPU)"))));
  }
  for (const Tensors& tensors : {wide, bare, scaled}) EXPECT_NO_THROW(check(tensors, cast));
  for (const Tensors& tensors : {wide, scaled}) EXPECT_NO_THROW(check(tensors, mm));
  EXPECT_THAT([&] { check(bare, mm); },
              ThrowsMessage<Error>(AllOf(HasSubstr("precision: fp8_scaled_mm does not fit"),
                                         HasSubstr("without \"_scale\" tensors"),
                                         HasSubstr("use precision: fp8_cast"))));
}

TEST_F(StoragePolicyTest, ScalesThatFitNothingAreRefusedByName) {
  const at::Tensor narrow = at::ones({4, 16}).to(kE4m3);
  const auto refused = [&](const Tensors& tensors, const std::vector<std::string>& told) {
    const FileStorage file = storage(tensors, StoragePolicy::fp8_cast());
    for (const std::string& text : told)
      EXPECT_THAT([&] { file.check(kPrefix); }, ThrowsMessage<Error>(HasSubstr(text)));
  };
  refused({{kQuery, narrow}, {kQuery + "_scale", at::ones({3})}},
          {"neither one number nor one for each row (1)", "to_q.weight_scale F32 [3]"});
  refused({{kQuery, narrow}, {kQuery + "_scale", at::ones({2, 2})}}, {"F32 [2, 2]"});
  refused({{kQuery, narrow}, {kQuery + "_scale", at::ones({4}, at::kInt)}}, {"I32 [4]"});
  refused({{kQuery, at::ones({4, 16})}, {kQuery + "_scale", at::ones({})}},
          {"a scale without an F8_E4M3 tensor (1)", "to_q.weight_scale"});
  refused({{kQuery + "_scale", at::ones({})}}, {"a scale without an F8_E4M3 tensor (1)"});
  refused({{kQuery, narrow}, {kGate, narrow}, {kGate + "_scale", at::ones({})}},
          {"F8_E4M3 without a scale, while others have one (1)", kQuery});
}

}  // namespace
}  // namespace flotilla
