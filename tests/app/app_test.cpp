// The program as users meet it: exit codes, one clear message, files where they were asked for.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/ffmpeg.h"
#include "io/latents_file.h"
#include "io/mp4_info.h"
#include "io/subprocess.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome flotilla(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), FLOTILLA_PROGRAM);
  const auto result = io::run_process(
      arguments, {reinterpret_cast<const uint8_t*>(input.data()), input.size()}, /*limit_s=*/120);
  EXPECT_TRUE(WIFEXITED(result.status)) << io::describe_status(result.status);
  return {WEXITSTATUS(result.status), std::string(result.output.begin(), result.output.end()),
          result.errors};
}

// The exit code of a shell command in which "$0" is the program, and "$1" and so on `arguments`.
Outcome shell(const std::string& command, std::vector<std::string> arguments = {}) {
  arguments.insert(arguments.begin(), {"/bin/sh", "-c", command, FLOTILLA_PROGRAM});
  const auto result = io::run_process(arguments, {}, /*limit_s=*/120);
  EXPECT_TRUE(WIFEXITED(result.status)) << io::describe_status(result.status);
  return {WEXITSTATUS(result.status), std::string(result.output.begin(), result.output.end()),
          result.errors};
}

bool have_ffmpeg() {
  const auto found = io::find_ffmpeg({}, std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  return found && found->can_write_mp4();
}

// A small job on the tiny model; `models` is the folder that holds it.
std::string job(const fs::path& models, const std::string& output, const std::string& more = "") {
  return fmt::format(
      "models:\n  checkpoint: {0}/ltx23-dev.safetensors\n  spatial_upsampler: "
      "{0}/ltx23-spatial-upscaler-x2.safetensors\n"
      "  text_encoder: {0}/gemma\nprompt: a boat\nseed: 3\ndevice: cpu\nprecision: fp32\n"
      "video: {{width: 128, height: 64, num_frames: 9, frame_rate: 24}}\noutput: {{{1}}}\n{2}",
      models.string(), output, more);
}

class AppTest : public ::testing::Test {
 protected:
  std::vector<fs::path> temporaries() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      if (entry.path().filename().string().find(".tmp") != std::string::npos)
        found.push_back(entry.path());
    }
    return found;
  }
  std::string write_job(const std::string& text, const std::string& name = "job.yaml") {
    test::write_file(dir_ / name, text);
    return (dir_ / name).string();
  }
  test::TempDir dir_;
};

// Seconds of a processor that the programs of this test have used; other than the clock on the wall
// it does not count what runs beside them.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_F(AppTest, TextsComeAtOnceAndFirstLineIsTheVersion) {
  const double before = processor_seconds();
  EXPECT_THAT(flotilla({"--version"}).out, StartsWith("flotilla "));
  for (const char* command : {"run", "decode", "inspect", "devices", "bench", "selftest"}) {
    const Outcome help = flotilla({command, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out,
                AllOf(StartsWith("usage: "), HasSubstr("flotilla " + std::string(command) + " ")));
  }
  EXPECT_EQ(flotilla({"--help"}).code, 0);
  EXPECT_LT(processor_seconds() - before, 8 * 1.0);  // a second each
}

TEST_F(AppTest, WrongUsageNamesTheNearestWord) {
  EXPECT_EQ(flotilla({}).code, 2);
  const Outcome command = flotilla({"rnu"});
  EXPECT_EQ(command.code, 2);
  EXPECT_THAT(command.err, HasSubstr("did you mean \"run\""));
  const Outcome option = flotilla({"run", "x.yaml", "--promt", "x"});
  EXPECT_EQ(option.code, 2);
  EXPECT_THAT(option.err, HasSubstr("did you mean --prompt"));
  EXPECT_EQ(flotilla({"run"}).code, 2);
  EXPECT_EQ(flotilla({"run", "a.yaml", "b.yaml"}).code, 2);
  EXPECT_EQ(
      flotilla({"run", write_job(job(test::tiny_dir(), "path: a.y4m")), "--set", "nonsense"}).code,
      2);
}

