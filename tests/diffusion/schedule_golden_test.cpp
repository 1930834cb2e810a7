// Sigma schedules against the LTX-2 Python reference, commit 400fd31. Where the reference returns
// NaN, this project refuses.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "diffusion/schedule.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::diffusion {
namespace {

constexpr double kAtol = 1e-6;

at::Tensor as_tensor(const Sigmas& sigmas) { return at::tensor(sigmas, at::kFloat); }

int64_t number_after(const std::string& name, const std::string& word) {
  return std::stoll(name.substr(name.find(word) + word.size()));
}

void expect_ltx2(const test::Golden& golden, const std::string& name, const Ltx2Schedule& options) {
  const at::Tensor expected = golden[name];
  const int64_t steps = number_after(name, "steps");
  ASSERT_EQ(expected.numel(), steps + 1) << name;
  if (at::isnan(expected).any().item<bool>()) {
    EXPECT_THROW(ltx2_sigmas(steps, options), Error) << name;
    return;
  }
  EXPECT_TRUE(test::all_close(as_tensor(ltx2_sigmas(steps, options)), expected, kAtol)) << name;
}

TEST(ScheduleGoldenTest, Ltx2WithoutLatent) {
  const test::Golden golden("schedulers");
  const std::vector<std::string> names = golden.names("ltx2.default.");
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) expect_ltx2(golden, name, {});
}

TEST(ScheduleGoldenTest, Ltx2ForTokenCounts) {
  const test::Golden golden("schedulers");
  const std::vector<std::string> names = golden.names("ltx2.tokens");
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    expect_ltx2(golden, name, {.num_tokens = number_after(name, "tokens")});
  }
}

TEST(ScheduleGoldenTest, Ltx2StretchAndTerminal) {
  const test::Golden golden("schedulers");
  for (const std::string& name : golden.names("ltx2.nostretch.")) {
    expect_ltx2(golden, name, {.stretch = false});
  }
  const std::string prefix = "ltx2.terminal";
  const std::vector<std::string> names = golden.names(prefix);
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    expect_ltx2(golden, name, {.terminal = std::stod(name.substr(prefix.size()))});
  }
}

TEST(ScheduleGoldenTest, LinearQuadraticAndBeta) {
  const test::Golden golden("schedulers");
  for (const std::string& name : golden.names("linear_quadratic.")) {
    const Sigmas sigmas = linear_quadratic_sigmas(number_after(name, "steps"));
    EXPECT_TRUE(test::all_close(as_tensor(sigmas), golden[name], kAtol)) << name;
  }
  const std::vector<std::string> names = golden.names("beta.");
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const Sigmas sigmas = beta_sigmas(number_after(name, "steps"));
    EXPECT_TRUE(test::all_close(as_tensor(sigmas), golden[name], kAtol)) << name;
  }
}

TEST(ScheduleGoldenTest, FixedTables) {
  const test::Golden golden("schedulers");
  EXPECT_TRUE(test::same_bytes(as_tensor(distilled_sigmas()), golden["distilled"]));
  EXPECT_TRUE(test::same_bytes(as_tensor(distilled_stage_2_sigmas()), golden["stage2_distilled"]));
  EXPECT_TRUE(test::same_bytes(as_tensor(tiled_stage_2_sigmas()), golden["tdp_distilled"]));
}

}  // namespace
}  // namespace flotilla::diffusion
