// LoRA fusion on small models of the tests' own: names, the formula, several LoRAs, shares of rows,
// and every way in which a file can be wrong.
#include "loader/lora.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "loader/fused_share.h"
#include "support/compare.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using loader::FusedShare;
using loader::LoraAggregation;
using loader::LoraFile;
using loader::LoraWithStrength;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using Tensors = std::map<std::string, at::Tensor>;

constexpr const char* kPrefix = "model.diffusion_model.";
constexpr const char* kQuery = "blocks.0.to_q";  // [24, 16]
constexpr const char* kTall = "blocks.0.tall";   // [2500, 40]: three blocks of rows

std::string weight_name(const std::string& module) {
  return fmt::format("{}{}.weight", kPrefix, module);
}

class LoraTest : public ::testing::Test {
 protected:
  LoraTest() {
    at::manual_seed(7);
    test::write_safetensors(dir_ / "model.safetensors",
                            {{weight_name(kQuery), at::randn({24, 16})},
                             {weight_name(kTall), at::randn({2500, 40}).to(at::kBFloat16)},
                             {weight_name("norm"), at::randn({16})},
                             {weight_name("connector.to_q"), at::randn({8, 8})}});
  }

  // The model without its connector, which another part of the program uses.
  std::shared_ptr<loader::WeightArena> arena(at::ScalarType dtype,
                                             at::Device device = at::kCPU) const {
    auto made = std::make_shared<loader::WeightArena>(
        loader::Checkpoint::open(dir_ / "model.safetensors"), std::vector<std::string>{kPrefix},
        dtype, device, std::vector<std::string>{"connector."});
    if (device.type() != at::kMeta) made->load();
    return made;
  }

  std::shared_ptr<const LoraFile> write(const Tensors& tensors,
                                        const std::string& name = "lora.safetensors") const {
    test::write_safetensors(dir_ / name, tensors);
    return std::make_shared<LoraFile>(loader::Checkpoint::open(dir_ / name));
  }
  static Tensors factors(const std::string& module, int64_t out, int64_t in, int64_t rank = 3) {
    return {{module + ".lora_A.weight", at::randn({rank, in}).to(at::kBFloat16)},
            {module + ".lora_B.weight", at::randn({out, rank}).to(at::kBFloat16)}};
  }

  test::TempDir dir_;
};

using ArenaPtr = std::shared_ptr<loader::WeightArena>;

// Share `index` of `count` of an arena.
FusedShare share_of(const ArenaPtr& arena, FusedShare::Clean clean = FusedShare::Clean::copied,
                    int index = 0, int count = 1) {
  return FusedShare(arena, arena->share(index, count), clean, at::kCPU);
}

// Fuses into a whole clean arena.
void fuse(const ArenaPtr& arena, const std::vector<LoraWithStrength>& loras,
          LoraAggregation aggregation = LoraAggregation::bfloat16) {
  loader::LoraFactors factors;
  share_of(arena).fuse(loader::LoraSet(*arena, kPrefix, loras), factors, aggregation);
}

// All weights of an arena, copied.
Tensors copy_of(const loader::WeightArena& arena) {
  Tensors copies;
  for (const auto& [name, view] : arena.views()) copies.emplace(name, view.clone());
  return copies;
}

void expect_same_weights(const Tensors& actual, const Tensors& expected) {
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(test::same_bytes(actual.at(name), tensor)) << name;
}

TEST_F(LoraTest, WeightGetsTheScaledProduct) {
  Tensors tensors = factors(kQuery, 24, 16);
  tensors.emplace(std::string(kQuery) + ".alpha", at::tensor(6.0F));  // rank 3: twice
  const auto model = arena(at::kFloat);
  const Tensors clean = copy_of(*model);
  fuse(model, {{write(tensors), 0.5}}, LoraAggregation::float32);
  const auto factor = [&](const char* role) {
    return tensors.at(fmt::format("{}.lora_{}.weight", kQuery, role)).to(at::kDouble);
  };
  const at::Tensor expected =
      clean.at(weight_name(kQuery)).to(at::kDouble) + at::matmul(factor("B"), factor("A"));
  EXPECT_TRUE(
      test::all_close(model->views().at(weight_name(kQuery)), expected.to(at::kFloat), 1e-6, 1e-6));
  EXPECT_TRUE(
      test::same_bytes(model->views().at(weight_name(kTall)), clean.at(weight_name(kTall))));
}

