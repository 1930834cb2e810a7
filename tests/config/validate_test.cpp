#include "config/validate.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "config/job_text.h"

namespace flotilla::config {
namespace {

using test::contains;
using test::count_lines;
using test::job_of;
using test::kGoodJob;
using test::kTwoStageJob;
using test::load;
using test::refusal;
using test::refusal_with;

std::string two_stage_refusal(const std::string& lines) { return refusal(kTwoStageJob + lines); }

TEST(VideoRulesTest, NameEachBadSideWithBothNearestSizes) {
  const std::string message = refusal_with("video: {width: 720, height: 416, num_frames: 120}\n");
  EXPECT_EQ(count_lines(message), 3U) << message;
  EXPECT_TRUE(contains(message, "job.yaml:3:16: video.width: 720 is not a multiple of 64"));
  EXPECT_TRUE(contains(message, "nearest: 704 or 768"));
  EXPECT_TRUE(contains(message, "video.height: 416 is not a multiple of 64"));
  EXPECT_TRUE(contains(message, "nearest: 384 or 448"));
  EXPECT_TRUE(contains(message, "video.num_frames: 120 is not 8k + 1"));
  EXPECT_TRUE(contains(message, "nearest: 113 or 121"));
}

TEST(VideoRulesTest, RefuseSizesThatOnlyOneStageCanDo) {
  EXPECT_EQ(refusal_with("video: {width: 192, height: 128}\n"), "");
  EXPECT_EQ(count_lines(refusal_with("video: {width: 160, height: 96}\n")), 2U);
  EXPECT_EQ(count_lines(two_stage_refusal("video: {width: 160, height: 96}\n")), 2U);
  EXPECT_TRUE(contains(refusal_with("video: {width: 32}\n"), "expected integer, 64 to 16384"));
  EXPECT_TRUE(contains(refusal_with("video: {num_frames: 0}\n"), "expected integer, 1 to"));
  EXPECT_EQ(refusal_with("video: {num_frames: 1}\n"), "");
}

TEST(VideoRulesTest, KeepFrameRatesInRange) {
  for (const char* rate : {"0", "0.5", "241", "1000/1", "abc", "-24", "24 fps", "1e1", "[24]"}) {
    const std::string message = refusal_with(std::string("video: {frame_rate: ") + rate + "}\n");
    EXPECT_TRUE(contains(message, "video.frame_rate: found")) << rate;
  }
  for (const char* rate : {"23.97602397602", "24000000000/1001000000"}) {
    EXPECT_TRUE(contains(refusal_with(std::string("video: {frame_rate: ") + rate + "}\n"),
                         "(more than 9 digits in a row)"))
        << rate;
  }
  EXPECT_EQ(job_of(kGoodJob + "video: {frame_rate: \"24000/1001\"}\n").video.frame_rate,
            Rational(24000, 1001));
}

TEST(UsageTest, RefusesWhatThePipelineDoesNotUse) {
  for (const char* line : {"negative_prompt: blur", "models: {distilled_lora: {path: x}}",
                           "stage_1: {steps: 8}", "stage_1: {guidance: {video: {cfg: 2}}}",
                           "stage_1: {guidance_groups: 2}", "stage_2: {tiles: {overlap: 4}}"}) {
    std::string text = line;
    if (text.starts_with("models")) {
      text =
          "models: {checkpoint: m, spatial_upsampler: u, text_encoder: g, "
          "distilled_lora: {path: x}}\nprompt: x\n";
    } else {
      text = kGoodJob + text + "\n";
    }
    const std::string message = refusal(text);
    EXPECT_TRUE(contains(message, "has no effect with pipeline: distilled")) << message;
    EXPECT_TRUE(contains(message, "pipeline: ti2vid_two_stages")) << message;
    EXPECT_EQ(count_lines(message), 1U) << message;
  }
  EXPECT_TRUE(contains(refusal_with("negative_prompt: blur\n"), "job.yaml:3:18: negative_prompt"));
  EXPECT_EQ(two_stage_refusal("negative_prompt: blur\n"), "");
}

TEST(UsageTest, ListsMissingKeysTogether) {
  const std::string message = refusal("pipeline: ti2vid_two_stages\n");
  for (const char* key : {"prompt: is missing", "models.checkpoint: is missing",
                          "models.spatial_upsampler: is missing", "models.text_encoder: is missing",
                          "models.distilled_lora.path: is missing"}) {
    EXPECT_TRUE(contains(message, std::string("job.yaml: ") + key)) << message;
  }
  EXPECT_EQ(count_lines(message), 5U);
}

TEST(ModelRulesTest, TakeOneFileOrAllParts) {
  const std::string rest = ", spatial_upsampler: u, text_encoder: g}\nprompt: x\n";
  EXPECT_EQ(refusal("models: {transformer: t, video_vae: v, audio_vae: a" + rest), "");
  const std::string both = refusal("models: {checkpoint: c, video_vae: v" + rest);
  EXPECT_TRUE(contains(both, "models.video_vae: is given beside models.checkpoint"));
  const std::string some = refusal("models: {transformer: t, audio_vae: a" + rest);
  EXPECT_EQ(count_lines(some), 1U);
  EXPECT_TRUE(contains(some, "models.video_vae: is missing"));
}

TEST(SigmaRulesTest, WantFallingLevelsThatEndWithZero) {
  const auto message = [](const std::string& sigmas) {
    return refusal_with("stage_1: {sigmas: " + sigmas + "}\n");
  };
  EXPECT_EQ(message("[1, 0.5, 0]"), "");
  EXPECT_EQ(message("auto"), "");
  EXPECT_TRUE(contains(message("[1, 0.5, 0.5, 0]"), "element 1: 0.5 is followed by 0.5;"));
  EXPECT_TRUE(
      contains(message("[1, 1e-300, 0]"),
               "job.yaml:3:19: stage_1.sigmas: element 1: 1e-300 is followed by 0, the same "
               "32-bit number; noise levels must fall strictly"));
  EXPECT_TRUE(contains(message("[1, 0.50000001, 0.5, 0]"), "the same 32-bit number"));
  EXPECT_TRUE(contains(message("[0.5, 1, 0]"), "must fall strictly"));
  EXPECT_TRUE(contains(message("[1, 0.5]"), "ends with 0.5; the last noise level must be 0"));
  EXPECT_TRUE(contains(message("[0]"), "at least 2"));
  EXPECT_TRUE(contains(message("[]"), "at least 2"));
  EXPECT_TRUE(contains(message("[1.5, 0]"), "element 0: found 1.5; expected number, 0 to 1"));
  EXPECT_TRUE(contains(message("[1, x, 0]"), "element 1: found x"));
}

TEST(SigmaRulesTest, GiveTheNumberOfSteps) {
  EXPECT_EQ(job_of(kTwoStageJob + "stage_1: {sigmas: [1, 0.5, 0]}\n").stage_1.steps, 2);
  EXPECT_EQ(two_stage_refusal("stage_1: {sigmas: [1, 0.5, 0], steps: 2}\n"), "");
  EXPECT_TRUE(contains(two_stage_refusal("stage_1: {sigmas: [1, 0.5, 0], steps: 3}\n"),
                       "stage_1.steps: 3 disagrees"));
  EXPECT_EQ(two_stage_refusal("stage_1: {sigmas: [1, 0]}\n"), "");
  EXPECT_EQ(two_stage_refusal("stage_1: {sigmas: [1, 0], steps: auto}\n"), "");
  EXPECT_TRUE(contains(two_stage_refusal("stage_1: {steps: 1}\n"), "stage_1.steps: 1 step"));
  EXPECT_FALSE(job_of(kTwoStageJob).stage_1.steps);
}

TEST(ImageRulesTest, KeepFramesInsideTheClip) {
  const std::string video = "video: {num_frames: 17}\nimages: ";
  EXPECT_EQ(refusal_with(video + "[{path: a}, {path: b, frame: 16}, {path: c, frame: -8}]\n"), "");
  EXPECT_TRUE(contains(refusal_with(video + "[{path: a, frame: 17}]\n"),
                       "images[0].frame: 17 is past the end; the clip has frames 0 to 16"));
  EXPECT_TRUE(contains(refusal_with(video + "[{path: a}, {path: b}]\n"),
                       "images[1].frame: frame 0 is taken by images[0]"));
  EXPECT_TRUE(contains(refusal_with(video + "[{path: a, strength: 1.1}]\n"), "number, 0 to 1"));
  EXPECT_TRUE(
      contains(refusal_with(video + "[{path: a, crf: 52}]\n"), "integer, 0 to 51, or auto"));
  const std::string bad_length =
      refusal_with("video: {num_frames: x}\nimages: [{path: a, frame: 200}]\n");
  EXPECT_EQ(count_lines(bad_length), 1U) << "no word about the end while the length is unknown";
}

TEST(GuidanceRulesTest, WantBlocksForStg) {
  const auto message = [](const std::string& guidance) {
    return two_stage_refusal("stage_1: {guidance: {video: " + guidance + "}}\n");
  };
  EXPECT_EQ(message("{stg: 0, stg_blocks: []}"), "");
  EXPECT_TRUE(contains(message("{stg_blocks: []}"), "stg pass would perturb nothing"));
  EXPECT_TRUE(contains(message("{stg_blocks: [1, 1]}"), "names a block twice"));
  EXPECT_TRUE(contains(message("{stg_blocks: [-1]}"), "element 0: found -1"));
  EXPECT_TRUE(contains(message("{rescale: 1.5}"), "number, 0 to 1"));
  EXPECT_TRUE(contains(two_stage_refusal("stage_1: {guidance_groups: 3}\n"), "auto, 1, 2 or 4"));
}

TEST(TileRulesTest, WantTilesLargerThanTheirOverlap) {
  const std::string video = "video: {width: 384, height: 256, num_frames: 25}\n";  // 4 x 8 x 12
  const auto message = [&](const std::string& tiles) {
    return two_stage_refusal(video + "stage_2: {parallel: tdp, tiles: " + tiles + "}\n");
  };
  EXPECT_EQ(message("{grid: [1, 2, 2]}"), "");
  EXPECT_TRUE(
      contains(message("{grid: [1, 4, 2]}"),
               "4 tiles along rows do not fit 8 latent cells with overlap 5; use at most 3"));
  EXPECT_TRUE(contains(message("{grid: [2, 1, 1]}"), "use at most 1"));
  EXPECT_TRUE(contains(refusal_with(video + "decoder: {tiles: {grid: [1, 1, 9]}}\n"),
                       "9 tiles along columns"));
  EXPECT_EQ(refusal_with(video + "decoder: {tiles: {grid: [1, 1, 9], overlap: [4, 4, 3]}}\n"), "");
}

TEST(TileRulesTest, CapTheFirstNoiseLevelOfTiles) {
  const std::string stage = "stage_2: {parallel: tdp, sigmas: [0.9, 0.4, 0]}\n";
  EXPECT_TRUE(contains(two_stage_refusal(stage), "above stage_2.tiles.max_first_sigma (0.7)"));
  EXPECT_EQ(two_stage_refusal(stage + "images: [{path: a, frame: -1}]\n"), "");
  EXPECT_TRUE(contains(refusal_with("stage_2: {parallel: tdp}\n"), "tdp belongs to pipeline"));
}

TEST(TileRulesTest, CheckTilingByHand) {
  const auto message = [](const std::string& tiling) {
    return refusal_with("decoder: {tiling: " + tiling + "}\n");
  };
  EXPECT_EQ(message("{spatial: {size: 512, overlap: 64}, temporal: {size: 64, overlap: 24}}"), "");
  EXPECT_TRUE(contains(message("{spatial: {size: 500}}"), "nearest: 480 or 512"));
  EXPECT_TRUE(contains(message("{temporal: {size: 8}}"), "nearest: 16 or 24"));
  EXPECT_TRUE(contains(message("{spatial: {size: 64, overlap: 64}}"),
                       "64 is not a multiple of 32 below size (64); nearest: 32"));
  EXPECT_TRUE(contains(message("{spatial: {size: 256, overlap: 50}}"), "nearest: 32 or 64"));
  EXPECT_TRUE(contains(message("{spatial: {size: 96, overlap: 70}}"), "nearest: 64"));
  EXPECT_TRUE(contains(message("{spatial: {overlap: 32}}"), "is given without size"));
  EXPECT_TRUE(contains(message("{}"), "gives no size"));
  EXPECT_TRUE(contains(refusal_with("decoder: {tiles: {grid: [2, 1, 1]}, "
                                    "tiling: {temporal: {size: 64}}}\n"),
                       "only one can split it"));
  // 121 frames are 16 latents: tiles of 10 and, one earlier for causality, 11. Not cut, not
  // refused.
  const auto split_by = [](int size) {
    return refusal_with("decoder: {tiles: {grid: [2, 1, 1]}, tiling: {temporal: {size: " +
                        std::to_string(size) + "}}}\n");
  };
  EXPECT_TRUE(contains(split_by(80), "decoder.tiles.grid"));
  EXPECT_EQ(split_by(88), "");
}

TEST(CombinationTest, RefusesWhatCannotWork) {
  for (const char* lines :
       {"device: cpu\nnoise_device: cuda\n", "device: cpu\nprecision: fp8_scaled_mm\n",
        "device: cpu\nattention: cudnn\n", "device: cpu\noffload: cpu\n",
        "device: cuda\nattention: flash\nprecision: fp32\n", "text: {enhancer: x}\n",
        "output: {save_frames: true}\n", "checkpoint: {every_steps: 2}\n",
        "checkpoint: {resume: must}\n", "limits: {max_hours: 1}\n", "limits: {stop_file: s}\n"}) {
    EXPECT_EQ(count_lines(refusal_with(lines)), 1U) << lines << refusal_with(lines);
  }
  EXPECT_TRUE(contains(two_stage_refusal("reproducible: world\nstage_2: {parallel: tdp}\n"),
                       "world is impossible with stage_2.parallel: tdp"));
  EXPECT_TRUE(contains(two_stage_refusal("reproducible: world\nstage_1: {guidance_groups: 2}\n"),
                       "pass by pass"));
  const std::string fixed = refusal(
      "pipeline: ti2vid_two_stages\nmodels: {checkpoint: m, spatial_upsampler: u, text_encoder: g, "
      "fixed_loras: true, distilled_lora: {path: l}}\nprompt: x\n");
  EXPECT_TRUE(contains(fixed, "models.fixed_loras: true is impossible")) << fixed;
}

TEST(CombinationTest, RefusesLorasOnWeightsThatStayInTheirFile) {
  EXPECT_EQ(refusal_with("device: cpu\noffload: disk\n"), "");
  EXPECT_EQ(two_stage_refusal("offload: cpu\n"), "");
  const std::string message = two_stage_refusal("offload: disk\n");
  EXPECT_TRUE(contains(message, "offload: disk takes the weights as they are")) << message;
  EXPECT_TRUE(contains(message, "use cpu")) << message;
}

TEST(SupportTest, RefusesToOffloadOnSeveralRanks) {
  EXPECT_NO_THROW(check_supported(job_of(kGoodJob), Origins()));
  const LoadedJob loaded = load(kTwoStageJob +
                                "offload: cpu\n"
                                "stage_2: {parallel: tdp}\n");
  EXPECT_NO_THROW(check_supported(loaded.job, loaded.origins));
  try {
    check_supported(loaded.job, loaded.origins, 2);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    const std::string& message = error.message();
    EXPECT_EQ(count_lines(message), 1U) << message;
    EXPECT_TRUE(
        contains(message, "job.yaml:5:10: offload: cpu works on one rank, and this run has 2"))
        << message;
  }
}

TEST(SupportTest, WantsThreadsThatTheCoresCanBear) {
  const int64_t cores = std::thread::hardware_concurrency();
  if (cores == 0) GTEST_SKIP() << "the number of cores is unknown here";
  if (cores >= 1024) GTEST_SKIP() << "the key's own limit comes first here";
  const auto check = [](int64_t threads) {
    const LoadedJob loaded = load(kGoodJob + "threads: " + std::to_string(threads) + "\n");
    check_supported(loaded.job, loaded.origins);
  };
  EXPECT_NO_THROW(check(4 * cores));
  try {
    check(4 * cores + 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_TRUE(contains(error.message(), "job.yaml:3:10: threads: "));
    EXPECT_TRUE(contains(error.message(), "at most " + std::to_string(4 * cores)));
  }
}

TEST(SupportTest, WantsGroupsThatTheRanksCanForm) {
  const LoadedJob loaded = load(kTwoStageJob + "stage_1: {guidance_groups: 2}\n");
  try {
    check_supported(loaded.job, loaded.origins, 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(count_lines(error.message()), 1U);
    EXPECT_TRUE(contains(error.message(),
                         "job.yaml:5:28: stage_1.guidance_groups: 2 groups of "
                         "equal size cannot be made of 1 rank"));
  }
  EXPECT_NO_THROW(check_supported(job_of(kTwoStageJob), Origins()));
  EXPECT_NO_THROW(
      check_supported(job_of(kTwoStageJob + "stage_1: {guidance_groups: 1}\n"), Origins()));
}

TEST(ResolveTest, DecidesByMachine) {
  const Job on_cpu = resolve_job(job_of(kGoodJob), {.has_gpu = false, .world_size = 1});
  EXPECT_EQ(on_cpu.device, Device::cpu);
  EXPECT_EQ(on_cpu.precision, Precision::fp32);
  EXPECT_EQ(on_cpu.stage_2.parallel, Stage2Parallel::sp);
  EXPECT_EQ(on_cpu.sp.exchange_timeout_seconds, 120.0);
  const Job on_gpus = resolve_job(job_of(kTwoStageJob), {.has_gpu = true, .world_size = 4});
  EXPECT_EQ(on_gpus.precision, Precision::bf16);
  EXPECT_EQ(on_gpus.stage_2.parallel, Stage2Parallel::tdp);
  const Job kept = resolve_job(job_of(kGoodJob + "precision: bf16\ndevice: cpu\n"),
                               {.has_gpu = true, .world_size = 1});
  EXPECT_EQ(kept.device, Device::cpu);
  EXPECT_EQ(kept.precision, Precision::bf16);
}

}  // namespace
}  // namespace flotilla::config
