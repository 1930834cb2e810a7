// Stop and resume on one rank: at every safe point of a run, which then goes on to the same bytes;
// and what checkpoints are refused.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>

#include "io/hdf5_file.h"
#include "io/latents_file.h"
#include "pipeline/job_fixture.h"
#include "support/compare.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
namespace names = io::latents;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kNever = std::numeric_limits<int>::max();

class ResumeTest : public test::JobTest {
 protected:
  static std::string distilled(const std::string& more = "") {
    return job_text("distilled", "", "seed: 3\n" + more);
  }
  // Guidance that reuses a result, so that the checkpoint has one.
  static std::string two_stages(const std::string& more = "") {
    const std::string lora =
        fmt::format("  distilled_lora: {{path: {}/ltx23-distilled-lora.safetensors}}\n",
                    test::tiny_dir().string());
    return job_text(
        "ti2vid_two_stages", lora,
        "seed: 3\nstage_1: {steps: 3, guidance: {video: {stg_blocks: [1], skip_step: 1}, "
        "audio: {stg_blocks: [1], skip_step: 1}}}\n" +
            more);
  }
  static std::string checkpoint(const std::string& more = "") {
    return fmt::format("checkpoint: {{path: state.h5{}}}\n", more);
  }

  struct End {
    std::string stopped;  // the error's text; empty: it ran to its end
    int polls = 0;
  };
  // Runs the job; at its `stop_at`-th look for a signal, counted from 1, one is there.
  End run_until(const std::string& text, int stop_at) const {
    End end;
    const auto loaded = load(text);
    pipeline::RunControl control;
    control.stop.signal = [&] { return ++end.polls == stop_at ? SIGUSR1 : 0; };
    control.resume = pipeline::find_checkpoint(loaded.job);
    auto prepared = pipeline::prepare_job(loaded, test::host());
    try {
      pipeline::run_job(prepared, test::host(), {}, control);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::stopped) throw;
      end.stopped = error.what();
    }
    return end;
  }

  // Everything that a run leaves.
  struct Made {
    std::map<std::string, at::Tensor> tensors;
    std::string clip;
    std::string sound;
  };
  Made made() const {
    return {io::read_latents(dir_ / "clip.h5").tensors, test::read_file(dir_ / "clip.y4m"),
            test::read_file(dir_ / "clip.wav")};
  }
  static void expect_equal(const Made& actual, const Made& expected) {
    ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors)
      EXPECT_TRUE(test::same_bytes(actual.tensors.at(name), tensor)) << name;
    EXPECT_TRUE(actual.clip == expected.clip);
    EXPECT_TRUE(actual.sound == expected.sound);
  }
  void remove_outputs() const {
    for (const char* name : {"clip.y4m", "clip.wav", "clip.h5", "clip.json"})
      fs::remove(dir_ / name);
  }

  // Stops the job once at each of its safe points and lets it go on.
  void expect_equal_from_everywhere(const std::string& job) {
    run(job + outputs());
    const Made expected = made();
    remove_outputs();
    const int polls = run_until(job + outputs() + checkpoint(), kNever).polls;
    expect_equal(made(), expected);
    for (int at = 1; at <= polls; ++at) {
      SCOPED_TRACE(at);
      remove_outputs();
      fs::remove(dir_ / "state.h5");
      const End first = run_until(job + outputs() + checkpoint(), at);
      EXPECT_THAT(first.stopped, AllOf(HasSubstr("stopped by SIGUSR1 "), HasSubstr("--resume '")));
      EXPECT_FALSE(fs::exists(dir_ / "clip.y4m") || fs::exists(dir_ / "clip.h5"));
      EXPECT_EQ(run_until(job + outputs() + checkpoint(", resume: must"), kNever).stopped, "");
      expect_equal(made(), expected);
    }
  }

  Error resume_refusal(const std::string& text) const {
    try {
      run_until(text, kNever);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorKind::internal, "accepted");
  }

  void damage(const std::string& name) const {
    std::string bytes = test::read_file(dir_ / name);
    test::write_file(dir_ / name, bytes.substr(0, bytes.size() / 2));
  }
};