TEST_F(AppTest, JobFaultsAreToldTogetherWithTheirPlaces) {
  const std::string path = write_job(
      "models: {checkpoint: a}\nvideo: {width: 100, height: 100, num_frame: 9}\nseed: -1\n");
  const Outcome outcome = flotilla({"run", path});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("job.yaml:2:"), HasSubstr("video.width"), HasSubstr("video.height"),
                    HasSubstr("num_frames"), HasSubstr("job.yaml:3:")));
  EXPECT_EQ(outcome.out, "");
}

TEST_F(AppTest, ExitCodesTellTheKindOfFault) {
  EXPECT_EQ(flotilla({"run", (dir_ / "none.yaml").string()}).code, 2);
  EXPECT_EQ(flotilla({"run", write_job(job(dir_.path(), "path: a.y4m"))}).code, 3);
  test::write_file(dir_ / "a.y4m", "old");
  EXPECT_EQ(flotilla({"run", write_job(job(test::tiny_dir(), "path: a.y4m"))}).code, 8);
  EXPECT_EQ(test::read_file(dir_ / "a.y4m"), "old");
  EXPECT_EQ(flotilla({"run", write_job(job(test::tiny_dir(), "path: a.y4m/b.y4m"))}).code, 8);
}

TEST_F(AppTest, RunsUnderALauncherOnlyWithOneRank) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  ::setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  const Outcome first = flotilla({"run", path});
  ::setenv("OMPI_COMM_WORLD_RANK", "2", 1);
  const Outcome other = flotilla({"run", path});
  const Outcome silent = flotilla({"--version"});
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(first.code, 2);
  EXPECT_THAT(first.err, HasSubstr("4 ranks"));
  EXPECT_EQ(other.code, 2);
  EXPECT_EQ(other.err, "");
  EXPECT_EQ(silent.out, "");
  EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
}

TEST_F(AppTest, PrintedConfigIsTheSameJob) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  const Outcome printed =
      flotilla({"run", path, "--print-config", "--seed", "5", "--prompt", "two: boats"});
  EXPECT_EQ(printed.code, 0);
  EXPECT_THAT(printed.out, AllOf(HasSubstr("seed: 5"), HasSubstr("two: boats")));
  EXPECT_EQ(flotilla({"run", write_job(printed.out, "again.yaml"), "--print-config"}).out,
            printed.out);
  EXPECT_EQ(flotilla({"run", "-", "--print-config"}, printed.out).out, printed.out);
}

TEST_F(AppTest, OptionsOverrideTheFile) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  const std::string clip = (dir_ / "b.y4m").string();
  const Outcome outcome =
      flotilla({"run", path, "--output", clip, "--latents", (dir_ / "b.h5").string(), "--metrics",
                (dir_ / "b.json").string(), "--seed", "11", "--set", "video.num_frames=17"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr(clip), HasSubstr("17 frames"), HasSubstr("seed           11"),
                    HasSubstr("a boat"), HasSubstr("stage_1"), HasSubstr("total")));
  EXPECT_TRUE(fs::exists(clip) && fs::exists(dir_ / "b.h5") && fs::exists(dir_ / "b.json"));
  EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
  EXPECT_TRUE(temporaries().empty());
}

TEST_F(AppTest, SignalsEndARunWithoutLeavingFilesBehind) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    io::Process process({FLOTILLA_PROGRAM, "run", path, "--set", "video.num_frames=257"},
                        /*read_output=*/false);
    // A temporary file with bytes in it: the clip, and no probe of the start.
    const auto is_writing = [&] {
      const auto found = temporaries();
      std::error_code gone;
      return std::any_of(found.begin(), found.end(), [&](const auto& file) {
        const auto bytes = fs::file_size(file, gone);
        return !gone && bytes > 0;
      });
    };
    std::optional<int> status;
    while (!is_writing() && !(status = process.wait(0))) {
    }
    ASSERT_FALSE(status) << "ended by itself: " << process.errors();
    ::kill(process.id(), signal);
    status = process.wait(60);
    ASSERT_TRUE(status);
    EXPECT_TRUE(WIFSIGNALED(*status) && WTERMSIG(*status) == signal)
        << io::describe_status(*status);
    EXPECT_TRUE(temporaries().empty());
    EXPECT_FALSE(fs::exists(dir_ / "a.y4m") || fs::exists(dir_ / "a.wav"));
  }
}

