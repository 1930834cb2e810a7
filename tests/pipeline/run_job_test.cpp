// Whole jobs on the tiny model: what is refused before any weight is read, and what the files hold.
#include "pipeline/run_job.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/latents_file.h"
#include "io/mp4_info.h"
#include "loader/sparse_checkpoint.h"
#include "pipeline/job_fixture.h"
#include "support/compare.h"
#include "support/safetensors_file.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
namespace names = io::latents;
using ::testing::HasSubstr;

class RunJobTest : public test::JobTest {
 protected:
  static std::string yaml(const std::string& more = "") { return job_text("distilled", "", more); }
};

TEST_F(RunJobTest, FilesHoldWhatWasAskedFor) {
  run(yaml("seed: 7\n" + outputs(", save_frames: true")));
  const io::LatentsFile file = io::read_latents(dir_ / "clip.h5");
  EXPECT_EQ(file.seed, 7);
  EXPECT_EQ(file.world, 1);
  EXPECT_THAT(file.job_yaml, HasSubstr("seed: 7"));
  const auto shape = [&](const char* name) { return file.tensors.at(name).sizes().vec(); };
  EXPECT_EQ(shape(names::kStage1Video), (std::vector<int64_t>{1, 128, 2, 1, 2}));
  EXPECT_EQ(shape(names::kUpscaledVideo), (std::vector<int64_t>{1, 128, 2, 2, 4}));
  EXPECT_EQ(shape(names::kStage2Video), (std::vector<int64_t>{1, 128, 2, 2, 4}));
  EXPECT_EQ(shape(names::kInitialVideo), (std::vector<int64_t>{1, 4, 128}));
  EXPECT_EQ(shape(names::kDecodedVideo), (std::vector<int64_t>{9, 64, 128, 3}));
  EXPECT_TRUE(file.has(names::kVideoContext) && file.has(names::kAudioContext));
  EXPECT_GT(file.sample_rate, 0);
  EXPECT_THAT(test::read_file(dir_ / "clip.y4m").substr(0, 80), HasSubstr("W128 H64 F24:1"));
  // A line "FRAME" and the planes of 4:2:0, nine times.
  const size_t frame_bytes = 6 + 128 * 64 * 3 / 2;
  EXPECT_EQ((test::read_file(dir_ / "clip.y4m").size() -
             test::read_file(dir_ / "clip.y4m").find('\n') - 1),
            9 * frame_bytes);
  const auto metrics = nlohmann::json::parse(test::read_file(dir_ / "clip.json"));
  EXPECT_GT(metrics.at("bytes_read_total").get<int64_t>(), 0);
  EXPECT_EQ(metrics.at("padding_fraction").get<double>(), 0.0);
  EXPECT_EQ(metrics.at("steps").at("stage_1").size(), 8U);
  EXPECT_EQ(metrics.at("steps").at("stage_2").size(), 3U);
  for (const char* phase :
       {"text_s", "stage_1_s", "upsample_s", "stage_2_s", "decode_video_s", "decode_audio_s"}) {
    EXPECT_GT(metrics.at("phases").at(phase).get<double>(), 0.0) << phase;
  }
}

TEST_F(RunJobTest, DrawnSeedMakesTheSameBytesAgain) {
  const auto prepared = run(yaml(outputs()));
  const io::LatentsFile first = io::read_latents(dir_ / "clip.h5");
  ASSERT_TRUE(prepared.job.seed.has_value());
  EXPECT_EQ(first.seed, static_cast<int64_t>(*prepared.job.seed));
  run(yaml(fmt::format("seed: {}\n", first.seed) + outputs(", overwrite: true")));
  const io::LatentsFile second = io::read_latents(dir_ / "clip.h5");
  for (const auto& [name, tensor] : first.tensors)
    EXPECT_TRUE(test::same_bytes(second.tensors.at(name), tensor)) << name;
}

TEST_F(RunJobTest, JobOfTheLatentsFileRepeatsTheClip) {
  run(yaml("seed: 3\n" + outputs()));
  const io::LatentsFile first = io::read_latents(dir_ / "clip.h5");
  const auto loaded =
      config::load_job_text(first.job_yaml, "stored", "/",
                            std::vector<config::Override>{{"output.overwrite", "true", "", false}});
  auto prepared = pipeline::prepare_job(loaded, test::host());
  pipeline::run_job(prepared, test::host());
  const io::LatentsFile second = io::read_latents(dir_ / "clip.h5");
  EXPECT_TRUE(test::same_bytes(second.tensors.at(names::kStage2Video),
                               first.tensors.at(names::kStage2Video)));
}

TEST_F(RunJobTest, DecodeGivesTheFramesOfTheRun) {
  run(yaml("seed: 3\n" + outputs()));
  const std::string clip = test::read_file(dir_ / "clip.y4m");
  const auto file = io::read_latents(dir_ / "clip.h5", {names::kStage2Video, names::kStage2Audio});
  std::vector<config::Override> overrides = {
      {"output.path", (dir_ / "again.y4m").string(), "", true},
      {"output.latents", "", "", false},
      {"output.metrics", "", "", false}};
  auto prepared = pipeline::prepare_job(
      config::load_job_text(file.job_yaml, "stored", "/", overrides), test::host());
  pipeline::decode_job(prepared, file, test::host());
  EXPECT_EQ(test::read_file(dir_ / "again.y4m"), clip);
}