TEST_F(LoraTest, UsualNamesAreUnderstood) {
  const at::Tensor a = at::randn({3, 16});
  const at::Tensor b = at::randn({24, 3});
  const std::string m = kQuery;
  const std::vector<Tensors> spellings = {
      {{"diffusion_model." + m + ".lora_A.weight", a},
       {"diffusion_model." + m + ".lora_B.weight", b}},
      {{"transformer." + m + ".lora_A.weight", a}, {"transformer." + m + ".lora_B.weight", b}},
      {{m + ".lora_down.weight", a}, {m + ".lora_up.weight", b}},
      {{kPrefix + m + ".lora_A.weight", a}, {kPrefix + m + ".lora_B.weight", b}},
      {{"base_model.model." + m + ".lora_A.default.weight", a},
       {"base_model.model." + m + ".lora_B.default.weight", b}},
  };
  for (const Tensors& tensors : spellings) {
    const auto file = write(tensors);
    ASSERT_EQ(file->modules().size(), 1U) << tensors.begin()->first;
    const auto& [name, module] = *file->modules().begin();
    EXPECT_EQ(name, m);
    EXPECT_EQ(module.rank, 3);
    EXPECT_EQ(module.scale, 1.0);
  }
}

TEST_F(LoraTest, TypeOfTheFactorsDoesNotMatter) {
  const Tensors tensors = factors(kQuery, 24, 16);
  const auto fused = [&](at::ScalarType type) {
    Tensors converted;
    for (const auto& [name, tensor] : tensors) converted.emplace(name, tensor.to(type));
    const auto model = arena(at::kBFloat16);
    fuse(model, {{write(converted), 0.7}});
    return copy_of(*model);
  };
  const Tensors expected = fused(at::kBFloat16);
  expect_same_weights(fused(at::kFloat), expected);
}

TEST_F(LoraTest, SetsFollowEachOtherWithoutATrace) {
  const auto a = write(factors(kQuery, 24, 16), "a.safetensors");
  Tensors both = factors(kQuery, 24, 16, 5);
  both.merge(factors(kTall, 2500, 40));
  const auto b = write(both, "b.safetensors");
  const std::vector<std::vector<LoraWithStrength>> sets = {
      {}, {{a, 1.0}}, {{b, -0.5}}, {{a, 1.0}, {b, -0.5}}, {}};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn}) {
    for (const auto clean_by : {FusedShare::Clean::copied, FusedShare::Clean::read_again}) {
      const auto model = arena(dtype);
      const Tensors clean = copy_of(*model);
      FusedShare share = share_of(model, clean_by);
      loader::LoraFactors factors;
      for (const auto& set : sets) {
        const auto fresh = arena(dtype);
        fuse(fresh, set);
        share.fuse(loader::LoraSet(*model, kPrefix, set), factors);
        expect_same_weights(copy_of(*model), copy_of(*fresh));
        EXPECT_EQ(at::equal(model->views().at(weight_name(kQuery)).view(at::kByte),
                            clean.at(weight_name(kQuery)).view(at::kByte)),
                  set.empty());
      }
      expect_same_weights(copy_of(*model), clean);
    }
  }
}

TEST_F(LoraTest, CleanCopiesAreOfTouchedRowsOnly) {
  const auto a = write(factors(kQuery, 24, 16));
  const auto model = arena(at::kFloat);
  FusedShare share = share_of(model);
  loader::LoraFactors factors;
  EXPECT_EQ(share.clean_bytes(), 0);
  for (const double strength : {1.0, 0.5}) {
    share.fuse(loader::LoraSet(*model, kPrefix, std::vector<LoraWithStrength>{{a, strength}}),
               factors);
    EXPECT_EQ(share.clean_bytes(), 24 * 16 * 4);
  }
  FusedShare reader = share_of(arena(at::kFloat), FusedShare::Clean::read_again);
  reader.fuse(loader::LoraSet(*model, kPrefix, std::vector<LoraWithStrength>{{a, 1.0}}), factors);
  EXPECT_EQ(reader.clean_bytes(), 0);
}

TEST_F(LoraTest, SharesOfAnArenaGiveTheBytesOfTheWhole) {
  Tensors tensors = factors(kQuery, 24, 16, 5);
  tensors.merge(factors(kTall, 2500, 40));
  const std::vector<LoraWithStrength> loras = {{write(tensors), 0.8}};
  const auto whole = arena(at::kBFloat16);
  fuse(whole, loras);
  for (const int count : {2, 3, 5}) {
    const auto shared = arena(at::kBFloat16);
    const loader::LoraSet set(*shared, kPrefix, loras);
    for (int i = 0; i < count; ++i) {
      loader::LoraFactors factors;
      share_of(shared, FusedShare::Clean::copied, i, count).fuse(set, factors);
    }
    expect_same_weights(copy_of(*shared), copy_of(*whole));
  }
}

