// Whole jobs on the tiny model: what is refused before any weight is read, and what the files hold.
#include "pipeline/run_job.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <new>

#include "diffusion/noise.h"
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
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_TRUE(metrics.at("phases").at("decode_audio_s").is_null());
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

// The transformer of the tiny model with other channels, consistent in itself, beside its VAEs.
TEST_F(RunJobTest, ModelsThatDoNotFitEachOtherAreRefusedBeforeAnyWork) {
  const auto monolith = test::open_tiny("ltx23-dev.safetensors");
  const auto with = [&](const std::string& key, const std::string& layer, size_t axis) {
    auto tensors = monolith->tensors();
    nlohmann::json config = monolith->config();
    config["transformer"][key] = 64;
    tensors.at(layer + ".weight").shape[axis] = 64;
    if (axis == 0) tensors.at(layer + ".bias").shape[0] = 64;
    loader::write_sparse_checkpoint(dir_ / "narrow.safetensors", tensors,
                                    {{"config", config.dump()}});
    std::string text = yaml(outputs());
    const std::string whole = (test::tiny_dir() / "ltx23-dev.safetensors").string();
    text.replace(
        text.find("checkpoint: " + whole), 12 + whole.size(),
        fmt::format("transformer: narrow.safetensors\n  video_vae: {0}\n  audio_vae: {0}", whole));
    const Error error = refusal(text);
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr("narrow.safetensors\" has 64"));
    EXPECT_THAT(error.what(), HasSubstr("ltx23-dev.safetensors\" has 128 channels"));
    return std::string(error.what());
  };
  const std::string prefix = "model.diffusion_model.";
  EXPECT_THAT(with("in_channels", prefix + "patchify_proj", 1), HasSubstr("video input"));
  EXPECT_THAT(with("out_channels", prefix + "proj_out", 0), HasSubstr("video output"));
  EXPECT_THAT(with("audio_in_channels", prefix + "audio_patchify_proj", 1),
              HasSubstr("audio input"));
  EXPECT_THAT(with("audio_out_channels", prefix + "audio_proj_out", 0), HasSubstr("audio output"));
}

TEST_F(RunJobTest, UpsamplerOfOtherChannelsIsRefusedBeforeAnyWork) {
  const auto x2 = test::open_tiny("ltx23-spatial-upscaler-x2.safetensors");
  auto tensors = x2->tensors();
  nlohmann::json config = x2->config();
  config["in_channels"] = 64;
  tensors.at("initial_conv.weight").shape[1] = 64;
  tensors.at("final_conv.weight").shape[0] = 64;
  tensors.at("final_conv.bias").shape[0] = 64;
  loader::write_sparse_checkpoint(dir_ / "up.safetensors", tensors, {{"config", config.dump()}});
  std::string text = yaml(outputs());
  const std::string name = (test::tiny_dir() / "ltx23-spatial-upscaler-x2.safetensors").string();
  text.replace(text.find(name), name.size(), "up.safetensors");
  const Error error = refusal(text);
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr("up.safetensors\" has 64"));
}

TEST_F(RunJobTest, SeedsBeyondTheGeneratorsBitsAreWarnedAbout) {
  const auto warnings = [&](const std::string& seed) {
    return pipeline::prepare_job(load(yaml("seed: " + seed + "\n" + outputs())), test::host())
        .plan.warnings;
  };
  EXPECT_TRUE(warnings("0").empty());
  EXPECT_TRUE(warnings("4294967295").empty());
  const auto large = warnings("4294967303");
  ASSERT_EQ(large.size(), 1U);
  EXPECT_THAT(large[0], HasSubstr("seed 4294967303 is above 4294967295"));
  EXPECT_THAT(large[0], HasSubstr("that of seed 7"));
  EXPECT_EQ(warnings("18446744073709551615").size(), 1U);
  EXPECT_TRUE(test::same_bytes(diffusion::NoiseGenerator(4294967303).draw({64}, at::kFloat),
                               diffusion::NoiseGenerator(7).draw({64}, at::kFloat)));
  for (int i = 0; i < 100; ++i) EXPECT_LE(pipeline::draw_seed(), 0xFFFF'FFFFU);
}

TEST_F(RunJobTest, MissingFfmpegIsAMachineErrorBeforeAnyWeight) {
  const pipeline::Host bare{"/nonexistent", [](const char*) -> const char* { return nullptr; }};
  const auto kind_of = [&](const std::string& more) {
    try {
      auto prepared = pipeline::prepare_job(load(yaml(more)), bare);
      try {
        pipeline::run_job(prepared, bare);
      } catch (const Error& error) {
        EXPECT_EQ(prepared.files->bytes_read(), 0) << more;
        EXPECT_THAT(error.what(), HasSubstr("ffmpeg")) << more;
        return error.kind();
      }
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("ffmpeg")) << more;
      return error.kind();
    }
    return ErrorKind::internal;
  };
  const std::string image = "images: [{path: " + test::tiny_dir().string() + "/image.png";
  EXPECT_EQ(kind_of("output: {path: clip.mp4}\n"), ErrorKind::machine);
  EXPECT_EQ(kind_of(image + "}]\n" + outputs()), ErrorKind::machine);
  EXPECT_EQ(kind_of(image + ", crf: 20}]\n" + outputs()), ErrorKind::machine);
  EXPECT_EQ(kind_of(image + ", crf: 0}]\n" + outputs()), ErrorKind::internal) << "it runs";
}