TEST_F(AppTest, IgnoredSignalStaysIgnored) {
  const Outcome outcome = shell("trap '' HUP; \"$0\" --version & kill -HUP $!; wait $!");
  EXPECT_EQ(outcome.code, 0);
}

TEST_F(AppTest, ResultsThatCannotBeWrittenAreAnError) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  for (const char* arguments :
       {"--version", "--help", "run --help", "bench --help", "run \"$1\" --print-config"}) {
    for (const char* target : {"> /dev/full", ">&-"}) {
      const Outcome outcome = shell(fmt::format("\"$0\" {} {}", arguments, target), {path});
      EXPECT_EQ(outcome.code, 8) << arguments << target;
      EXPECT_THAT(outcome.err, HasSubstr("cannot write the results to standard output"));
    }
  }
  EXPECT_THAT(shell("\"$0\" --version > /dev/full").err, HasSubstr("No space left on device"));
}

TEST_F(AppTest, ReadersThatLeaveDoNotCostTheClip) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  // Nobody reads the log, or there is none.
  for (const char* command :
       {"\"$0\" run \"$1\" --overwrite 2>&1 >/dev/null | true; test -s \"$2\"",
        "\"$0\" run \"$1\" --overwrite 2>&- >/dev/null"}) {
    fs::remove(dir_ / "a.y4m");
    EXPECT_EQ(shell(command, {path, (dir_ / "a.y4m").string()}).code, 0) << command;
    EXPECT_THAT(test::read_file(dir_ / "a.y4m"), StartsWith("YUV4MPEG2 "));
  }
  const Outcome unread = shell("\"$0\" run \"$1\" --overwrite --quiet > /dev/full", {path});
  EXPECT_EQ(unread.code, 8);
  EXPECT_TRUE(fs::exists(dir_ / "a.y4m"));
}

TEST_F(AppTest, LimitOnFileSizesIsAnOutputError) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  const Outcome outcome = shell("ulimit -f 8; \"$0\" run \"$1\"", {path});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr("File too large"));
  EXPECT_TRUE(temporaries().empty());
}

TEST_F(AppTest, OutputPlacesAreRefusedBeforeTheWork) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  fs::create_symlink("/dev/null", dir_ / "null.json");
  const auto refused = [&](const std::string& name) {
    const Outcome outcome =
        flotilla({"run", path, "--overwrite", "--metrics", (dir_ / name).string()});
    EXPECT_THAT(outcome.err, Not(HasSubstr("stage_1")));
    return outcome.code;
  };
  EXPECT_EQ(refused("null.json"), 8);
  EXPECT_EQ(refused(std::string(251, 'n') + ".json"), 8);
  EXPECT_EQ(refused("m.png"), 2);
  test::write_file(dir_ / "a.wav", "mine");
  const Outcome sound = flotilla({"run", path});
  EXPECT_EQ(sound.code, 8);
  EXPECT_THAT(sound.err, HasSubstr("a.wav"));
  EXPECT_EQ(test::read_file(dir_ / "a.wav"), "mine");
}

