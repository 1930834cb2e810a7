// Weights of several ranks: read once together, LoRAs swapped in shares and what a transformer
// computes with them, errors of one rank, and the host memory that it takes.
#include "parallel/shared_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "comm/agreement.h"
#include "loader/sparse_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/mpi_main.h"
#include "support/safetensors_file.h"
#include "transformer/inputs.h"
#include "transformer/transformer.h"

namespace flotilla {
namespace {

using comm::AgreedError;
using loader::FusedShare;
using loader::LoraFile;
using loader::LoraSet;
using loader::LoraWithStrength;
using loader::WeightArena;
using parallel::SharedWeights;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

constexpr const char* kPrefix = "model.";

comm::Communicator& world() { return test::ranks().world(); }

// A model and LoRAs in a folder that the driver makes and all ranks read.
class SharedWeightsTest : public ::testing::Test {
 protected:
  SharedWeightsTest() : folder_(world().broadcast(own_.path().string(), 0)) {
    at::manual_seed(11);
    write("model", {{"model.a.weight", at::randn({700, 40})},
                    {"model.b.weight", at::randn({2500, 24}).to(at::kBFloat16)},
                    {"model.c.bias", at::randn({333})},
                    {"model.d.weight", at::randn({64, 64})}});
    write("a", factors("a", 700, 40));
    Tensors both = factors("b", 2500, 24);
    both.merge(factors("d", 64, 64));
    write("b", both);
    world().barrier("files written", 60);
  }
  ~SharedWeightsTest() override { world().barrier("files read", 60); }

  void write(const std::string& name, const Tensors& tensors) const {
    if (world().is_driver()) test::write_safetensors(file(name), tensors);
  }
  std::filesystem::path file(const std::string& name) const {
    return folder_ / (name + ".safetensors");
  }
  static Tensors factors(const std::string& module, int64_t out, int64_t in) {
    return {{module + ".lora_A.weight", at::randn({4, in}).to(at::kBFloat16)},
            {module + ".lora_B.weight", at::randn({out, 4}).to(at::kBFloat16)}};
  }
  LoraWithStrength lora(const std::string& name, double strength) const {
    return {std::make_shared<LoraFile>(loader::Checkpoint::open(file(name))), strength};
  }

  std::shared_ptr<WeightArena> arena(at::ScalarType dtype = at::kFloat) const {
    return std::make_shared<WeightArena>(loader::Checkpoint::open(file("model")),
                                         std::vector<std::string>{kPrefix}, dtype, at::kCPU);
  }
  std::shared_ptr<WeightArena> loaded(at::ScalarType dtype = at::kFloat) const {
    auto made = arena(dtype);
    parallel::load_shared(*made, world());
    return made;
  }
  // What one process that knows of no others makes of the model and the LoRAs.
  Tensors alone(const std::vector<LoraWithStrength>& loras, at::ScalarType dtype) const {
    const auto made = arena(dtype);
    made->load();
    loader::LoraFactors factors;
    FusedShare(made, made->share(0, 1), FusedShare::Clean::copied, at::kCPU)
        .fuse(LoraSet(*made, kPrefix, loras), factors);
    return made->views();
  }

  test::TempDir own_;
  std::filesystem::path folder_;
};

void expect_weights(const WeightArena& actual, const Tensors& expected) {
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(test::same_bytes(actual.views().at(name).view(at::kByte), tensor.view(at::kByte)))
        << name;
}

// The message of the error that all ranks must get.
template <typename Body>
std::string agreed_error(const Body& body) {
  try {
    body();
  } catch (const AgreedError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no agreed error";
  return "";
}

TEST_F(SharedWeightsTest, EveryRankGetsAllWeightsOfOneReading) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn}) {
    const auto made = loaded(dtype);
    EXPECT_TRUE(made->loaded());
    expect_weights(*made, alone({}, dtype));
    at::Tensor read = at::tensor({made->checkpoint().bytes_read()}, at::kLong);
    world().all_reduce_sum(read);
    EXPECT_EQ(read.item<int64_t>(), made->share(0, 1).file_bytes());
  }
}

TEST_F(SharedWeightsTest, SetsFollowEachOtherWithoutATrace) {
  const auto a = lora("a", 1.0);
  const auto b = lora("b", -0.5);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn}) {
    const auto made = loaded(dtype);
    const Tensors clean = alone({}, dtype);
    SharedWeights weights(made, &world());
    const std::vector<std::vector<LoraWithStrength>> sets = {{}, {a}, {b}, {a, b}, {}};
    for (const auto& loras : sets) {
      weights.set_loras(LoraSet(*made, kPrefix, loras));
      const Tensors expected = alone(loras, dtype);
      expect_weights(*made, expected);
      EXPECT_EQ(at::equal(made->views().at("model.b.weight").view(at::kByte),
                          clean.at("model.b.weight").view(at::kByte)),
                loras.empty() || (loras.size() == 1 && loras[0].file == a.file));
    }
    expect_weights(*made, clean);
  }
}