TEST_F(RunJobTest, PictureThatCannotBeReadIsToldBeforeAnyWeightIs) {
  test::write_file(dir_ / "text.png", "no picture");
  auto prepared = pipeline::prepare_job(
      load(yaml("images: [{path: " + (dir_ / "text.png").string() + ", crf: 0}]\n" + outputs())),
      test::host());
  try {
    pipeline::run_job(prepared, test::host());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr("text.png"));
  }
  EXPECT_EQ(prepared.files->bytes_read(), 0);
}

TEST_F(RunJobTest, OutputsThatExistAreToldTogether) {
  test::write_file(dir_ / "clip.y4m", "a");
  test::write_file(dir_ / "clip.h5", "b");
  const Error error = refusal(yaml(outputs()));
  EXPECT_EQ(error.kind(), ErrorKind::output);
  EXPECT_THAT(error.what(), HasSubstr("clip.y4m\" exists"));
  EXPECT_THAT(error.what(), HasSubstr("clip.h5\" exists"));
}

// A model of zeros paints grey; the tiny model does not.
TEST_F(RunJobTest, PictureOfOneColourIsWarnedAbout) {
  const auto tiny = test::open_tiny("ltx23-dev.safetensors");
  loader::write_sparse_checkpoint(dir_ / "zeros.safetensors", tiny->tensors(),
                                  {{"config", tiny->config().dump()}});
  const auto log_of = [](const config::Job& job) {
    test::PieceRunner runner(job);
    const at::Tensor latent =
        at::randn({1, 128, runner.plan.stage_2.grid.size.frames,
                   runner.plan.stage_2.grid.size.height, runner.plan.stage_2.grid.size.width},
                  at::detail::createCPUGenerator(1));
    ::testing::internal::CaptureStderr();
    runner.decode(latent);
    return ::testing::internal::GetCapturedStderr();
  };
  config::Job job = test::tiny_job();
  job.video = {.width = 128, .height = 64, .num_frames = 9, .frame_rate = {24}};
  EXPECT_THAT(log_of(job), Not(HasSubstr("same colour")));
  job.models.checkpoint = dir_ / "zeros.safetensors";
  EXPECT_THAT(log_of(job), HasSubstr("every pixel of every frame is the same colour"));
}

TEST_F(RunJobTest, WeightThatIsNotFiniteIsNamed) {
  const auto upsampler = test::open_tiny("ltx23-spatial-upscaler-x2.safetensors");
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, info] : upsampler->tensors())
    tensors.emplace(name, upsampler->read(name));
  tensors.at("final_conv.bias")[3] = std::numeric_limits<float>::quiet_NaN();
  test::write_safetensors(dir_ / "up.safetensors", tensors,
                          {{"config", upsampler->config().dump()}});
  std::string text = yaml(outputs());
  const std::string name = (test::tiny_dir() / "ltx23-spatial-upscaler-x2.safetensors").string();
  text.replace(text.find(name), name.size(), "up.safetensors");
  try {
    run(text);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr("tensor \"final_conv.bias\" of"));
    EXPECT_THAT(error.what(), HasSubstr("up.safetensors"));
  }
}

TEST(PhasesTest, LackOfMemoryNamesThePhaseAndWhatHelps) {
  pipeline::Phases phases(at::kCPU);
  const auto message = [&](const std::string& phase, const std::function<void()>& work) {
    try {
      phases.run(phase, work);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::memory);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto from_torch = [] { at::empty({int64_t{1} << 52}); };
  const auto from_library = [] { throw std::bad_alloc(); };
  EXPECT_THAT(message("decode_video", from_torch),
              AllOf(HasSubstr("decode_video: out of host memory"), HasSubstr("decoder.tiling")));
  EXPECT_THAT(message("load_transformer", from_library),
              AllOf(HasSubstr("load_transformer: out of host memory"), HasSubstr("precision")));
  phases.note_latents("a b.h5");
  EXPECT_THAT(message("decode_video", from_library), HasSubstr("flotilla decode \"a b.h5\""));
  EXPECT_THROW(phases.run("text", [] { TORCH_CHECK(false, "another fault"); }), c10::Error);
  EXPECT_EQ(phases.run("text", [] { return 7; }), 7);
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
