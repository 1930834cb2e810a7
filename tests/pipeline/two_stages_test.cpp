// Guided two-stage jobs on the tiny model: what is refused or warned about before any work, which
// keys matter, what the files hold.
#include "pipeline/two_stages.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/latents_file.h"
#include "pipeline/job_fixture.h"
#include "support/compare.h"
#include "support/safetensors_file.h"

namespace flotilla {
namespace {

namespace names = io::latents;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TwoStagesTest : public test::JobTest {
 protected:
  static std::string lora(double strength = 1.0) {
    return fmt::format(
        "  distilled_lora: {{path: {}/ltx23-distilled-lora.safetensors, strength: {}}}\n",
        test::tiny_dir().string(), strength);
  }
  static std::string yaml(const std::string& more = "", const std::string& models = lora()) {
    return job_text("ti2vid_two_stages", models, "seed: 3\n" + more);
  }
  io::LatentsFile latents_of(const std::string& text) const {
    run(text);
    return io::read_latents(dir_ / "clip.h5");
  }
  std::vector<std::string> warnings(const std::string& more) const {
    return pipeline::prepare_job(load(yaml(more + outputs())), test::host()).plan.warnings;
  }
};

constexpr const char* kThreeSteps =
    "stage_1: {steps: 3, guidance: {video: {stg_blocks: [1]}, audio: {stg_blocks: [1]}}}\n";

TEST_F(TwoStagesTest, FilesHoldWhatWasAskedFor) {
  const io::LatentsFile file = latents_of(yaml(kThreeSteps + outputs()));
  const auto shape = [&](const char* name) { return file.tensors.at(name).sizes().vec(); };
  EXPECT_EQ(shape(names::kStage1Video), (std::vector<int64_t>{1, 128, 2, 1, 2}));
  EXPECT_EQ(shape(names::kStage2Video), (std::vector<int64_t>{1, 128, 2, 2, 4}));
  // Sound is finished after stage 1.
  EXPECT_TRUE(
      test::same_bytes(file.tensors.at(names::kStage2Audio), file.tensors.at(names::kStage1Audio)));
  const auto metrics = nlohmann::json::parse(test::read_file(dir_ / "clip.json"));
  EXPECT_EQ(metrics.at("steps").at("stage_1").size(), 3U);
  EXPECT_EQ(metrics.at("steps").at("stage_2").size(), 3U);
  EXPECT_GT(metrics.at("phases").at("fuse_loras_s").get<double>(), 0.0);
  const auto& plan = metrics.at("plan");
  EXPECT_THAT(plan.at("stage_1").at("passes").get<std::vector<std::string>>(),
              ElementsAre("conditional", "unconditional", "perturbed", "isolated"));
  EXPECT_EQ(plan.at("stage_1").at("pass_order"), "batch");
  EXPECT_THAT(plan.at("stage_2").at("passes").get<std::vector<std::string>>(),
              ElementsAre("conditional"));
}

TEST_F(TwoStagesTest, DecodeGivesTheFramesAndTheSoundOfTheRun) {
  const io::LatentsFile file = latents_of(yaml(kThreeSteps + outputs()));
  const std::vector<config::Override> overrides = {
      {"output.path", (dir_ / "again.y4m").string(), "", true},
      {"output.latents", "", "", false},
      {"output.metrics", "", "", false}};
  auto prepared = pipeline::prepare_job(
      config::load_job_text(file.job_yaml, "stored", "/", overrides), test::host());
  pipeline::decode_job(prepared, file, test::host());
  EXPECT_EQ(test::read_file(dir_ / "again.y4m"), test::read_file(dir_ / "clip.y4m"));
  EXPECT_EQ(test::read_file(dir_ / "again.wav"), test::read_file(dir_ / "clip.wav"));
}

TEST_F(TwoStagesTest, StoredJobNamesWhatTheModelDecided) {
  const auto prepared = pipeline::prepare_job(load(yaml(outputs())), test::host());
  EXPECT_EQ(prepared.plan.stage_1.num_steps(), 30);
  EXPECT_EQ(prepared.job.stage_1.steps, 30);
  EXPECT_EQ(prepared.job.stage_1.guidance.audio.stg_blocks, (std::vector<int64_t>{28}));
}

TEST_F(TwoStagesTest, MissingDistilledLoraIsRefused) {
  EXPECT_THROW(load(yaml(outputs(), "")), Error);
  const Error error = refusal(yaml(outputs(), "  distilled_lora: {path: none.safetensors}\n"));
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("models.distilled_lora.path"), HasSubstr("none")));
}