TEST_F(AppTest, MetricsHaveTheSameFieldsWithAndWithoutSound) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m, metrics: a.json"));
  ASSERT_EQ(flotilla({"run", path}).code, 0);
  const auto with = nlohmann::ordered_json::parse(test::read_file(dir_ / "a.json"));
  ASSERT_EQ(flotilla({"run", path, "--overwrite", "--set", "output.audio=false"}).code, 0);
  const auto without = nlohmann::ordered_json::parse(test::read_file(dir_ / "a.json"));
  std::vector<std::string> names, others;
  for (const auto& [name, value] : with.at("phases").items()) names.push_back(name);
  for (const auto& [name, value] : without.at("phases").items()) others.push_back(name);
  EXPECT_EQ(names, others);
  EXPECT_TRUE(with.at("phases").at("decode_audio_s").is_number());
  EXPECT_TRUE(without.at("phases").at("decode_audio_s").is_null());
  EXPECT_EQ(with.at("prompt_truncated"), false);
}

TEST_F(AppTest, LongPromptIsCutAloudOrRefused) {
  std::string prompt;
  for (int i = 0; i < 3000; ++i) prompt += fmt::format("word{} ", i);
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  const Outcome strict =
      flotilla({"run", path, "--prompt", prompt, "--set", "text.strict_length=true"});
  EXPECT_EQ(strict.code, 2);
  EXPECT_THAT(strict.err, HasSubstr("dropped"));
  EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
  const Outcome warned = flotilla(
      {"run", path, "--prompt", prompt, "--quiet", "--metrics", (dir_ / "a.json").string()});
  EXPECT_EQ(warned.code, 0);
  EXPECT_THAT(warned.err, AllOf(HasSubstr("WARNING"), HasSubstr("1024 tokens"), HasSubstr("word")));
  EXPECT_EQ(nlohmann::json::parse(test::read_file(dir_ / "a.json")).at("prompt_truncated"), true);
}

// Config, models and outputs below a name that a shell would take apart.
TEST_F(AppTest, OddPathsWork) {
  const fs::path odd = dir_.path() / "my dir" / "\xC3\xA4;$(x)'";
  fs::create_directories(odd);
  fs::create_directory_symlink(test::tiny_dir(), odd / "models");
  const bool mp4 = have_ffmpeg();
  const std::string clip = mp4 ? "-clip \"1\".mp4" : "-clip \"1\".y4m";
  test::write_file(
      odd / "job.yaml",
      "models:\n  checkpoint: models/ltx23-dev.safetensors\n  spatial_upsampler: "
      "models/ltx23-spatial-upscaler-x2.safetensors\n"
      "  text_encoder: models/gemma\nprompt: a boat\nseed: 3\ndevice: cpu\nprecision: fp32\n"
      "video: {width: 128, height: 64, num_frames: 9}\nimages: [{path: models/image.png, crf: " +
          std::string(mp4 ? "33" : "0") + "}]\noutput: {path: './" + clip +
          "', latents: l.h5, contact_sheet: c.png}\n");
  const Outcome outcome = flotilla({"run", (odd / "job.yaml").string()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(odd / clip));
  EXPECT_TRUE(fs::exists(odd / "l.h5") && fs::exists(odd / "c.png"));
}

TEST_F(AppTest, ClipHasTheSizeTheFramesAndTheRate) {
  if (!have_ffmpeg()) GTEST_SKIP() << "no ffmpeg with libx264 and aac";
  const std::string path = write_job(job(test::tiny_dir(), "path: a.mp4, metrics: a.json"));
  const Outcome outcome = flotilla(
      {"run", path, "--set", "video.frame_rate=24000/1001", "--set", "video.num_frames=25"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const io::Mp4Info info = io::read_mp4_info(dir_ / "a.mp4");
  ASSERT_TRUE(info.video && info.audio);
  EXPECT_EQ(info.video->width, 128);
  EXPECT_EQ(info.video->height, 64);
  EXPECT_EQ(info.video->num_samples, 25);
  EXPECT_EQ(info.video->duration * 24000, 25 * 1001 * info.video->timescale);
  EXPECT_NEAR(info.audio->shown_s, 25 * 1001.0 / 24000, 0.001);
  const Outcome silent = flotilla({"run", path, "--overwrite", "--set", "output.audio=false"});
  ASSERT_EQ(silent.code, 0) << silent.err;
  EXPECT_FALSE(io::read_mp4_info(dir_ / "a.mp4").audio.has_value());
}

TEST_F(AppTest, DecodeMakesTheClipAgain) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m, latents: a.h5"));
  ASSERT_EQ(flotilla({"run", path}).code, 0);
  const std::string latents = (dir_ / "a.h5").string();
  const Outcome exists = flotilla({"decode", latents});
  EXPECT_EQ(exists.code, 8);
  const Outcome again = flotilla({"decode", latents, "--output", (dir_ / "b.y4m").string()});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(test::read_file(dir_ / "b.y4m"), test::read_file(dir_ / "a.y4m"));
  const Outcome useless = flotilla({"decode", latents, "--set", "seed=4"});
  EXPECT_EQ(useless.code, 2);
  EXPECT_THAT(useless.err, HasSubstr("--set seed changes nothing here"));
  EXPECT_EQ(flotilla({"decode", latents, "--prompt", "x"}).code, 2);
  test::write_file(dir_ / "bad.h5", "not HDF5");
  EXPECT_EQ(flotilla({"decode", (dir_ / "bad.h5").string()}).code, 3);
}

TEST_F(AppTest, SelftestPassesOnOneRank) {
  const Outcome outcome = flotilla({"selftest", write_job(job(test::tiny_dir(), "path: a.y4m"))});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("one rank, twice"), HasSubstr("\nPASSED\n")));
  EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
}

