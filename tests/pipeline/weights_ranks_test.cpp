// The files of whole jobs on several ranks: read once however many ranks and stages there are, and
// a LoRA of stage 2 that is damaged is told before stage 1.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pipeline/jobs.h"
#include "support/mpi_main.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class WeightsRanksTest : public ::testing::Test {
 protected:
  // In a folder of the driver's that all ranks know.
  WeightsRanksTest() : folder_(test::ranks().world().broadcast(own_.path().string(), 0)) {
    job_ = test::demo_job("a red circle moving right", 1);
    job_.video = {.width = 128, .height = 128, .num_frames = 9, .frame_rate = {24}};
    job_.stage_2.parallel = config::Stage2Parallel::sp;
    job_.sp.exchange_timeout_seconds = 120;
    job_.output.path = folder_ / "clip.y4m";
    job_.output.metrics = folder_ / "clip.json";
    job_.output.overwrite = true;
  }
  ~WeightsRanksTest() override { test::ranks().world().barrier("the files were read", 120); }

  config::Job two_stages() const {
    config::Job job = job_;
    job.pipeline = config::Pipeline::ti2vid_two_stages;
    job.stage_1.steps = 2;
    job.stage_1.guidance.video.stg = 0;
    job.stage_1.guidance.audio.stg = 0;
    job.models.distilled_lora.path =
        test::source_dir() / "models/demo/ltx-demo-distilled-lora.safetensors";
    return job;
  }

  static void run(const config::Job& job, const pipeline::Ranks& ranks) {
    const auto outputs =
        ranks.is_driver() ? pipeline::Outputs::checked : pipeline::Outputs::ignored;
    auto prepared = ranks.agreed([&] {
      return pipeline::prepare_job({job, config::Origins()}, test::host(), outputs, ranks);
    });
    pipeline::run_job(prepared, test::host(), ranks);
    if (ranks.context != nullptr) ranks.world()->barrier("the metrics", 120);
  }
  // Bytes that all ranks read, over those of the job's files.
  static double reading(const config::Job& job, const pipeline::Ranks& ranks) {
    run(job, ranks);
    const auto metrics = nlohmann::json::parse(test::read_file(job.output.metrics));
    double bytes = 0;
    for (const auto& file :
         {job.models.checkpoint, job.models.spatial_upsampler, job.models.distilled_lora.path,
          job.models.text_encoder / "model.safetensors"}) {
      if (!file.empty()) bytes += static_cast<double>(std::filesystem::file_size(file));
    }
    return metrics.at("bytes_read_total").get<double>() / bytes;
  }

  test::TempDir own_;
  std::filesystem::path folder_;
  config::Job job_;
};

TEST_F(WeightsRanksTest, FilesAreReadOnceByAllRanksTogether) {
  for (const config::Job& job : {job_, two_stages()}) {
    const double share = reading(job, {&test::ranks()});
    EXPECT_LE(share, 1.05);
    EXPECT_GE(share, 0.5);  // files have parts that a job does not need
  }
}

// With a prompt and a negative prompt two ranks hold the whole text encoder.
TEST_F(WeightsRanksTest, RanksWithAPromptReadTheTextEncoderOnce) {
  config::Job job = two_stages();
  const double sharded = reading(job, {&test::ranks()});
  job.text.parallel = config::TextParallel::replicate;
  EXPECT_DOUBLE_EQ(reading(job, {&test::ranks()}), sharded);
}

TEST_F(WeightsRanksTest, OneRankReadsThemOnce) {
  if (test::ranks().is_driver()) {
    for (const config::Job& job : {job_, two_stages()}) EXPECT_LE(reading(job, {}), 1.05);
  }
  test::ranks().world().barrier("the driver's run", 120);
}

TEST_F(WeightsRanksTest, DamagedLoraOfStageTwoIsToldBeforeStageOne) {
  config::Job job = two_stages();
  const auto lora = loader::Checkpoint::open(job.models.distilled_lora.path);
  job.models.distilled_lora.path = folder_ / "damaged.safetensors";
  if (test::ranks().is_driver()) {
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, info] : lora->tensors()) tensors.emplace(name, lora->read(name));
    tensors.begin()->second.view({-1})[0] = std::nanf("");
    test::write_safetensors(job.models.distilled_lora.path, tensors);
  }
  test::ranks().world().barrier("file written", 60);
  try {
    run(job, {&test::ranks()});
    ADD_FAILURE() << "no error";
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("load_transformer"), HasSubstr("damaged.safetensors"),
                                    HasSubstr("NaN or infinity")));
  }
}

}  // namespace
}  // namespace flotilla