TEST_F(LoraTest, FactorsThatWereReadAreNotReadAgain) {
  Tensors tensors = factors(kQuery, 24, 16);
  tensors.merge(factors(kTall, 2500, 40));
  const auto file = write(tensors);
  const auto model = arena(at::kFloat);
  FusedShare share = share_of(model);
  loader::LoraFactors factors;
  const loader::LoraSet half(*model, kPrefix, std::vector<LoraWithStrength>{{file, 0.5}});
  const loader::LoraSet twice(*model, kPrefix,
                              std::vector<LoraWithStrength>{{file, 1.0}, {file, 0.25}});
  share.read_factors(half, factors);
  const int64_t read = file->checkpoint().bytes_read();
  EXPECT_GT(read, 0);
  share.fuse(half, factors);
  share.fuse(twice, factors);
  EXPECT_EQ(file->checkpoint().bytes_read(), read);
}

TEST_F(LoraTest, SetsAreTheSameOnlyForTheSameFilesStrengthsAndOrder) {
  const auto a = write(factors(kQuery, 24, 16), "a.safetensors");
  const auto b = write(factors(kQuery, 24, 16), "b.safetensors");
  const auto model = arena(at::kFloat, at::kMeta);
  const auto identity = [&](const std::vector<LoraWithStrength>& loras) {
    return loader::LoraSet(*model, kPrefix, loras).identity();
  };
  const std::string expected = identity({{a, 1.0}, {b, 0.5}});
  const auto again = std::make_shared<LoraFile>(loader::Checkpoint::open(dir_ / "a.safetensors"));
  EXPECT_EQ(identity({{again, 1.0}, {b, 0.5}}), expected);
  EXPECT_NE(identity({{a, 1.0}, {b, 0.25}}), expected);
  EXPECT_NE(identity({{b, 0.5}, {a, 1.0}}), expected);
  EXPECT_NE(identity({{a, 1.0}}), expected);
  EXPECT_EQ(identity({}), loader::LoraSet().identity());
  // The same name and shapes, other numbers: a LoRA that was trained on.
  const auto other = write(factors(kQuery, 24, 16), "a.safetensors");
  EXPECT_NE(identity({{other, 1.0}, {b, 0.5}}), expected);
}

TEST_F(LoraTest, SharesOfRowsGiveTheBytesOfTheWhole) {
  const auto a = write(factors(kTall, 2500, 40, 64), "a.safetensors");
  const auto b = write(factors(kTall, 2500, 40, 33), "b.safetensors");
  const std::vector<LoraWithStrength> loras = {{a, 0.8}, {b, 0.3}};
  const std::vector<int64_t> cuts = {0, 1, 1023, 1026, 1700, 2497, 2500};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn}) {
    for (const auto aggregation : {LoraAggregation::bfloat16, LoraAggregation::float32}) {
      const auto whole = arena(dtype);
      fuse(whole, loras, aggregation);
      const auto shared = arena(dtype);
      const loader::LoraSet set(*shared, kPrefix, loras);
      const at::Tensor& weight = shared->views().at(weight_name(kTall));
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        loader::LoraFactors factors;
        set.fuse_rows(weight_name(kTall), cuts[i], weight.narrow(0, cuts[i], cuts[i + 1] - cuts[i]),
                      factors, aggregation);
      }
      expect_same_weights(copy_of(*shared), copy_of(*whole));
    }
  }
}

// B * strength is rounded to bfloat16, then the product, then the sum. With small integers in A
// every other step is exact, so the bytes are known.
TEST_F(LoraTest, BfloatAggregationRoundsAfterEachStep) {
  Tensors tensors = factors(kQuery, 24, 16);
  at::Tensor& a = tensors.at(std::string(kQuery) + ".lora_A.weight");
  a = at::randint(-3, 4, a.sizes()).to(at::kBFloat16);
  const auto model = arena(at::kFloat);
  const at::Tensor clean = model->views().at(weight_name(kQuery)).clone();
  fuse(model, {{write(tensors), 0.7}});
  const at::Tensor b =
      (tensors.at(std::string(kQuery) + ".lora_B.weight").to(at::kFloat) * 0.7F).to(at::kBFloat16);
  const at::Tensor delta = at::matmul(b.to(at::kFloat), a.to(at::kFloat)).to(at::kBFloat16);
  const at::Tensor sum = (delta.to(at::kFloat) + clean).to(at::kBFloat16);
  EXPECT_TRUE(test::same_bytes(model->views().at(weight_name(kQuery)), sum.to(at::kFloat)));
}

