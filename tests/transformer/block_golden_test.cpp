// One block against the reference, from its prepared arguments, under every perturbation; and the
// preparation itself against those arguments.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <span>

#include "ops/norm.h"
#include "support/compare.h"
#include "support/golden.h"
#include "transformer/inputs.h"
#include "transformer/transformer.h"

namespace flotilla {
namespace {

using test::all_close;
using transformer::Perturbations;
using transformer::SamplePerturbation;

constexpr double kTolerance = 2e-5;

SamplePerturbation stg(bool video, bool audio) {
  SamplePerturbation sample;
  if (video) sample.video_self.blocks = {0};
  if (audio) sample.audio_self.blocks = {0};
  return sample;
}

SamplePerturbation skip_cross(bool audio_to_video, bool video_to_audio) {
  SamplePerturbation sample;
  sample.audio_to_video.all = audio_to_video;
  sample.video_to_audio.all = video_to_audio;
  return sample;
}

// The named cases; "masked" alone has masks.
const std::map<std::string, Perturbations> kCases = {
    {"plain", {}},
    {"masked", {}},
    {"stg_video_all", {stg(true, false), stg(true, false)}},
    {"stg_both_all", {stg(true, true), stg(true, true)}},
    {"stg_video_second_sample", {{}, stg(true, false)}},
    {"stg_both_first_sample", {stg(true, true), {}}},
    {"no_a2v", {skip_cross(true, false), skip_cross(true, false)}},
    {"isolated_first_sample", {skip_cross(true, true), {}}},
    {"isolated_all", {skip_cross(true, true), skip_cross(true, true)}},
};

class BlockGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  ops::RopeTable rope(const std::string& stream, const std::string& name) const {
    const std::string base = "in." + stream + "." + name;
    return {golden_[base + ".cos"], golden_[base + ".sin"], model_.config().rope_type};
  }

  // The reference's per-token modulation tensors [B, T, n * dim] become rows, one a token.
  transformer::StreamInputs stored_inputs(const std::string& stream, bool masked) const {
    const auto in = [&](const std::string& name) { return golden_["in." + stream + "." + name]; };
    const auto rows = [](const at::Tensor& values, int64_t n) {
      return values.flatten(0, 1).unflatten(-1, {n, -1});
    };
    transformer::StreamInputs inputs;
    inputs.context = in("context");
    if (masked) {
      inputs.context_mask = in("context_mask");
      if (golden_.has("in." + stream + ".self_attention_mask"))
        inputs.self_mask = in("self_attention_mask");
    }
    inputs.rope = rope(stream, "positional_embeddings");
    inputs.cross_rope = rope(stream, "cross_positional_embeddings");
    const at::Tensor timesteps = in("timesteps");
    inputs.row_of_token = at::arange(timesteps.size(0) * timesteps.size(1))
                              .view({timesteps.size(0), timesteps.size(1)});
    inputs.ada_rows = rows(timesteps, model_.config().ada_rows());
    inputs.cross_rows = rows(in("cross_scale_shift_timestep"), 4);
    inputs.cross_gate = in("cross_gate_timestep");
    if (golden_.has("in." + stream + ".prompt_timestep"))
      inputs.prompt_rows = rows(in("prompt_timestep"), 2);
    return inputs;
  }

