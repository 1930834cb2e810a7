// Jobs in one process that keep their models, against the same jobs without: equal bytes whatever
// ran before, nothing read twice, and nothing left over from a job that failed.
#include "pipeline/residents.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pipeline/event_list.h"
#include "pipeline/jobs.h"
#include "support/compare.h"
#include "support/mpi_main.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using pipeline::Kept;
using ::testing::HasSubstr;

struct Result {
  pipeline::ClipLatents latents;
  int64_t bytes_read = 0;  // by this rank
};

class ResidentsTest : public ::testing::Test {
 protected:
  // In a folder of the driver's that all ranks know.
  ResidentsTest() : folder_(test::ranks().world().broadcast(own_.path().string(), 0)) {}
  ~ResidentsTest() override { test::ranks().world().barrier("the files were read", 120); }

  static config::Job boat(uint64_t seed = 1) {
    config::Job job = test::tiny_job();
    job.prompt = "a boat";
    job.seed = seed;
    job.video = {.width = 128, .height = 64, .num_frames = 9, .frame_rate = {24}};
    job.stage_2.parallel = config::Stage2Parallel::sp;
    job.sp.exchange_timeout_seconds = 120;
    return job;
  }
  static config::Job other() {
    config::Job job = boat(2);
    job.prompt = "a red circle";
    job.video.num_frames = 17;
    return job;
  }
  static config::Job two_stages() {
    config::Job job = boat(3);
    job.pipeline = config::Pipeline::ti2vid_two_stages;
    job.models.distilled_lora = style();
    job.stage_1.steps = 2;
    job.stage_1.guidance.video.stg = job.stage_1.guidance.audio.stg = 0;
    return job;
  }
  static config::Lora style() {
    return {.path = test::tiny_dir() / "ltx23-distilled-lora.safetensors"};
  }
  static config::Job with_loras(std::vector<config::Lora> loras) {
    config::Job job = boat();
    job.models.loras = std::move(loras);
    return job;
  }

  // The driver writes a copy of a file of the tiny model, each tensor changed.
  template <typename Change>
  std::filesystem::path write_copy(const std::string& from, const std::string& to,
                                   const Change& change) {
    if (test::ranks().is_driver()) {
      const auto file = test::open_tiny(from);
      std::map<std::string, at::Tensor> tensors;
      for (const auto& [name, info] : file->tensors()) tensors[name] = change(file->read(name));
      std::map<std::string, std::string> metadata;
      for (const char* key : {"config", "model_version"})
        if (const auto* text = file->metadata(key)) metadata[key] = *text;
      test::write_safetensors(folder_ / to, tensors, metadata);
    }
    test::ranks().world().barrier("file written", 60);
    return folder_ / to;
  }

  static pipeline::PreparedJob prepare(const config::Job& job,
                                       std::shared_ptr<pipeline::Residents> residents) {
    const pipeline::Ranks ranks = all_ranks();
    return ranks.agreed([&] {
      return pipeline::prepare_job({job, config::Origins()}, test::host(),
                                   pipeline::Outputs::ignored, ranks, {}, residents);
    });
  }
  static Result run(const config::Job& job, std::shared_ptr<pipeline::Residents> residents) {
    const auto prepared = prepare(job, std::move(residents));
    Result result{pipeline::run_latents(prepared, all_ranks())};
    result.bytes_read = prepared.files->bytes_read();
    return result;
  }
  static pipeline::Ranks all_ranks() { return {&test::ranks()}; }

  // Each job after those before it, in one process, against a run of its own.
  static void expect_equal_to_cold_runs(const std::vector<config::Job>& jobs) {
    const auto residents = std::make_shared<pipeline::Residents>();
    for (size_t i = 0; i < jobs.size(); ++i) {
      SCOPED_TRACE(i);
      expect_equal(run(jobs[i], residents), run(jobs[i], nullptr));
    }
  }
  static void expect_equal(const Result& actual, const Result& expected) {
    EXPECT_TRUE(test::same_bytes(actual.latents.video, expected.latents.video));
    EXPECT_TRUE(test::same_bytes(actual.latents.audio, expected.latents.audio));
  }

  test::TempDir own_;
  std::filesystem::path folder_;
};

TEST_F(ResidentsTest, JobsAfterEachOtherEqualColdRuns) {
  expect_equal_to_cold_runs({boat(), other(), boat()});
}

TEST_F(ResidentsTest, LorasComeAndGo) {
  config::Lora weak = style();
  weak.path = write_copy("ltx23-distilled-lora.safetensors", "weak.safetensors",
                         [](const at::Tensor& factor) { return factor * 0.5; });
  const auto none = with_loras({});
  const auto a = with_loras({style()});
  const auto b = with_loras({weak});
  expect_equal_to_cold_runs({none, a, b, with_loras({style(), weak}), a, none});
}

// Stage 2 fuses a LoRA that the next job's stage 1 must not have.
TEST_F(ResidentsTest, SecondPipelineStartsWithTheLorasOfItsFirstStage) {
  expect_equal_to_cold_runs({two_stages(), two_stages(), boat(), two_stages()});
}