TEST_F(LoraTest, EightBitWeightsAreRoundedToNearestOnce) {
  const Tensors tensors = factors(kQuery, 24, 16);
  const auto model = arena(at::kFloat8_e4m3fn);
  const at::Tensor clean = model->views().at(weight_name(kQuery)).to(at::kBFloat16);
  fuse(model, {{write(tensors), 1.0}});
  const at::Tensor delta = at::matmul(tensors.at(std::string(kQuery) + ".lora_B.weight"),
                                      tensors.at(std::string(kQuery) + ".lora_A.weight"));
  EXPECT_TRUE(test::same_bytes(model->views().at(weight_name(kQuery)).view(at::kByte),
                               (delta + clean).to(at::kFloat8_e4m3fn).view(at::kByte)));
}

TEST_F(LoraTest, StrengthZeroIsCheckedAndChangesNothing) {
  const auto model = arena(at::kFloat);
  const Tensors clean = copy_of(*model);
  const std::vector<LoraWithStrength> loras = {{write(factors(kQuery, 24, 16)), 0.0}};
  fuse(model, loras);
  EXPECT_EQ(loader::LoraSet(*model, kPrefix, loras).counts().at(0).applied, 1);
  expect_same_weights(copy_of(*model), clean);
  const auto wrong = write(factors(kQuery, 24, 8));
  EXPECT_THROW(fuse(model, {{wrong, 0.0}}), Error);
}

TEST_F(LoraTest, LayersOfAnotherPartAreCountedAsSkipped) {
  Tensors tensors = factors(kQuery, 24, 16);
  tensors.merge(factors("connector.to_q", 8, 8));
  const std::vector<LoraWithStrength> loras = {{write(tensors), 1.0}};
  const loader::LoraSet set(*arena(at::kFloat, at::kMeta), kPrefix, loras);
  ASSERT_EQ(set.counts().size(), 1U);
  EXPECT_EQ(set.counts()[0].applied, 1);
  EXPECT_EQ(set.counts()[0].skipped, 1);
  EXPECT_EQ(set.weight_names(), std::vector<std::string>{weight_name(kQuery)});
}

struct BadFile {
  std::string name;  // of the case
  Tensors tensors;
  std::vector<std::string> told;
};
void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

class BadLoraTest : public LoraTest, public ::testing::WithParamInterface<BadFile> {};

TEST_P(BadLoraTest, IsRefusedWithItsNames) {
  const auto open = [this] { write(GetParam().tensors); };
  EXPECT_THAT(open, ThrowsMessage<Error>(HasSubstr("lora.safetensors")));
  for (const auto& text : GetParam().told) EXPECT_THAT(open, ThrowsMessage<Error>(HasSubstr(text)));
}