TEST_F(AppTest, DecodeHarmsNeitherItsInputNorWhatTheRunMayReplace) {
  const std::string path =
      write_job(job(test::tiny_dir(), "path: a.y4m, latents: a.h5, overwrite: true"));
  ASSERT_EQ(flotilla({"run", path}).code, 0);
  const std::string latents = (dir_ / "a.h5").string();
  const std::string kept = test::read_file(latents);
  // The job may overwrite; that does not pass on to a decode.
  EXPECT_EQ(flotilla({"decode", latents}).code, 8);
  fs::create_hard_link(latents, dir_ / "hard.y4m");
  fs::create_symlink("a.h5", dir_ / "soft.y4m");
  for (const char* name : {"a.h5", "hard.y4m", "soft.y4m"}) {
    const Outcome outcome =
        flotilla({"decode", latents, "--overwrite", "--output", (dir_ / name).string()});
    EXPECT_EQ(outcome.code, 2) << name;
    EXPECT_THAT(outcome.err, HasSubstr("is the same file as the file that holds the job"));
  }
  EXPECT_EQ(test::read_file(latents), kept);
  EXPECT_EQ(flotilla({"decode", latents, "--overwrite"}).code, 0);
  EXPECT_EQ(flotilla({"decode", latents, "--latents", "x.h5"}).code, 2);
  EXPECT_THAT(flotilla({"decode", "--help"}).out, Not(HasSubstr("--latents")));
  EXPECT_EQ(flotilla({"decode", latents, "--set", "output.save_frames=true"}).code, 2);
}

TEST_F(AppTest, BenchPipelinePrintsEveryPhase) {
  const std::string path = write_job(job(test::tiny_dir(), "path: a.y4m"));
  const Outcome outcome = flotilla({"bench", "pipeline", "--job", path, "--warmup", "0", "--iters",
                                    "2", "--json", (dir_ / "b.json").string()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(StartsWith("# flotilla bench pipeline"), HasSubstr("stage_2"),
                                 HasSubstr("decode_video")));
  const auto json = nlohmann::json::parse(test::read_file(dir_ / "b.json"));
  EXPECT_EQ(json.at("phases").at("total_s").size(), 2U);
  EXPECT_FALSE(fs::exists(dir_ / "a.y4m"));
  EXPECT_EQ(flotilla({"bench", "teapot"}).code, 2);
}

}  // namespace
}  // namespace flotilla