TEST_F(ResidentsTest, ExactJobsOfOtherPrecisionsFollowEachOther) {
  config::Job narrow = boat();
  narrow.precision = config::Precision::fp8_cast;
  expect_equal_to_cold_runs({boat(), narrow, boat()});
}

TEST_F(ResidentsTest, WarmJobReadsNothing) {
  for (const config::Job& job : {boat(), two_stages()}) {
    const auto residents = std::make_shared<pipeline::Residents>();
    const Result cold = run(job, residents);
    EXPECT_GT(cold.bytes_read, 0);
    config::Job again = job;
    again.seed = 7;
    EXPECT_EQ(run(again, residents).bytes_read, 0);
    again.prompt = "another boat";  // the text encoder is there
    EXPECT_EQ(run(again, residents).bytes_read, 0);
  }
}

TEST_F(ResidentsTest, NothingIsKeptWithoutResidents) {
  const auto prepared = prepare(boat(), nullptr);
  pipeline::run_latents(prepared, all_ranks());
  for (const Kept kind : {Kept::text_encoder, Kept::transformer, Kept::upsampler})
    EXPECT_FALSE(prepared.residents->keeps(kind));
}

TEST_F(ResidentsTest, FileThatChangedIsReadAnew) {
  config::Job job = boat();
  const auto keep = [](const at::Tensor& tensor) { return tensor; };
  job.models.spatial_upsampler =
      write_copy("ltx23-spatial-upscaler-x2.safetensors", "upsampler.safetensors", keep);
  const auto residents = std::make_shared<pipeline::Residents>();
  const Result before = run(job, residents);
  test::ranks().world().barrier("the first file was read", 60);
  write_copy(
      "ltx23-spatial-upscaler-x2.safetensors", "upsampler.safetensors",
      [](const at::Tensor& tensor) { return tensor.is_floating_point() ? tensor * 1.5 : tensor; });
  const Result after = run(job, residents);
  EXPECT_FALSE(test::same_bytes(after.latents.video, before.latents.video));
  expect_equal(after, run(job, nullptr));
}

TEST_F(ResidentsTest, JobThatFailsLeavesTheNextOneWhole) {
  const auto residents = std::make_shared<pipeline::Residents>();
  const config::Job job = with_loras({style()});
  const Result expected = run(job, residents);

  config::Job damaged = two_stages();
  damaged.models.distilled_lora.path =
      write_copy("ltx23-distilled-lora.safetensors", "damaged.safetensors",
                 [](const at::Tensor& factor) { return at::full_like(factor, std::nanf("")); });
  EXPECT_THROW(run(damaged, residents), Error);
  expect_equal(run(job, residents), expected);

  config::Job too_long = job;
  too_long.text.strict_length = true;
  for (int i = 0; i < 2000; ++i) too_long.prompt += " word";
  EXPECT_THROW(run(too_long, residents), Error);
  config::Job missing = job;
  missing.models.checkpoint = folder_ / "none.safetensors";
  EXPECT_THROW(run(missing, residents), Error);
  const Result again = run(job, residents);
  expect_equal(again, expected);
  EXPECT_EQ(again.bytes_read, 0);
}

// A job that is too large for any machine is only planned here.
TEST_F(ResidentsTest, ModelsThatAPhaseDoesNotUseMakeRoomForIt) {
  const auto residents = std::make_shared<pipeline::Residents>();
  run(boat(), residents);
  ASSERT_TRUE(residents->keeps(Kept::text_encoder));
  const pipeline::Ranks ranks = all_ranks();
  auto small = prepare(boat(), residents);
  residents->begin(small.job, *small.files, small.plan);
  residents->make_room("stage_2", at::kCPU, ranks);
  EXPECT_TRUE(residents->keeps(Kept::text_encoder));

  config::Job huge = boat();
  huge.stage_1.parallel = config::Stage1Parallel::none;
  huge.stage_2.parallel = config::Stage2Parallel::none;
  huge.video = {.width = 32768, .height = 32768, .num_frames = 4801, .frame_rate = {24}};
  auto prepared = prepare(huge, residents);
  residents->begin(prepared.job, *prepared.files, prepared.plan);
  residents->make_room("stage_2", at::kCPU, ranks);
  for (const Kept kind : {Kept::text_encoder, Kept::upsampler, Kept::video_decoder})
    EXPECT_FALSE(residents->keeps(kind));
  EXPECT_TRUE(residents->keeps(Kept::transformer));
  residents->make_room("decode_video", at::kCPU, ranks);
  EXPECT_FALSE(residents->keeps(Kept::transformer));
  run(boat(), residents);
}

