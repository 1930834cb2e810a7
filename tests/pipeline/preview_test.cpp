// Previews: pictures of the right steps and sizes, a job that keeps its bytes, a decoder that is
// loaded once, and one that fails.
#include "pipeline/preview.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "io/image_reader.h"
#include "io/latents_file.h"
#include "pipeline/event_list.h"
#include "pipeline/job_fixture.h"
#include "support/compare.h"
#include "support/safetensors_file.h"

namespace flotilla {
namespace {

namespace names = io::latents;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class PreviewTest : public test::JobTest {
 protected:
  struct Made {
    std::string clip;
    io::LatentsFile latents;
    std::vector<json> previews;
    int64_t bytes_read = 0;
  };
  // 160 x 64 in stage 1, 320 x 128 in stage 2, with these keys changed. `every` 0: no previews.
  using Changes = std::vector<std::pair<std::string, std::string>>;
  Made make(int64_t every, const Changes& changes = {}) {
    std::vector<config::Override> overrides = {{"video.width", "320", "", false},
                                               {"video.height", "128", "", false}};
    for (const auto& [key, value] : changes) overrides.push_back({key, value, "", false});
    test::EventList events;
    pipeline::Host host = test::host();
    host.events = &events;
    host.preview_every = every;
    auto prepared = pipeline::prepare_job(
        config::load_job_text(job_text("distilled", "", "seed: 3\n" + outputs(", overwrite: true")),
                              "job.yaml", dir_.path(), overrides),
        host);
    pipeline::run_job(prepared, host);
    EXPECT_FALSE(prepared.residents->keeps(pipeline::Kept::video_decoder));
    return {test::read_file(dir_ / "clip.y4m"), io::read_latents(dir_ / "clip.h5"),
            events.of_kind("preview"), prepared.files->bytes_read()};
  }
  static void expect_equal(const Made& actual, const Made& expected) {
    EXPECT_EQ(actual.clip, expected.clip);
    ASSERT_EQ(actual.latents.tensors.size(), expected.latents.tensors.size());
    for (const auto& [name, tensor] : expected.latents.tensors)
      EXPECT_TRUE(test::same_bytes(actual.latents.tensors.at(name), tensor)) << name;
    EXPECT_EQ(actual.latents.job_yaml, expected.latents.job_yaml);
  }
  // uint8 [H, W, 3]
  at::Tensor picture_of(const json& preview) {
    EXPECT_EQ(preview.at("format"), "png");
    test::write_file(dir_ / "preview.png",
                     test::from_base64(preview.at("data").get<std::string>()));
    return io::read_image(dir_ / "preview.png");
  }
  static std::vector<std::pair<std::string, int64_t>> places(const Made& made) {
    std::vector<std::pair<std::string, int64_t>> places;
    for (const json& preview : made.previews)
      places.emplace_back(preview.at("stage"), preview.at("step"));
    return places;
  }
};

TEST_F(PreviewTest, PicturesComeAfterEverySoManySteps) {
  const Made none = make(0);
  EXPECT_THAT(none.previews, IsEmpty());
  const Made made = make(3);
  ASSERT_THAT(places(made), ElementsAre(Pair("stage_1", 3), Pair("stage_1", 6)));
  // The last step has the clip itself.
  EXPECT_THAT(places(make(8)), IsEmpty());
  for (const json& preview : made.previews) {
    EXPECT_EQ(preview.at("steps"), 8);
    EXPECT_EQ(preview.at("width"), 160);
    EXPECT_EQ(preview.at("height"), 64);
    EXPECT_GT(preview.at("at_s").get<double>(), 0);
    const at::Tensor picture = picture_of(preview);
    EXPECT_EQ(picture.sizes().vec(), (std::vector<int64_t>{64, 160, 3}));
    EXPECT_GT((picture.amax() - picture.amin()).item<int>(), 1);
  }
  EXPECT_NE(made.previews[0].at("data"), made.previews[1].at("data"));
  expect_equal(made, none);
  EXPECT_EQ(made.bytes_read, none.bytes_read);
}

TEST_F(PreviewTest, LargePicturesAreScaledDownInEveryStage) {
  const Changes exact = {{"reproducible", "world"}};
  const Made made = make(2, exact);
  ASSERT_THAT(places(made), ElementsAre(Pair("stage_1", 2), Pair("stage_1", 4), Pair("stage_1", 6),
                                        Pair("stage_2", 2)));
  const json& last = made.previews.back();
  EXPECT_EQ(last.at("width"), 256);
  EXPECT_EQ(last.at("height"), 102);
  EXPECT_LT(last.dump().size(), size_t{1} << 20);
  EXPECT_EQ(picture_of(last).sizes().vec(), (std::vector<int64_t>{102, 256, 3}));
  expect_equal(made, make(0, exact));
}

TEST_F(PreviewTest, GuidedAndTiledStagesHaveThemToo) {
  const Changes guided = {{"pipeline", "ti2vid_two_stages"},
                          {"models.distilled_lora.path",
                           (test::tiny_dir() / "ltx23-distilled-lora.safetensors").string()},
                          {"stage_1.steps", "2"},
                          {"stage_2.parallel", "tdp"},
                          {"stage_2.tiles.grid", "[1, 1, 2]"}};
  const Made made = make(1, guided);
  EXPECT_THAT(places(made), ElementsAre(Pair("stage_1", 1), Pair("stage_2", 1)));
  expect_equal(made, make(0, guided));
}

// A decoder whose numbers run away: no pictures, one warning, and the job goes on to its own
// decode.
TEST_F(PreviewTest, PictureThatFailsCostsThePicturesOnly) {
  const Made whole = make(0);
  const auto file = test::open_tiny("ltx23-dev.safetensors");
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, info] : file->tensors()) {
    tensors[name] = file->read(name);
    if (name == "vae.decoder.conv_out.conv.weight") tensors[name].fill_(3e38);
  }
  test::write_safetensors(
      dir_ / "wild.safetensors", tensors,
      {{"config", *file->metadata("config")}, {"model_version", *file->metadata("model_version")}});
  ::testing::internal::CaptureStderr();
  try {
    make(1, {{"models.checkpoint", (dir_ / "wild.safetensors").string()}});
    ADD_FAILURE() << "decoded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::non_finite);
    EXPECT_THAT(error.what(), HasSubstr("decode_video"));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t warning = log.find("the job goes on without previews");
  ASSERT_NE(warning, std::string::npos) << log;
  EXPECT_EQ(log.find("the job goes on without previews", warning + 1), std::string::npos) << log;
  EXPECT_TRUE(test::same_bytes(io::read_latents(dir_ / "clip.h5").tensors.at(names::kStage2Video),
                               whole.latents.tensors.at(names::kStage2Video)));
}

TEST_F(PreviewTest, ForecastHasTheDecoderInTheStages) {
  config::Job job = test::tiny_two_stage_job();
  job.prompt = "a boat";
  const test::PieceRunner runner(job);
  const auto bytes_of = [&](bool previews, const char* phase) {
    const auto forecast =
        pipeline::make_forecast(runner.job, runner.files, runner.plan, {.previews = previews});
    for (const auto& part : forecast.phase(phase).host)
      if (part.what == "weights of the video decoder") return part.bytes;
    return int64_t{0};
  };
  const int64_t decoder = bytes_of(false, "decode_video");
  EXPECT_GT(decoder, 0);
  for (const char* phase : {"stage_1", "upsample", "fuse_loras", "stage_2"}) {
    EXPECT_EQ(bytes_of(false, phase), 0) << phase;
    EXPECT_EQ(bytes_of(true, phase), decoder) << phase;
  }
  EXPECT_EQ(bytes_of(true, "text"), 0);
}

}  // namespace
}  // namespace flotilla
