// Jobs whose transformer is brought block by block: the same latents, and what plan and forecast
// say of it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/latents_file.h"
#include "pipeline/forecast.h"
#include "pipeline/job_fixture.h"
#include "support/compare.h"
#include "support/device.h"

namespace flotilla {
namespace {

using config::Offload;
using ::testing::Contains;
using ::testing::HasSubstr;
using transformer::WeightHome;

class OffloadTest : public test::JobTest {
 protected:
  // The latents and the plan of a job on the CPU.
  struct Made {
    at::Tensor video, audio;
    std::vector<std::string> plan;
  };
  Made make(const std::string& lines) const {
    const auto prepared =
        run(job_text("distilled", "", "seed: 5\n" + lines + outputs(", overwrite: true")));
    const auto tensors = io::read_latents(dir_ / "clip.h5").tensors;
    return {tensors.at(io::latents::kStage2Video), tensors.at(io::latents::kStage2Audio),
            prepared.plan.describe()};
  }

  // A forecast for a GPU of 24 GiB, which need not be there.
  static pipeline::Forecast forecast_on_gpu(config::Job job, Offload offload) {
    job.device = config::Device::cuda;
    job.offload = offload;
    const pipeline::ModelFiles files(job.models);
    job = pipeline::with_model_defaults(std::move(job), files.model_version());
    const pipeline::RankDevices devices{at::Device(at::kCUDA, 0), {0}, int64_t{24} << 30};
    return pipeline::make_forecast(job, files, pipeline::make_plan(job, files, 1, devices), {});
  }
  static int64_t bytes_of(const std::vector<pipeline::MemoryPart>& parts, const std::string& what) {
    for (const auto& part : parts)
      if (part.what == what) return part.bytes;
    return 0;
  }
};

TEST_F(OffloadTest, LatentsAreThoseOfWeightsInMemory) {
  const Made expected = make("");
  const Made from_disk = make("offload: disk\n");
  EXPECT_TRUE(test::same_bytes(from_disk.video, expected.video));
  EXPECT_TRUE(test::same_bytes(from_disk.audio, expected.audio));
  EXPECT_THAT(from_disk.plan, Contains(HasSubstr("stay in the file")));
  EXPECT_THAT(expected.plan, Not(Contains(HasSubstr("offload"))));
}

TEST_F(OffloadTest, CpuHasNothingToBringFromItself) {
  auto job = test::demo_job("a red circle", 1);
  job.offload = Offload::cpu;
  const test::PieceRunner runner(job);
  EXPECT_EQ(runner.plan.weight_home, WeightHome::device);
  EXPECT_THAT(runner.plan.warnings, Contains(HasSubstr("changes nothing on a CPU")));
  EXPECT_EQ(runner.plan.held_weights.device_bytes, runner.plan.weight_bytes);
}

TEST_F(OffloadTest, ForecastTellsWhereTheWeightsAre) {
  const config::Job job = test::demo_job("a red circle", 1);
  const std::string on_device = "weights of the transformer";
  const std::string on_host = "weights of the transformer on the host";
  const auto none = forecast_on_gpu(job, Offload::none).phase("stage_2");
  const int64_t all = bytes_of(none.device, on_device);
  EXPECT_GT(all, 0);
  EXPECT_EQ(bytes_of(none.host, on_host), 0);
  const auto host = forecast_on_gpu(job, Offload::cpu).phase("stage_2");
  EXPECT_LT(bytes_of(host.device, on_device), all);
  EXPECT_EQ(bytes_of(host.host, on_host), all);
  const auto disk = forecast_on_gpu(job, Offload::disk).phase("stage_2");
  EXPECT_LT(bytes_of(disk.device, on_device), bytes_of(host.device, on_device));
  EXPECT_LT(bytes_of(disk.host, on_host), all);
  EXPECT_LT(disk.device_bytes(), none.device_bytes());
}

TEST_F(OffloadTest, ForecastOfAHostCountsTwoBlocks) {
  auto job = test::demo_job("a red circle", 1);
  const auto stage_of = [&](Offload offload) {
    job.offload = offload;
    const test::PieceRunner runner(job);
    return pipeline::make_forecast(runner.job, runner.files, runner.plan, {}).phase("stage_1");
  };
  EXPECT_LT(stage_of(Offload::disk).host_bytes(), stage_of(Offload::none).host_bytes());
}

// Sums in other orders where LoRAs are fused on the host.
TEST_F(OffloadTest, GpuMakesTheSameLatents) {
  FLOTILLA_REQUIRE_GPU();
  const auto latents_of = [](config::Job job, Offload offload) {
    job.prompt = "a boat";
    job.device = config::Device::cuda;
    job.graphs = config::Graphs::off;
    job.video = {.width = 128, .height = 64, .num_frames = 9, .frame_rate = {24}};
    job.offload = offload;
    test::PieceRunner runner(job);
    pipeline::RunState state;
    return job.pipeline == config::Pipeline::distilled
               ? pipeline::run_distilled(runner.session(), 1, state)
               : pipeline::run_two_stages(runner.session(), 1, state);
  };
  const auto expect_near = [&](const config::Job& job, Offload offload, double tolerance) {
    const auto actual = latents_of(job, offload);
    const auto expected = latents_of(job, Offload::none);
    EXPECT_TRUE(test::all_close(actual.video, expected.video, tolerance));
    EXPECT_TRUE(test::all_close(actual.audio, expected.audio, tolerance));
  };
  expect_near(test::tiny_job(), Offload::cpu, 1e-5);
  expect_near(test::tiny_job(), Offload::disk, 1e-5);
  expect_near(test::tiny_two_stage_job(), Offload::cpu, 1e-3);
}

TEST_F(OffloadTest, LackOfMemoryMentionsIt) {
  for (const char* phase : {"load_transformer", "stage_1", "stage_2", "fuse_loras"})
    EXPECT_THAT(std::string(pipeline::memory_advice(phase)), HasSubstr("offload: cpu or disk"));
}

}  // namespace
}  // namespace flotilla