TEST_F(ResidentsTest, MetricsSayWhetherAJobWasWarm) {
  const auto residents = std::make_shared<pipeline::Residents>();
  config::Job job = boat();
  job.output.path = folder_ / "clip.y4m";
  job.output.metrics = folder_ / "clip.json";
  job.output.overwrite = true;
  const auto metrics = [&] {
    auto prepared = prepare(job, residents);
    pipeline::run_job(prepared, test::host(), all_ranks());
    test::ranks().world().barrier("the metrics", 60);
    return nlohmann::json::parse(test::read_file(job.output.metrics));
  };
  const auto cold = metrics();
  EXPECT_FALSE(cold.at("warm").get<bool>());
  EXPECT_GT(cold.at("bytes_read_total").get<int64_t>(), 0);
  const std::string frames = test::read_file(job.output.path);
  test::ranks().world().barrier("the first clip", 60);
  const auto warm = metrics();
  EXPECT_TRUE(warm.at("warm").get<bool>());
  EXPECT_EQ(warm.at("bytes_read_total").get<int64_t>(), 0);
  EXPECT_EQ(test::read_file(job.output.path), frames);
  test::ranks().world().barrier("the second clip", 60);
}

// The driver makes the pictures while the others wait. The decoder comes once, whether the process
// keeps it or not, to the driver alone or (of two tiles) to all ranks.
TEST_F(ResidentsTest, PreviewsOfManyRanksChangeNoByte) {
  config::Job job = boat();
  job.output.path = folder_ / "clip.y4m";
  job.output.overwrite = true;
  const auto make = [&](int64_t every, std::shared_ptr<pipeline::Residents> residents) {
    auto prepared = prepare(job, std::move(residents));
    test::EventList events;
    pipeline::Host host = test::host();
    host.events = &events;
    host.preview_every = every;
    pipeline::run_job(prepared, host, all_ranks());
    test::ranks().world().barrier("the clip", 60);
    const std::string clip = test::read_file(job.output.path);
    test::ranks().world().barrier("the clip was read", 60);
    const size_t expected = every > 0 && test::ranks().is_driver() ? 4 : 0;
    EXPECT_EQ(events.of_kind("preview").size(), expected);
    return std::pair(clip, prepared.files->bytes_read());
  };
  EXPECT_EQ(make(2, nullptr), make(0, nullptr));
  job.video.width = 256;
  job.decoder.tiles.grid = config::TileGrid{1, 1, 2};
  const auto expected = make(0, nullptr);
  const auto residents = std::make_shared<pipeline::Residents>();
  EXPECT_EQ(make(2, residents), expected);
  EXPECT_EQ(make(2, residents), std::pair(expected.first, int64_t{0}));
}

TEST_F(ResidentsTest, DecoderOfPreviewsStaysThroughTheStages) {
  const auto residents = std::make_shared<pipeline::Residents>();
  config::Job huge = boat();
  huge.stage_1.parallel = config::Stage1Parallel::none;
  huge.stage_2.parallel = config::Stage2Parallel::none;
  huge.video = {.width = 32768, .height = 32768, .num_frames = 4801, .frame_rate = {24}};
  const auto prepared = prepare(huge, residents);
  for (const bool previews : {true, false}) {
    residents->begin(prepared.job, *prepared.files, prepared.plan, previews);
    residents->put(Kept::video_decoder, "decoder", std::make_shared<int>());
    residents->make_room("stage_1", at::kCPU, all_ranks());
    EXPECT_EQ(residents->keeps(Kept::video_decoder), previews);
  }
}

TEST_F(ResidentsTest, DriverAloneReadsHeaders) {
  const auto prepared = prepare(two_stages(), nullptr);
  const int64_t bytes = prepared.files->header_bytes_read();
  if (test::ranks().is_driver()) {
    EXPECT_GT(bytes, 0);
  } else {
    EXPECT_EQ(bytes, 0);
  }
  int reads = 0;
  const auto read = parallel::headers_from_driver(test::ranks().world(), [&](const auto& path) {
    ++reads;
    return loader::read_headers(path);
  });
  const auto file = loader::Checkpoint::open(two_stages().models.checkpoint, read);
  EXPECT_EQ(reads, test::ranks().is_driver() ? 1 : 0);
  EXPECT_EQ(file->digest(), prepared.files->transformer()->digest());
}

TEST_F(ResidentsTest, DamagedFileIsOneErrorOfAllRanks) {
  config::Job job = boat();
  job.models.spatial_upsampler = folder_ / "cut.safetensors";
  if (test::ranks().is_driver()) test::write_file(folder_ / "cut.safetensors", "1234567");
  test::ranks().world().barrier("file written", 60);
  try {
    prepare(job, nullptr);
    FAIL() << "accepted";
  } catch (const comm::AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr("cut.safetensors\" is not a usable safetensors file"));
    EXPECT_THAT(error.what(), Not(HasSubstr("rank")));
  }
}

// The others wait in the opening of the first file, which the rank at fault never reaches.
TEST_F(ResidentsTest, RankThatFailsBeforeTheFilesLeavesNobodyWaiting) {
  FLOTILLA_NEEDS_RANKS(2);
  const pipeline::Ranks ranks = all_ranks();
  EXPECT_THROW(ranks.agreed([&] {
    if (ranks.is_driver()) fail(ErrorKind::output, "no place for the clip");
    const pipeline::ModelFiles files(boat().models, {.ranks = ranks});
  }),
               comm::AgreedError);
}

}  // namespace
}  // namespace flotilla