TEST_F(ResumeTest, DistilledJobGoesOnFromEverySafePoint) {
  expect_equal_from_everywhere(
      distilled("decoder: {tiling: {temporal: {size: 16, overlap: 8}}}\n"));
}

TEST_F(ResumeTest, GuidedJobGoesOnFromEverySafePoint) {
  expect_equal_from_everywhere(two_stages());
}

// The same with images, which are encoded again, and in bf16, which float32 has to carry.
TEST_F(ResumeTest, HalfPrecisionAndImagesSurvive) {
  std::string job =
      distilled(fmt::format("images: [{{path: {}/image.png, frame: 0, strength: 0.8, crf: 0}}]\n",
                            test::tiny_dir().string()));
  job.replace(job.find("precision: fp32"), 15, "precision: bf16");
  expect_equal_from_everywhere(job);
}

// Stopped again and again, one safe point further each time.
TEST_F(ResumeTest, ManyStopsGiveTheSameBytes) {
  run(distilled(outputs()));
  const Made expected = made();
  remove_outputs();
  int starts = 1;
  while (!run_until(distilled(outputs() + checkpoint(", resume: auto")), 4).stopped.empty()) {
    ASSERT_LT(++starts, 30);
  }
  EXPECT_GT(starts, 3);
  expect_equal(made(), expected);
}

TEST_F(ResumeTest, CheckpointsComeWhenTheyAreDue) {
  std::vector<std::string> places;
  const auto loaded = load(distilled(outputs() + checkpoint(", every_steps: 3")));
  auto prepared = pipeline::prepare_job(loaded, test::host());
  pipeline::RunControl control;
  control.stop.signal = [&] {
    if (fs::exists(dir_ / "state.h5")) {
      const auto state = pipeline::take_state(io::read_latents(dir_ / "state.h5"));
      const std::string place = pipeline::place_of(state);
      if (places.empty() || places.back() != place) places.push_back(place);
    }
    return 0;
  };
  pipeline::run_job(prepared, test::host(), {}, control);
  EXPECT_THAT(places, ::testing::ElementsAre("before stage_1", "after step 3 of stage_1",
                                             "after step 6 of stage_1", "before upsample",
                                             "before stage_2", "before decode"));
  // The one before the last.
  const auto previous = pipeline::take_state(io::read_latents(dir_ / "state_prev.h5"));
  EXPECT_EQ(pipeline::place_of(previous), "before stage_2");
}

TEST_F(ResumeTest, DrawnSeedIsThatOfTheCheckpoint) {
  std::string job = distilled(outputs() + checkpoint(", resume: auto"));
  job.erase(job.find("seed: 3\n"), 8);
  EXPECT_NE(run_until(job, 8).stopped, "");
  const auto found = pipeline::find_checkpoint(load(job).job);
  ASSERT_TRUE(found);
  const Error error = resume_refusal(job);  // with a new seed: the caller has to take the old one
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("seed is {} there", found->file.seed)));
}

TEST_F(ResumeTest, OtherJobsAreRefusedByTheKeysThatDiffer) {
  EXPECT_NE(run_until(distilled(outputs() + checkpoint()), 8).stopped, "");
  std::string other = distilled(outputs() + checkpoint(", resume: must"));
  other.replace(other.find("a boat"), 6, "a ship");
  other.replace(other.find("seed: 3"), 7, "seed: 4");
  const Error error = resume_refusal(other);
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("is of another job: prompt is "), HasSubstr("a boat"),
                                  HasSubstr("a ship"), HasSubstr("seed is 3 there and 4 here"),
                                  Not(HasSubstr("video"))));
  // Of other models.
  std::string lora = distilled(outputs() + checkpoint(", resume: auto"));
  lora.insert(lora.find("prompt:"),
              fmt::format("  loras: [{{path: {}/ltx23-distilled-lora.safetensors}}]\n",
                          test::tiny_dir().string()));
  EXPECT_THAT(resume_refusal(lora).what(),
              AllOf(HasSubstr("models.loras[0].strength is empty there and 1 here"),
                    HasSubstr("models (or LoRAs) have the digest")));
  // What changes no latent may differ.
  const std::string silent =
      distilled("output: {path: other.y4m, audio: false}\nthreads: 2\nlimits: {max_hours: 9}\n" +
                checkpoint(", resume: must, every_steps: 2"));
  EXPECT_EQ(run_until(silent, kNever).stopped, "");
}