TEST_F(SharedWeightsTest, CleanCopiesOfAllRanksAreOneCopy) {
  const auto made = loaded();
  SharedWeights weights(made, &world());
  EXPECT_EQ(weights.clean_bytes(), 0);
  weights.set_loras(LoraSet(*made, kPrefix, std::vector{lora("a", 1.0), lora("b", 1.0)}));
  at::Tensor kept = at::tensor({weights.clean_bytes()}, at::kLong);
  world().all_reduce_sum(kept);
  EXPECT_EQ(kept.item<int64_t>(), 4 * (700 * 40 + 2500 * 24 + 64 * 64));
  EXPECT_LE(weights.clean_bytes(), made->bytes() / world().world_size() + 4 * 64 * 64);
}

TEST_F(SharedWeightsTest, TheSameSetAgainTouchesNothing) {
  const auto made = loaded();
  SharedWeights weights(made, &world());
  weights.set_loras(LoraSet(*made, kPrefix, std::vector{lora("a", 1.0)}));
  made->views().at("model.a.weight").fill_(7);
  weights.set_loras(LoraSet(*made, kPrefix, std::vector{lora("a", 1.0)}));
  EXPECT_TRUE(made->views().at("model.a.weight").eq(7).all().item<bool>());
  weights.set_loras(LoraSet(*made, kPrefix, std::vector{lora("a", 0.5)}));
  expect_weights(*made, alone({lora("a", 0.5)}, at::kFloat));
}

TEST_F(SharedWeightsTest, WithoutACleanCopyTheFirstSetStays) {
  const auto made = loaded();
  SharedWeights weights(made, &world(), {.clean = FusedShare::Clean::read_again});
  const LoraSet first(*made, kPrefix, std::vector{lora("a", 1.0)});
  weights.set_loras(first);
  weights.set_loras(first);
  EXPECT_EQ(weights.clean_bytes(), 0);
  EXPECT_THAT(agreed_error([&] { weights.set_loras({}); }), HasSubstr("models.fixed_loras"));
  expect_weights(*made, alone({lora("a", 1.0)}, at::kFloat));
}

TEST_F(SharedWeightsTest, BadWeightInOneShareIsToldByAll) {
  at::Tensor bad = at::ones({1000, 64});
  bad[999][63] = std::nanf("");
  write("bad", {{"model.w", bad}});
  world().barrier("written", 60);
  WeightArena made(loader::Checkpoint::open(file("bad")), {kPrefix}, at::kFloat, at::kCPU);
  EXPECT_THAT(agreed_error([&] { parallel::load_shared(made, world()); }),
              AllOf(HasSubstr("tensor \"model.w\""), HasSubstr("bad.safetensors")));
  EXPECT_FALSE(made.loaded());
}

// The rank that owns the last rows of b meets the fault, the others have fused theirs by then.
TEST_F(SharedWeightsTest, FailureOfOneRankLeavesCleanWeightsOnAll) {
  Tensors tensors = factors("a", 700, 40);
  tensors.merge(factors("b", 2500, 24));
  tensors.at("b.lora_B.weight")[2499][0] = std::nanf("");
  write("broken", tensors);
  world().barrier("written", 60);
  for (const auto clean : {FusedShare::Clean::copied, FusedShare::Clean::read_again}) {
    const auto made = loaded();
    SharedWeights weights(made, &world(), {.clean = clean});
    if (clean == FusedShare::Clean::copied)
      weights.set_loras(LoraSet(*made, kPrefix, std::vector{lora("b", 1.0)}));
    const LoraSet broken(*made, kPrefix, std::vector{lora("broken", 1.0)});
    EXPECT_THAT(agreed_error([&] { weights.set_loras(broken); }), HasSubstr("b.lora_B.weight"));
    expect_weights(*made, alone({}, at::kFloat));
    weights.set_loras(LoraSet(*made, kPrefix, std::vector{lora("a", 1.0)}));
    expect_weights(*made, alone({lora("a", 1.0)}, at::kFloat));
  }
}

TEST_F(SharedWeightsTest, FactorsOfALaterSetAreCheckedBefore) {
  Tensors tensors = factors("d", 64, 64);
  tensors.at("d.lora_A.weight")[0][0] = std::nanf("");
  write("later", tensors);
  world().barrier("written", 60);
  const auto made = loaded();
  SharedWeights weights(made, &world());
  const LoraSet later(*made, kPrefix, std::vector{lora("later", 1.0)});
  EXPECT_THAT(agreed_error([&] { weights.read_factors(later); }), HasSubstr("d.lora_A.weight"));
  const auto good = lora("b", 1.0);
  const LoraSet set(*made, kPrefix, std::vector{good});
  weights.read_factors(set);
  const int64_t read = good.file->checkpoint().bytes_read();
  weights.set_loras(set);
  EXPECT_EQ(good.file->checkpoint().bytes_read(), read);
}