TEST_F(TwoStagesTest, DistilledLoraOfAnotherWidthIsRefusedBeforeAnyWork) {
  test::write_safetensors(
      dir_ / "wide.safetensors",
      {{"diffusion_model.transformer_blocks.0.attn1.to_q.lora_A.weight", at::zeros({4, 8192})},
       {"diffusion_model.transformer_blocks.0.attn1.to_q.lora_B.weight", at::zeros({8192, 4})}});
  const Error error = refusal(yaml(outputs(), "  distilled_lora: {path: wide.safetensors}\n"));
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr("wide.safetensors\" does not fit the model"));
}

// Stage 1 runs without the distilled LoRA, stage 2 with it; those of the whole run act on both.
TEST_F(TwoStagesTest, DistilledLoraActsOnStage2Only) {
  const std::string more = kThreeSteps + outputs(", overwrite: true");
  const std::string style = fmt::format(
      "  loras: [{{path: {}/ltx23-distilled-lora.safetensors}}]\n", test::tiny_dir().string());
  const io::LatentsFile with = latents_of(yaml(more, lora(1.0)));
  const io::LatentsFile without = latents_of(yaml(more, lora(0.0)));
  const io::LatentsFile both = latents_of(yaml(more, lora(1.0) + style));
  const auto same = [](const char* name, const io::LatentsFile& a, const io::LatentsFile& b) {
    return test::same_bytes(a.tensors.at(name), b.tensors.at(name));
  };
  EXPECT_TRUE(same(names::kStage1Video, with, without));
  EXPECT_FALSE(same(names::kStage2Video, with, without));
  EXPECT_FALSE(same(names::kStage1Video, with, both));
  EXPECT_NE(with.checkpoint_digest, both.checkpoint_digest);
}

class GuidanceTest : public ::testing::Test {
 protected:
  GuidanceTest() {
    job_.prompt = "a boat";
    job_.video = {.width = 128, .height = 64, .num_frames = 9, .frame_rate = {24}};
    job_.stage_1.steps = 3;
    job_.stage_1.guidance.video.stg_blocks = {{1}};
    job_.stage_1.guidance.audio.stg_blocks = {{1}};
  }

  // Latents of stage 1.
  static pipeline::StageLatents stage_1(const config::Job& job) {
    test::PieceRunner runner(job);
    pipeline::RunState state;
    pipeline::run_two_stages(runner.session(), *job.seed, state);
    return {state.results.at(names::kStage1Video), state.results.at(names::kStage1Audio)};
  }

  config::Job job_ = test::tiny_two_stage_job();
};

TEST_F(GuidanceTest, EveryKeyMatters) {
  using Change = std::function<void(config::ModalityGuidance&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"cfg", [](auto& g) { g.cfg = 2.0; }},
      {"stg", [](auto& g) { g.stg = 0.5; }},
      {"modality", [](auto& g) { g.modality = 2.0; }},
      {"rescale", [](auto& g) { g.rescale = 0.0; }},
      {"skip_step", [](auto& g) { g.skip_step = 1; }},
      {"stg_blocks",
       [](auto& g) {
         g.stg_blocks = {{0, 1}};
       }},
  };
  const auto base = stage_1(job_);
  EXPECT_TRUE(test::same_bytes(stage_1(job_).video, base.video));
  for (const auto& [key, change] : changes) {
    config::Job of_video = job_;
    change(of_video.stage_1.guidance.video);
    EXPECT_FALSE(test::same_bytes(stage_1(of_video).video, base.video)) << key;
    config::Job of_audio = job_;
    change(of_audio.stage_1.guidance.audio);
    EXPECT_FALSE(test::same_bytes(stage_1(of_audio).audio, base.audio)) << key;
  }
}

TEST_F(GuidanceTest, NegativePromptMattersWhereAPassReadsIt) {
  const auto empty = stage_1(job_);
  job_.negative_prompt = "blurry";
  EXPECT_FALSE(test::same_bytes(stage_1(job_).video, empty.video));

  job_.stage_1.guidance.video.cfg = job_.stage_1.guidance.audio.cfg = 1.0;
  const auto without_cfg = stage_1(job_);
  job_.negative_prompt = "";
  EXPECT_TRUE(test::same_bytes(stage_1(job_).video, without_cfg.video));
}

// Three steps with two of them reused: the passes of the first step only.
TEST_F(GuidanceTest, SkippedStepsRepeatTheLastResult) {
  job_.stage_1.guidance.video.skip_step = job_.stage_1.guidance.audio.skip_step = 2;
  test::PieceRunner runner(job_);
  auto session = runner.session();
  std::vector<at::Tensor> remembered;
  session.after_step = [&](const diffusion::DenoiseState& state) {
    if (state.stage == "stage_1") remembered.push_back(state.video.clone());
  };
  pipeline::RunState state;
  pipeline::run_two_stages(session, 1, state);
  ASSERT_EQ(remembered.size(), 3U);
  // The last step goes all the way to the remembered x0, the one before part of it: both on one
  // line, so the ratio of the two moves is the same for every number.
  const auto& sigmas = runner.plan.stage_1.sigmas;
  const double ratio = (sigmas[2] - sigmas[3]) / (sigmas[1] - sigmas[2]);
  EXPECT_TRUE(test::all_close(remembered[2] - remembered[1],
                              (remembered[1] - remembered[0]) * ratio, 1e-4));
}