TEST_F(RunJobTest, SilentJobHasNoSound) {
  run(yaml("seed: 3\n" + outputs(", audio: false")));
  const auto metrics = nlohmann::json::parse(test::read_file(dir_ / "clip.json"));
  EXPECT_FALSE(metrics.at("phases").contains("decode_audio_s"));
  EXPECT_FALSE(io::read_latents(dir_ / "clip.h5").has(names::kDecodedAudio));
  EXPECT_FALSE(fs::exists(dir_ / "clip.wav"));
}

// The image at frame 0, a keyframe later: other clips than without, and the same ones each time.
TEST_F(RunJobTest, ImagesConditionTheClipRepeatably) {
  const auto with = [&](const std::string& images) {
    run(yaml(fmt::format("seed: 3\nimages: [{}]\n", images) + outputs(", overwrite: true")));
    return io::read_latents(dir_ / "clip.h5").tensors.at(names::kStage2Video);
  };
  const auto image = [](int64_t frame, double strength) {
    return fmt::format("{{path: {}/image.png, frame: {}, strength: {}, crf: 0}}",
                       test::tiny_dir().string(), frame, strength);
  };
  const at::Tensor none = with("");
  const at::Tensor first = with(image(0, 1.0));
  const at::Tensor last = with(image(8, 0.8));
  EXPECT_FALSE(test::same_bytes(first, none));
  EXPECT_FALSE(test::same_bytes(last, none));
  EXPECT_TRUE(test::same_bytes(with(image(0, 1.0)), first));
  EXPECT_TRUE(test::same_bytes(with(image(0, 0.0)), none));
  EXPECT_EQ(last.sizes(), none.sizes());
}

// A LoRA acts on the job that names it, repeatably, and on no other one of the process.
TEST_F(RunJobTest, LorasActOnTheirJobOnly) {
  const auto with = [&](const std::string& loras) {
    std::string text = yaml("seed: 3\n" + outputs(", overwrite: true"));
    text.insert(text.find("prompt:"), fmt::format("  loras: [{}]\n", loras));
    run(text);
    return io::read_latents(dir_ / "clip.h5");
  };
  const auto lora = [](double strength) {
    return fmt::format("{{path: {}/ltx23-distilled-lora.safetensors, strength: {}}}",
                       test::tiny_dir().string(), strength);
  };
  const auto video = [](const io::LatentsFile& file) {
    return file.tensors.at(names::kStage2Video);
  };
  const io::LatentsFile none = with("");
  const io::LatentsFile one = with(lora(1.0));
  const io::LatentsFile two = with(lora(1.0) + ", " + lora(0.5));
  EXPECT_FALSE(test::same_bytes(video(one), video(none)));
  EXPECT_FALSE(test::same_bytes(video(two), video(one)));
  EXPECT_TRUE(test::same_bytes(video(with(lora(1.0))), video(one)));
  EXPECT_TRUE(test::same_bytes(video(with(lora(0.0))), video(none)));
  EXPECT_TRUE(test::same_bytes(video(with("")), video(none)));
  EXPECT_THAT(one.job_yaml, HasSubstr("ltx23-distilled-lora.safetensors"));
  EXPECT_NE(one.checkpoint_digest, none.checkpoint_digest);
}

TEST_F(RunJobTest, LoraOfAnotherWidthIsRefusedBeforeAnyWork) {
  test::write_safetensors(
      dir_ / "wide.safetensors",
      {{"diffusion_model.transformer_blocks.0.attn1.to_q.lora_A.weight", at::zeros({4, 8192})},
       {"diffusion_model.transformer_blocks.0.attn1.to_q.lora_B.weight", at::zeros({8192, 4})}});
  std::string text = yaml(outputs());
  text.insert(text.find("prompt:"), "  loras: [{path: wide.safetensors}]\n");
  const Error error = refusal(text);
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr("wide.safetensors\" does not fit the model"));
  EXPECT_THAT(error.what(), HasSubstr("the LoRA changes [8192, 8192]"));
}

TEST_F(RunJobTest, MissingFilesAreToldTogetherBeforeAnyWork) {
  const Error error = refusal(
      "schema_version: 1\nmodels: {checkpoint: a.safetensors, spatial_upsampler: b.safetensors, "
      "text_encoder: c}\n"
      "prompt: x\nvideo: {width: 128, height: 64, num_frames: 9}\n" +
      outputs());
  EXPECT_EQ(error.kind(), ErrorKind::input);
  for (const char* text :
       {"models.checkpoint", "models.spatial_upsampler", "models.text_encoder"}) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST_F(RunJobTest, UnfittingFilesAreRefusedByName) {
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = yaml(outputs());
    text.replace(text.find(from), from.size(), to);
    return refusal(text);
  };
  // Another scale, another model's file in the upsampler's place, the weights of another model.
  EXPECT_THAT(with("upscaler-x2", "upscaler-x1.5").what(), HasSubstr("needs the x2 upsampler"));
  EXPECT_EQ(with("ltx23-spatial-upscaler-x2", "vae-small-23").kind(), ErrorKind::input);
  EXPECT_THAT(with("ltx23-dev.safetensors", "vae-small-23.safetensors").what(),
              HasSubstr("vae-small-23.safetensors"));
}