// The tiny transformer with LoRAs that share some of its weights.
class SwappedTransformerTest : public SharedWeightsTest {
 protected:
  SwappedTransformerTest() : golden_("lora") {
    Tensors tensors;
    const auto model = checkpoint();
    for (const auto& [name, info] : model->tensors()) {
      const std::string module = name.substr(0, name.rfind('.'));
      if (!name.ends_with("attn1.to_v.weight") || !name.starts_with(kBlocks)) continue;
      for (auto& [factor, rows] : factors(module, info.shape[0], info.shape[1]))
        tensors[factor] = rows * 0.1;
    }
    EXPECT_FALSE(tensors.empty());
    write("values", tensors);
    world().barrier("written", 60);
    a_ = {std::make_shared<LoraFile>(test::open_tiny("ltx23-distilled-lora.safetensors")), 1.0};
    b_ = lora("values", -0.5);
  }

  static std::shared_ptr<const loader::Checkpoint> checkpoint() {
    return test::open_tiny("ltx23-dev.safetensors");
  }
  static transformer::Transformer shared_model(at::ScalarType dtype) {
    return {checkpoint(), dtype, at::kCPU,
            [](WeightArena& arena) { parallel::load_shared(arena, world()); }};
  }

  // Velocities of all tokens, video then audio, as one row.
  at::Tensor forward(const transformer::Transformer& model, at::ScalarType dtype) const {
    auto video = test::read_modality(golden_, "video");
    auto audio = test::read_modality(golden_, "audio");
    for (auto* modality : {&video, &audio}) {
      modality->latent = modality->latent.to(dtype);
      modality->context = modality->context.to(dtype);
    }
    const auto rope = transformer::make_rope_tables(model.config(), golden_["video.positions"],
                                                    golden_["audio.positions"], dtype);
    const auto velocity = model.forward(&video, &audio, rope);
    return at::cat({velocity.video.flatten(), velocity.audio.flatten()});
  }
  // Of a model that no other set was ever in, in a process that knows of no others.
  at::Tensor forward_fresh(const std::vector<LoraWithStrength>& loras, at::ScalarType dtype) const {
    const transformer::Transformer model(checkpoint(), dtype, at::kCPU);
    SharedWeights(model.arena(), nullptr).set_loras(model.lora_set(loras));
    return forward(model, dtype);
  }

  static constexpr const char* kBlocks = "model.diffusion_model.transformer_blocks.";
  test::Golden golden_;
  LoraWithStrength a_, b_;
};

TEST_F(SwappedTransformerTest, VelocitiesAreThoseOfAFreshModel) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const transformer::Transformer model = shared_model(dtype);
    SharedWeights weights(model.arena(), &world());
    std::vector<at::Tensor> velocities;
    for (const auto& loras :
         std::vector<std::vector<LoraWithStrength>>{{}, {a_}, {b_}, {a_, b_}, {}}) {
      weights.set_loras(model.lora_set(loras));
      velocities.push_back(forward(model, dtype));
      EXPECT_TRUE(test::same_bytes(velocities.back(), forward_fresh(loras, dtype)))
          << velocities.size();
    }
    EXPECT_TRUE(test::same_bytes(velocities.front(), velocities.back()));
    EXPECT_TRUE(velocities.front().isfinite().all().item<bool>());
    for (size_t i = 1; i + 1 < velocities.size(); ++i)
      EXPECT_FALSE(at::equal(velocities[i - 1], velocities[i])) << i;
  }
}

int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return -1;
}

// What `body` adds to the resident memory of this process at its peak.
template <typename Body>
int64_t peak_growth(const Body& body) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
  const int64_t before = status_bytes("VmRSS:");
  body();
  return status_bytes("VmHWM:") - before;
}

// Beside the arena only buffers: 8 MB through which a reading converts, of which the C library
// keeps up to 64 MB when they are free, and messages of MPI in flight, 8 MB.
TEST_F(SharedWeightsTest, LoadingTakesNoSecondCopyOfTheFile) {
  constexpr int64_t kMega = 1 << 20;
  constexpr int64_t kAllowance = 80 * kMega;
  std::map<std::string, loader::TensorInfo> tensors;
  for (int i = 0; i < 25; ++i)
    tensors[fmt::format("model.{:02}.weight", i)] = {at::kBFloat16, {2048, 2048}};
  if (world().is_driver()) loader::write_sparse_checkpoint(file("large"), tensors, {});
  write("wide", factors("03", 2048, 2048));
  world().barrier("written", 60);
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    std::shared_ptr<WeightArena> made;
    const int64_t load = peak_growth([&] {
      made = std::make_shared<WeightArena>(loader::Checkpoint::open(file("large")),
                                           std::vector<std::string>{kPrefix}, dtype, at::kCPU);
      parallel::load_shared(*made, world());
    });
    EXPECT_GT(load, made->bytes() * 9 / 10);
    EXPECT_LT(load, made->bytes() + kAllowance);
    SharedWeights weights(made, &world());
    const int64_t swap = peak_growth(
        [&] { weights.set_loras(LoraSet(*made, kPrefix, std::vector{lora("wide", 1.0)})); });
    // The clean rows of one weight, and the product of 1024 rows of it.
    EXPECT_LT(swap, 2048 * 2048 * 4 + kAllowance);
  }
}

}  // namespace
}  // namespace flotilla