  test::Golden golden_{"block_" + GetParam()};
  transformer::Transformer model_{test::open_tiny(GetParam() + "-dev.safetensors"), at::kFloat,
                                  at::kCPU};
};

TEST_P(BlockGoldenTest, EveryNamedCaseMatches) {
  const transformer::LocalVideoTokenAttention local;
  const transformer::Branches in_place;
  for (const auto& [name, perturbations] : kCases) {
    const auto video = stored_inputs("video", name == "masked");
    const auto audio = stored_inputs("audio", name == "masked");
    at::Tensor x_video = golden_["in.video.x"];
    at::Tensor x_audio = golden_["in.audio.x"];
    const std::span first(model_.weights().blocks.data(), 1);
    using Kind = transformer::StreamKind;
    const auto& config = model_.config();
    const auto video_rows = transformer::rows_of_blocks(config, first, Kind::video, video);
    const auto audio_rows = transformer::rows_of_blocks(config, first, Kind::audio, audio);
    transformer::run_block(first.front(),
                           {.config = config,
                            .attention = local,
                            .perturbations = perturbations,
                            .beside_video = in_place,
                            .video_rows = &video_rows.front(),
                            .audio_rows = &audio_rows.front()},
                           &video, &audio, x_video, x_audio);
    EXPECT_TRUE(all_close(x_video, golden_["out." + name + ".video"], kTolerance)) << name;
    EXPECT_TRUE(all_close(x_audio, golden_["out." + name + ".audio"], kTolerance)) << name;
  }
}

TEST_P(BlockGoldenTest, SingleModulesMatch) {
  const auto& block = model_.weights().blocks[0];
  const at::Tensor x = golden_["attn1.x"];
  const auto call = ops::project_qkv(block.video.self_attention, x, x, model_.config().norm_eps);
  EXPECT_TRUE(all_close(ops::rms_norm(call.q, call.norm_eps, call.q_norm),
                        golden_["attn1.q_norm_of_to_q"], kTolerance));
  EXPECT_TRUE(
      all_close(ops::project_out(block.video.self_attention, ops::attend(call), call.gate_logits),
                golden_["attn1.out"], kTolerance));
  EXPECT_TRUE(
      all_close(ops::feed_forward(block.video.feed_forward, x), golden_["ff.out"], kTolerance));
}

TEST_P(BlockGoldenTest, PreparationMatches) {
  const auto& config = model_.config();
  const auto tables = transformer::make_rope_tables(config, golden_["video.positions"],
                                                    golden_["audio.positions"], at::kFloat);
  auto video = test::read_modality(golden_, "video");
  auto audio = test::read_modality(golden_, "audio");
  video.attention_mask = golden_["video.attention_mask"];
  video.context_mask = golden_["video.context_mask"];
  audio.context_mask = golden_["audio.context_mask"];
  const std::map<std::string, transformer::PreparedStream> prepared = {
      {"video", prepare_video(config, model_.weights(), video, audio.sigma, tables)},
      {"audio", prepare_audio(config, model_.weights(), audio, video.sigma, tables)},
  };
  for (const auto& [stream, made] : prepared) {
    const auto check = [&, &s = stream](const std::string& name, const at::Tensor& value) {
      EXPECT_TRUE(all_close(value, golden_["in." + s + "." + name], kTolerance))
          << s << " " << name;
    };
    const auto& inputs = made.inputs;
    check("x", made.x);
    check("context", inputs.context);
    check("context_mask", inputs.context_mask);
    check("positional_embeddings.cos", inputs.rope.cos);
    check("positional_embeddings.sin", inputs.rope.sin);
    check("cross_positional_embeddings.cos", inputs.cross_rope.cos);
    check("cross_positional_embeddings.sin", inputs.cross_rope.sin);
    check("cross_gate_timestep", inputs.cross_gate);
    // Rows spread over the tokens are what the reference stores.
    const auto spread = [&inputs](const at::Tensor& rows, const at::Tensor& like) {
      return ops::expand_rows(rows.flatten(1), inputs.row_of_token).expand_as(like);
    };
    const auto check_rows = [&, &s = stream](const std::string& name, const at::Tensor& rows) {
      check(name, spread(rows, golden_["in." + s + "." + name]));
    };
    check_rows("timesteps", inputs.ada_rows);
    check_rows("cross_scale_shift_timestep", inputs.cross_rows);
    check_rows("embedded_timestep", made.embedded_timestep);
    if (config.cross_attention_adaln)
      check("prompt_timestep", inputs.prompt_rows.flatten(1).unsqueeze(1));
  }
  // Masked entries are the lowest number, whose relative error would hide all others: compare zeros
  // apart.
  EXPECT_TRUE(all_close(prepared.at("video").inputs.self_mask,
                        golden_["in.video.self_attention_mask"], kTolerance));
}

INSTANTIATE_TEST_SUITE_P(Models, BlockGoldenTest, ::testing::Values("ltx20", "ltx23"),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace flotilla
