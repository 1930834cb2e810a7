// Does the prompt show? Clips of the shipped demo model, measured: the blob's colour, the
// background's colour, the direction of its way. (Shapes were not learnt by that model.)
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "pipeline/jobs.h"
#include "support/compare.h"

namespace flotilla {
namespace {

using Colour = std::array<double, 3>;

struct Blob {
  Colour colour{};
  double x = 0.0;  // centre, in shares of the picture
  double y = 0.0;
};

// Mean colour of the picture's border: the background.
Colour border_colour(const at::Tensor& frame) {
  const at::Tensor rows =
      at::cat({frame.narrow(0, 0, 8), frame.narrow(0, frame.size(0) - 8, 8)}, 0).reshape({-1, 3});
  const at::Tensor mean = rows.mean(0);
  return {mean[0].item<double>(), mean[1].item<double>(), mean[2].item<double>()};
}

// What differs from the background: its centre and its colour.
Blob find_blob(const at::Tensor& frame, const Colour& background) {
  const at::Tensor ground = at::tensor({background[0], background[1], background[2]}, at::kFloat);
  const at::Tensor distance = (frame - ground).norm(2, -1);  // [H, W]
  const at::Tensor mask = distance.gt(0.5 * distance.max().item<double>()).to(at::kFloat);
  const double weight = mask.sum().item<double>();
  const at::Tensor y =
      at::arange(frame.size(0), at::kFloat).unsqueeze(1) / static_cast<double>(frame.size(0));
  const at::Tensor x =
      at::arange(frame.size(1), at::kFloat).unsqueeze(0) / static_cast<double>(frame.size(1));
  const at::Tensor colour = (frame * mask.unsqueeze(-1)).sum(at::IntArrayRef({0, 1})) / weight;
  return {{colour[0].item<double>(), colour[1].item<double>(), colour[2].item<double>()},
          (mask * x).sum().item<double>() / weight,
          (mask * y).sum().item<double>() / weight};
}

const std::map<std::string, Colour> kColours = {
    {"red", {255, 0, 0}},      {"green", {0, 160, 0}},     {"blue", {0, 0, 255}},
    {"yellow", {255, 255, 0}}, {"white", {255, 255, 255}}, {"black", {0, 0, 0}},
    {"orange", {255, 140, 0}}, {"purple", {128, 0, 160}},
};

std::string nearest_colour(const Colour& colour) {
  std::string best;
  double best_distance = 1e9;
  for (const auto& [name, reference] : kColours) {
    double distance = 0.0;
    for (size_t c = 0; c < 3; ++c)
      distance += (colour[c] - reference[c]) * (colour[c] - reference[c]);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

struct Expectation {
  std::string prompt;
  uint64_t seed;
  std::string blob;
  std::string background;
  double dx;  // sign of the way
  double dy;
};

void PrintTo(const Expectation& e, std::ostream* out) { *out << e.prompt; }

class DemoTest : public ::testing::TestWithParam<Expectation> {};

void expect_prompt_shows(const at::Tensor& frames, const Expectation& expected) {
  const at::Tensor first = frames[0];
  const at::Tensor last = frames[frames.size(0) - 1];
  const Colour background = border_colour(first);
  const Blob start = find_blob(first, background);
  const Blob end = find_blob(last, border_colour(last));
  EXPECT_EQ(nearest_colour(background), expected.background);
  EXPECT_EQ(nearest_colour(border_colour(last)), expected.background);
  EXPECT_EQ(nearest_colour(start.colour), expected.blob)
      << fmt::format("{}", fmt::join(start.colour, " "));
  // It travels a fifth of the picture or more in its direction, and hardly in the other.
  const double dx = end.x - start.x;
  const double dy = end.y - start.y;
  EXPECT_GT(dx * expected.dx + dy * expected.dy, 0.2) << dx << " " << dy;
  EXPECT_LT(std::abs(dx * expected.dy) + std::abs(dy * expected.dx), 0.1) << dx << " " << dy;
}

TEST_P(DemoTest, ThePromptShows) {
  const Expectation& expected = GetParam();
  test::PieceRunner runner(test::demo_job(expected.prompt, expected.seed));
  pipeline::RunState state;
  const auto latents = pipeline::run_distilled(runner.session(), expected.seed, state);
  expect_prompt_shows(runner.decode(latents.video).to(at::kFloat), expected);
}

// The settings of configs/demo_two_stages.yaml.
TEST_P(DemoTest, ThePromptShowsUnderGuidance) {
  const Expectation& expected = GetParam();
  config::Job job = test::demo_job(expected.prompt, expected.seed);
  job.pipeline = config::Pipeline::ti2vid_two_stages;
  job.models.distilled_lora.path =
      test::source_dir() / "models/demo/ltx-demo-distilled-lora.safetensors";
  job.stage_1.steps = 20;
  job.stage_1.guidance.video = {.cfg = 3, .stg = 0};
  job.stage_1.guidance.audio = {.cfg = 3, .stg = 0};
  test::PieceRunner runner(job);
  pipeline::RunState state;
  const auto latents = pipeline::run_two_stages(runner.session(), expected.seed, state);
  expect_prompt_shows(runner.decode(latents.video).to(at::kFloat), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Prompts, DemoTest,
    ::testing::Values(Expectation{"a red circle moving right on a blue background", 10, "red",
                                  "blue", 1, 0},
                      Expectation{"a green square moving left on a white background", 11, "green",
                                  "white", -1, 0},
                      Expectation{"a white circle moving down on a purple background", 13, "white",
                                  "purple", 0, 1}),
    [](const auto& e) { return fmt::format("Seed{}", e.param.seed); });

TEST(DemoBytesTest, SameJobTwiceGivesEqualBytes) {
  const auto render = [] {
    test::PieceRunner runner(test::demo_job("a red circle moving right on a blue background", 10));
    pipeline::RunState state;
    return pipeline::run_distilled(runner.session(), 10, state);
  };
  const auto first = render();
  const auto second = render();
  EXPECT_TRUE(test::same_bytes(first.video, second.video));
  EXPECT_TRUE(test::same_bytes(first.audio, second.audio));
}

}  // namespace
}  // namespace flotilla