const at::Tensor kA = at::ones({2, 4});
const at::Tensor kB = at::ones({6, 2});
INSTANTIATE_TEST_SUITE_P(
    Files, BadLoraTest,
    ::testing::Values(
        BadFile{"AWithoutB", {{"x.lora_A.weight", kA}}, {"A without B (1)", "x.lora_A.weight"}},
        BadFile{"BWithoutA", {{"x.lora_up.weight", kB}}, {"B without A (1)", "x.lora_up.weight"}},
        BadFile{"AlphaAlone", {{"x.alpha", at::ones({1})}}, {"alpha without A and B"}},
        BadFile{"RanksDiffer",
                {{"x.lora_A.weight", kA}, {"x.lora_B.weight", at::ones({6, 3})}},
                {"do not fit together", "x.lora_A.weight [2, 4], x.lora_B.weight [6, 3]"}},
        BadFile{"Convolution",
                {{"x.lora_A.weight", at::ones({2, 4, 1})}, {"x.lora_B.weight", kB}},
                {"do not fit together"}},
        BadFile{"RankZero",
                {{"x.lora_A.weight", at::ones({0, 4})}, {"x.lora_B.weight", at::ones({6, 0})}},
                {"do not fit together"}},
        BadFile{"AlphaOfTwoNumbers",
                {{"x.lora_A.weight", kA}, {"x.lora_B.weight", kB}, {"x.alpha", at::ones({2})}},
                {"alpha is not one number", "x.alpha [2]"}},
        BadFile{"AlphaNotFinite",
                {{"x.lora_A.weight", kA},
                 {"x.lora_B.weight", kB},
                 {"x.alpha", at::full({}, std::numeric_limits<float>::infinity())}},
                {"alpha is not finite"}},
        BadFile{
            "TwoSpellings",
            {{"x.lora_A.weight", kA}, {"x.lora_B.weight", kB}, {"transformer.x.lora_A.weight", kA}},
            {"twice under two names", "transformer.x.lora_A.weight and x.lora_A.weight"}},
        BadFile{"Integers",
                {{"x.lora_A.weight", kA.to(at::kInt)}, {"x.lora_B.weight", kB}},
                {"not a LoRA tensor", "B without A"}},
        BadFile{"AnotherKindOfAdapter",
                {{"x.lora_A.weight", kA}, {"x.lora_B.weight", kB}, {"x.diff_b", at::ones({6})}},
                {"not a LoRA tensor (1)", "x.diff_b"}},
        BadFile{"Empty", {}, {"holds no LoRA factors"}}),
    [](const auto& bad) { return bad.param.name; });

TEST_F(LoraTest, WhatDoesNotFitTheModelIsListedBeforeAnyWeightChanges) {
  Tensors tensors = factors(kQuery, 24, 16);
  tensors.merge(factors("blocks.0.tall", 2500, 32));
  tensors.merge(factors("blocks.7.to_q", 24, 16));
  tensors.merge(factors("diffusion_model.norm", 16, 16));
  const auto good = write(factors(kQuery, 24, 16), "good.safetensors");
  const auto bad = write(tensors);
  const auto model = arena(at::kFloat);
  const Tensors clean = copy_of(*model);
  EXPECT_THAT(
      [&] {
        fuse(model, {{good, 1.0}, {bad, 1.0}});
      },
      ThrowsMessage<Error>(AllOf(
          HasSubstr("lora.safetensors\" does not fit the model"), Not(HasSubstr("good")),
          HasSubstr("hits nothing in the model (1)"), HasSubstr("blocks.7.to_q.lora_A.weight"),
          HasSubstr("made for a weight of another shape (2)"),
          HasSubstr("blocks.0.tall: the LoRA changes [2500, 32], the model's weight is [2500, 40]"),
          HasSubstr("norm"))));
  expect_same_weights(copy_of(*model), clean);
}

TEST_F(LoraTest, FactorsThatAreNotFiniteLeaveCleanWeights) {
  const auto model = arena(at::kFloat);
  const Tensors clean = copy_of(*model);
  for (const char* role : {"A", "B"}) {
    Tensors tensors = factors(kTall, 2500, 40);
    tensors.merge(factors(kQuery, 24, 16));
    const std::string name = fmt::format("{}.lora_{}.weight", kTall, role);
    tensors.at(name).view({-1})[-1] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<LoraWithStrength> loras = {{write(tensors), 1.0}};
    EXPECT_THAT([&] { fuse(model, loras); },
                ThrowsMessage<Error>(AllOf(HasSubstr(name), HasSubstr("lora.safetensors"))));
    expect_same_weights(copy_of(*model), clean);
  }
}

TEST_F(LoraTest, FileThatBreaksOffLeavesCleanWeights) {
  Tensors tensors = factors(kQuery, 24, 16);
  tensors.merge(factors(kTall, 2500, 40));
  const auto model = arena(at::kFloat);
  const Tensors clean = copy_of(*model);
  const auto file = write(tensors);
  // The layer that lies first in the file is read and fused; the other one is cut off.
  const auto& last = file->checkpoint().tensors().at(std::string(kQuery) + ".lora_A.weight");
  ASSERT_GT(last.begin,
            file->checkpoint().tensors().at(std::string(kTall) + ".lora_A.weight").begin);
  std::filesystem::resize_file(dir_ / "lora.safetensors", static_cast<uintmax_t>(last.begin));
  EXPECT_THAT(
      [&] {
        fuse(model, {{file, 1.0}});
      },
      ThrowsMessage<Error>(HasSubstr("has become shorter")));
  expect_same_weights(copy_of(*model), clean);
}

}  // namespace
}  // namespace flotilla