TEST_F(ResumeTest, MissingCheckpointIsAnErrorOnlyWhereOneMustBe) {
  const Error error = resume_refusal(distilled(outputs() + checkpoint(", resume: must")));
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr("there is no checkpoint"));
  EXPECT_EQ(run_until(distilled(outputs() + checkpoint(", resume: auto")), kNever).stopped, "");
}

TEST_F(ResumeTest, DamagedCheckpointGivesWayToTheOneBefore) {
  run(distilled(outputs()));
  const Made expected = made();
  remove_outputs();
  const std::string job = distilled(outputs() + checkpoint(", every_steps: 1, resume: auto"));
  EXPECT_NE(run_until(job, 9).stopped, "");
  ASSERT_TRUE(fs::exists(dir_ / "state_prev.h5"));
  damage("state.h5");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_until(job, kNever).stopped, "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("going on from the one before it"));
  expect_equal(made(), expected);
}

TEST_F(ResumeTest, OnlyDamagedCheckpointsAreRefusedUnlessTheyMayBeReplaced) {
  EXPECT_NE(run_until(distilled(outputs() + checkpoint()), 8).stopped, "");
  damage("state.h5");
  fs::remove(dir_ / "state_prev.h5");
  for (const char* resume : {"auto", "must"}) {
    const std::string job = distilled(outputs() + checkpoint(fmt::format(", resume: {}", resume)));
    const Error error = resume_refusal(job);
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr("state.h5"));
  }
  const std::string job = distilled(outputs(", overwrite: true") + checkpoint(", resume: auto"));
  EXPECT_EQ(run_until(job, kNever).stopped, "");
}

// A latents file is no checkpoint, and a checkpoint that was changed by hand is not believed.
TEST_F(ResumeTest, FilesThatAreNoCheckpointsAreRefused) {
  run(distilled(outputs()));
  fs::copy_file(dir_ / "clip.h5", dir_ / "state.h5");
  remove_outputs();
  const std::string job = distilled(outputs() + checkpoint(", resume: must"));
  EXPECT_THAT(resume_refusal(job).what(), HasSubstr("holds no state of a stopped run"));
  const auto with = [&](const auto& change) {
    fs::remove(dir_ / "state.h5");
    fs::remove(dir_ / "state_prev.h5");
    EXPECT_NE(run_until(distilled(outputs() + checkpoint()), 8).stopped, "");
    io::LatentsFile file = io::read_latents(dir_ / "state.h5");
    change(file);
    io::write_latents(dir_ / "state.h5", file, true);
    fs::remove(dir_ / "state_prev.h5");
    const Error error = resume_refusal(job);
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    return std::string(error.what());
  };
  EXPECT_THAT(with([](auto& file) { file.tensors.erase(names::kVideoContext); }),
              HasSubstr("lacks \"text/video_context\""));
  EXPECT_THAT(with([](auto& file) { file.resume_texts["stage"] = "stage_2"; }),
              HasSubstr("its results reach up to stage_1"));
  EXPECT_THAT(with([](auto& file) { file.resume_integers["step"] = 99; }),
              HasSubstr("after 99 steps"));
  EXPECT_THAT(with([](auto& file) { file.tensors.erase("resume/video"); }), HasSubstr("\"video\""));
  EXPECT_THAT(with([](auto& file) {
                file.tensors["resume/video"] = at::zeros({1, 3, 128});
              }),
              HasSubstr("the saved video tokens have shape"));
}