TEST_F(RunJobTest, OutputsAreTriedBeforeTheWork) {
  test::write_file(dir_ / "clip.y4m", "of somebody else");
  const Error exists = refusal(yaml(outputs()));
  EXPECT_EQ(exists.kind(), ErrorKind::output);
  EXPECT_THAT(exists.what(), HasSubstr("--overwrite"));
  EXPECT_EQ(test::read_file(dir_ / "clip.y4m"), "of somebody else");
  EXPECT_THAT(refusal(yaml("output: {path: clip.webm}\n")).what(), HasSubstr(".y4m"));
}

TEST_F(RunJobTest, MissingGpuIsAMachineError) {
  if (at::hasCUDA()) GTEST_SKIP() << "this machine has a CUDA device";
  std::string text = yaml(outputs());
  text.replace(text.find("device: cpu"), 11, "device: cuda");
  text.replace(text.find("precision: fp32"), 15, "precision: bf16");
  EXPECT_EQ(refusal(text).kind(), ErrorKind::machine);
}

// Transformer with the text projection, video VAE, audio VAE with the vocoder: each in a file of
// its own.
TEST_F(RunJobTest, ComponentFilesGiveTheBytesOfTheMonolith) {
  run(yaml("seed: 3\n" + outputs()));
  const at::Tensor whole = io::read_latents(dir_ / "clip.h5").tensors.at(names::kStage2Video);
  const auto monolith = test::open_tiny("ltx23-dev.safetensors");
  const auto split = [&](const std::string& name, const std::vector<std::string>& prefixes) {
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [tensor, info] : monolith->tensors()) {
      for (const auto& prefix : prefixes) {
        if (tensor.starts_with(prefix)) tensors.emplace(tensor, monolith->read(tensor));
      }
    }
    test::write_safetensors(dir_ / name, tensors, {{"config", monolith->config().dump()}});
  };
  split("transformer.safetensors", {"model.diffusion_model.", "text_embedding_projection."});
  split("video.safetensors", {"vae."});
  split("audio.safetensors", {"audio_vae.", "vocoder."});
  std::string text = yaml("seed: 3\n" + outputs(", overwrite: true"));
  const std::string line =
      fmt::format("  checkpoint: {}/ltx23-dev.safetensors\n", test::tiny_dir().string());
  text.replace(text.find(line), line.size(),
               "  transformer: transformer.safetensors\n  video_vae: video.safetensors\n  "
               "audio_vae: audio.safetensors\n");
  run(text);
  EXPECT_TRUE(
      test::same_bytes(io::read_latents(dir_ / "clip.h5").tensors.at(names::kStage2Video), whole));
}

TEST_F(RunJobTest, AttentionKernelThatIsNotThereIsRefused) {
  const Error error = refusal(yaml("attention: cudnn\n" + outputs()));
  EXPECT_EQ(error.kind(), ErrorKind::config);
  EXPECT_THAT(error.what(), HasSubstr("attention: cudnn needs a GPU"));
}

TEST_F(RunJobTest, AttentionKernelsAgree) {
  run(yaml("seed: 3\nattention: flash\n" + outputs()));
  const at::Tensor flash = io::read_latents(dir_ / "clip.h5").tensors.at(names::kStage2Video);
  run(yaml("seed: 3\nattention: math\n" + outputs(", overwrite: true")));
  const at::Tensor math = io::read_latents(dir_ / "clip.h5").tensors.at(names::kStage2Video);
  // Another order of summation in every attention: the bound of the end-to-end goldens.
  EXPECT_TRUE(test::all_close(math, flash, 5e-5));
  EXPECT_FALSE(test::same_bytes(math, flash));
}

TEST_F(RunJobTest, PositionsBeyondTheTableAreWarnedAbout) {
  const auto checkpoint = test::open_tiny("ltx23-dev.safetensors");
  nlohmann::json config = checkpoint->config();
  config["transformer"]["positional_embedding_max_pos"] = {20, 32, 2048};
  loader::write_sparse_checkpoint(dir_ / "short.safetensors", checkpoint->tensors(),
                                  {{"config", config.dump()}});
  std::string text = yaml(outputs());
  const std::string name = (test::tiny_dir() / "ltx23-dev.safetensors").string();
  text.replace(text.find(name), name.size(), (dir_ / "short.safetensors").string());
  const auto prepared = pipeline::prepare_job(load(text), test::host());
  ASSERT_EQ(prepared.plan.warnings.size(), 1U);
  EXPECT_THAT(prepared.plan.warnings[0], HasSubstr("video.height"));
}

}  // namespace
}  // namespace flotilla
