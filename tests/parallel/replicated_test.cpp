// Ranks whose audio has drifted apart agree on the driver's.
#include "parallel/replicated.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/mpi_main.h"

namespace flotilla::parallel {
namespace {

at::Tensor audio_of(int rank) { return at::arange(24, at::kFloat).view({1, 6, 4}) + 100 * rank; }

TEST(ReplicatedTest, AllRanksTakeTheDriversAudio) {
  auto& ranks = test::ranks();
  diffusion::DenoiseState state;
  state.video = at::full({1, 3, 4}, ranks.rank(), at::kFloat);
  state.audio = audio_of(ranks.rank());
  const at::Tensor own = state.audio;
  take_drivers_audio(state, ranks.transformer());
  EXPECT_TRUE(test::same_bytes(state.audio, audio_of(0)));
  EXPECT_TRUE(test::same_bytes(own, audio_of(ranks.rank())));  // others may still look at it
  EXPECT_EQ(state.video.max().item<float>(), static_cast<float>(ranks.rank()));
}

TEST(ReplicatedTest, TokensMayLieInAnyOrderInMemory) {
  auto& ranks = test::ranks();
  diffusion::DenoiseState state;
  state.audio = audio_of(ranks.rank()).transpose(1, 2);
  take_drivers_audio(state, ranks.transformer());
  EXPECT_TRUE(at::equal(state.audio, audio_of(0).transpose(1, 2)));
}

}  // namespace
}  // namespace flotilla::parallel