TEST_F(TwoStagesTest, GuidanceWithoutEffectIsWarnedAbout) {
  EXPECT_THAT(warnings(kThreeSteps), IsEmpty());
  EXPECT_THAT(warnings(""), ElementsAre(AllOf(HasSubstr("stage_1.guidance.video.stg_blocks"),
                                              HasSubstr("blocks 0 to 1, so [28] perturbs nothing"),
                                              HasSubstr("set stg: 0")),
                                        HasSubstr("stage_1.guidance.audio.stg_blocks")));
  EXPECT_THAT(warnings("stage_1: {guidance: {video: {stg_blocks: [1, 5, 7]}, audio: {stg: 0}}}\n"),
              ElementsAre(HasSubstr("so [5, 7] has no effect")));
  EXPECT_THAT(warnings("negative_prompt: blurry\nstage_1: {guidance: {video: {cfg: 1, stg: 0}, "
                       "audio: {cfg: 1, stg: 0}}}\n"),
              ElementsAre(HasSubstr("negative_prompt has no effect")));
}

TEST_F(TwoStagesTest, PlanNamesThePassesAndTheirOrder) {
  const auto line_of_stage_1 = [&](const std::string& more) -> std::string {
    const auto prepared = pipeline::prepare_job(load(yaml(more + outputs())), test::host());
    for (const std::string& line : prepared.plan.describe()) {
      if (line.starts_with("stage_1:")) return line;
    }
    return "no line of stage 1";
  };
  EXPECT_THAT(line_of_stage_1(kThreeSteps),
              HasSubstr("3 steps, 4 passes a step (conditional, unconditional, perturbed, "
                        "isolated) in one batch"));
  EXPECT_THAT(line_of_stage_1("stage_1: {guidance: {video: {cfg: 1, stg: 0, modality: 1}, audio: "
                              "{cfg: 1, stg: 0, modality: 1}}}\n"),
              HasSubstr(", 1 pass a step"));
}

TEST(PassOrderTest, LargeStagesRunPassByPass) {
  EXPECT_EQ(pipeline::choose_pass_order(4, 1024), pipeline::PassOrder::batch);
  EXPECT_EQ(pipeline::choose_pass_order(4, 1025), pipeline::PassOrder::sequence);
  EXPECT_EQ(pipeline::choose_pass_order(2, 2048), pipeline::PassOrder::batch);
}

TEST(ModelDefaultsTest, FollowTheNewestGenerationThatTheModelReaches) {
  using pipeline::model_defaults;
  for (const char* old : {"", "2.0", "2.2.9", "1.9", "none", "2"}) {
    EXPECT_EQ(model_defaults(old).steps, 40) << old;
    EXPECT_THAT(model_defaults(old).stg_blocks, ElementsAre(29)) << old;
    EXPECT_EQ(model_defaults(old).image_crf, 33) << old;
  }
  for (const char* version : {"2.3.0", "2.3", "2.3.rc1", "2.4-rc2", "2.10", "3.0"}) {
    EXPECT_EQ(model_defaults(version).steps, 30) << version;
    EXPECT_THAT(model_defaults(version).stg_blocks, ElementsAre(28)) << version;
  }
  EXPECT_EQ(model_defaults("2.3.0").image_crf, 33);
  EXPECT_EQ(model_defaults("2.4-rc2").image_crf, 18);
}

TEST(ModelDefaultsTest, KeepWhatTheJobSays) {
  config::Job job = test::tiny_two_stage_job();
  job.stage_1.steps = 7;
  job.stage_1.guidance.video.stg_blocks = {{3}};
  job.images = {{.path = "a.png", .crf = 0}, {.path = "b.png", .frame = 8}};
  const config::Job full = pipeline::with_model_defaults(job, "2.3.0");
  EXPECT_EQ(full.stage_1.steps, 7);
  EXPECT_EQ(full.stage_1.guidance.video.stg_blocks, (std::vector<int64_t>{3}));
  EXPECT_EQ(full.stage_1.guidance.audio.stg_blocks, (std::vector<int64_t>{28}));
  EXPECT_EQ(full.images[0].crf, 0);
  EXPECT_EQ(full.images[1].crf, 33);
}

}  // namespace
}  // namespace flotilla