TEST_F(ResumeTest, ExistingCheckpointIsNotReplacedUnasked) {
  EXPECT_NE(run_until(distilled(outputs() + checkpoint()), 8).stopped, "");
  const Error error = refusal(distilled(outputs() + checkpoint()));
  EXPECT_EQ(error.kind(), ErrorKind::output);
  EXPECT_THAT(error.what(), HasSubstr("state.h5\" exists"));
}

TEST_F(ResumeTest, StopFileAndTimeLimitStopTheRun) {
  const auto polled = [&](const std::string& limits, const std::function<void(int)>& at_poll) {
    const auto loaded = load(distilled(outputs() + checkpoint(", resume: auto") + limits));
    auto prepared = pipeline::prepare_job(loaded, test::host());
    pipeline::RunControl control;
    int polls = 0;
    control.stop.signal = [&] {
      at_poll(++polls);
      return 0;
    };
    control.stop.start -= std::chrono::minutes(50);
    try {
      pipeline::run_job(prepared, test::host(), {}, control);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string by_file = polled("limits: {stop_file: stop}\n", [&](int poll) {
    if (poll == 8) test::write_file(dir_ / "stop", "");
  });
  EXPECT_THAT(by_file, AllOf(HasSubstr("stopped by the stop file"), HasSubstr("of stage_1")));
  // It would stop the next run as well.
  const Error error =
      refusal(distilled(outputs() + checkpoint(", resume: auto") + "limits: {stop_file: stop}\n"));
  EXPECT_EQ(error.kind(), ErrorKind::config);
  EXPECT_THAT(error.what(), HasSubstr("is there already"));
  const auto nothing = [](int) {};
  EXPECT_THAT(polled("limits: {max_hours: 0.5}\n", nothing), HasSubstr("limits.max_hours (0.5)"));
  EXPECT_EQ(polled("limits: {max_hours: 2}\n", nothing), "");
}

// A disk that fills up while a checkpoint is written: an output error, and the one before is whole.
TEST_F(ResumeTest, CheckpointThatCannotBeWrittenLeavesTheOneBefore) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto loaded = load(distilled(outputs() + checkpoint(", every_steps: 1")));
  auto prepared = pipeline::prepare_job(loaded, test::host());
  pipeline::RunControl control;
  int polls = 0;
  std::string before;
  control.stop.signal = [&] {
    if (++polls == 8) {
      before = test::read_file(dir_ / "state.h5");
      const rlimit small{4096, old.rlim_max};
      ::setrlimit(RLIMIT_FSIZE, &small);
    }
    return 0;
  };
  std::optional<Error> error;
  try {
    pipeline::run_job(prepared, test::host(), {}, control);
  } catch (const Error& thrown) {
    error = thrown;
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::output);
  EXPECT_THAT(error->what(), HasSubstr("checkpoint"));
  EXPECT_FALSE(before.empty());
  EXPECT_TRUE(test::read_file(dir_ / "state.h5") == before);
  EXPECT_EQ(run_until(distilled(outputs() + checkpoint(", resume: must")), kNever).stopped, "");
}

// The checkpoint before the decode is a latents file, too.
TEST_F(ResumeTest, CheckpointCanBeDecoded) {
  EXPECT_EQ(run_until(distilled(outputs() + checkpoint()), kNever).stopped, "");
  const auto file = io::read_latents(dir_ / "state.h5", {names::kStage2Video, names::kStage2Audio});
  std::vector<config::Override> overrides = {
      {"output.path", (dir_ / "again.y4m").string(), "", true},
      {"output.latents", "", "", false},
      {"output.metrics", "", "", false},
      {"checkpoint", "", "", false}};
  auto prepared = pipeline::prepare_job(
      config::load_job_text(file.job_yaml, "stored", "/", overrides), test::host());
  pipeline::decode_job(prepared, file, test::host());
  EXPECT_EQ(test::read_file(dir_ / "again.y4m"), test::read_file(dir_ / "clip.y4m"));
}

}  // namespace
}  // namespace flotilla
