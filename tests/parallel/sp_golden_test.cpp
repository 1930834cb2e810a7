// Sequence parallelism against the LTX-2 Python reference, commit 400fd31: each world gives what
// one process gave, also where tokens are padded. (There the reference's own worlds do not: its
// padded tokens reach video-to-audio attention. So its results for worlds count where nothing is
// padded, and its padding masks have no counterpart.)
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/exchange_layout.h"
#include "parallel/sequence_parallel.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/mpi_main.h"
#include "transformer/inputs.h"

namespace flotilla::parallel {
namespace {

using test::all_close;
using transformer::Modality;
using transformer::Perturbations;

constexpr double kTolerance = 2e-5;

comm::Communicator& world() { return test::ranks().transformer(); }

class SpGoldenTest : public ::testing::Test {
 protected:
  SpGoldenTest()
      : golden_("sp"), model_(test::open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU) {}

  void SetUp() override {
    if (model_.config().video.heads % world().world_size() != 0) {
      GTEST_SKIP() << model_.config().video.heads << " heads do not go on " << world().world_size()
                   << " ranks";
    }
  }

  // "case0", "case0.dense_mask", "case0.stg", ...
  std::vector<std::string> cases() const {
    const std::string end = ".single.video";
    std::vector<std::string> found;
    for (const auto& name : golden_.names()) {
      if (name.ends_with(end)) found.push_back(name.substr(0, name.size() - end.size()));
    }
    return found;
  }

  // The blocks whose self-attention the perturbed cases leave out: the last one, unless named.
  Perturbations perturbations_of(const std::string& name) const {
    if (!name.ends_with(".stg")) return {};
    const auto blocks =
        golden_.params().value("stg_blocks", std::vector<int64_t>{model_.config().num_layers - 1});
    return {{.video_self = {.blocks = blocks}, .audio_self = {.blocks = blocks}}};
  }

  // x0 of video and audio.
  transformer::Velocity run(const std::string& name) const {
    const std::string base = name.substr(0, name.find('.'));
    const std::string video_name = golden_.has(name + ".in.video.latent") ? name : base;
    Modality video = test::read_modality(golden_, video_name + ".in.video");
    const Modality audio = test::read_modality(golden_, base + ".in.audio");
    if (golden_.has(video_name + ".in.video.attention_mask"))
      video.attention_mask = golden_[video_name + ".in.video.attention_mask"];
    auto exchange = make_sequence_exchange(world(), model_.config(),
                                           {.max_tokens = video.latent.size(1),
                                            .audio_tokens = audio.latent.size(1),
                                            .text_tokens = video.context.size(1)});
    const SequenceParallelVelocityModel model(
        model_,
        {golden_[video_name + ".in.video.positions"], golden_[base + ".in.audio.positions"]},
        at::kFloat, world(), exchange);
    const auto velocity = model.forward(&video, &audio, perturbations_of(name));
    return {video.latent - golden_[video_name + ".in.video.timesteps"] * velocity.video,
            audio.latent - golden_[base + ".in.audio.timesteps"] * velocity.audio};
  }

  test::Golden golden_;
  transformer::Transformer model_;
};

TEST_F(SpGoldenTest, EveryWorldGivesWhatOneProcessGave) {
  ASSERT_FALSE(cases().empty());
  const int64_t size = world().world_size();
  for (const auto& name : cases()) {
    const auto x0 = run(name);
    EXPECT_TRUE(all_close(x0.video, golden_[name + ".single.video"], kTolerance)) << name;
    EXPECT_TRUE(all_close(x0.audio, golden_[name + ".single.audio"], kTolerance)) << name;
    const std::string of_world = fmt::format("{}.world{}.", name, size);
    if (!golden_.has(of_world + "video") || x0.video.size(1) % size != 0) continue;
    EXPECT_TRUE(all_close(x0.video, golden_[of_world + "video"], kTolerance)) << of_world;
    EXPECT_TRUE(all_close(x0.audio, golden_[of_world + "audio"], kTolerance)) << of_world;
  }
}

TEST_F(SpGoldenTest, ShardsAreThoseOfTheReference) {
  int checked = 0;
  for (const auto& name : cases()) {
    if (!golden_.has(name + ".in.video.latent")) continue;
    const at::Tensor latent = golden_[name + ".in.video.latent"];
    for (const int64_t size : {2, 3, 4, 8}) {
      const std::string of_world = fmt::format("{}.world{}.", name, size);
      if (!golden_.has(of_world + "tokens_per_rank")) continue;
      const comm::TokenShards shards{latent.size(1), size};
      EXPECT_TRUE(at::equal(golden_[of_world + "tokens_per_rank"],
                            at::full({size}, shards.padded_local(), at::kLong)));
      EXPECT_EQ(golden_[of_world + "padded_tokens"].item<int64_t>(), size * shards.padded_local());
      for (int64_t rank = 0; rank < size; ++rank) {
        const std::string of_rank = fmt::format("{}rank{}.", of_world, rank);
        if (!golden_.has(of_rank + "latent_first_last")) continue;
        const auto row = [&](int64_t token) {  // zeros stand for padding
          return token < latent.size(1) ? latent.narrow(1, token, 1)
                                        : at::zeros_like(latent.narrow(1, 0, 1));
        };
        const int64_t first = rank * shards.padded_local();
        EXPECT_TRUE(at::equal(golden_[of_rank + "latent_first_last"],
                              at::cat({row(first), row(first + shards.padded_local() - 1)}, 1)));
        const at::Tensor positions = golden_[name + ".in.video.positions"];
        EXPECT_TRUE(at::equal(golden_[of_rank + "positions"].narrow(2, 0, shards.count(rank)),
                              positions.narrow(2, shards.begin(rank), shards.count(rank))));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace flotilla::parallel
