// The text stage in a job: prompts that are known already, prompts that are too long, and better
// prompts with what they leave in the files.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "pipeline/job_fixture.h"
#include "support/compare.h"

namespace flotilla {
namespace {

using pipeline::NamedPrompt;
using testing::HasSubstr;
using testing::Not;

bool has_phase(const pipeline::Phases& phases, const std::string& name) {
  const auto& all = phases.seconds();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& phase) { return phase.first == name; });
}

TEST(TextStageTest, WhatWasEncodedOrLoadedBeforeIsNotReadAgain) {
  test::PieceRunner first(test::tiny_job());
  const auto residents = std::make_shared<pipeline::Residents>();
  pipeline::Session session = first.session();
  session.residents = residents;
  const auto contexts = encode_prompts(session, {{"prompt", "a boat"}, {"negative_prompt", ""}});
  EXPECT_TRUE(has_phase(first.phases, "load_text"));
  EXPECT_GT(first.files.bytes_read(), 0);
  EXPECT_EQ(residents->prompts().size(), 2);

  test::PieceRunner second(test::tiny_job());
  pipeline::Session later = second.session();
  later.residents = residents;
  const auto again = encode_prompts(later, {{"prompt", ""}, {"negative_prompt", "a boat"}});
  EXPECT_FALSE(has_phase(second.phases, "load_text"));
  EXPECT_FALSE(has_phase(second.phases, "text"));
  EXPECT_EQ(second.files.bytes_read(), 0);
  EXPECT_TRUE(test::same_bytes(again[1].video, contexts[0].video));
  EXPECT_TRUE(test::same_bytes(again[1].audio, contexts[0].audio));
  EXPECT_TRUE(test::same_bytes(again[0].video, contexts[1].video));

  // A new one finds the encoder loaded.
  encode_prompts(later, {{"prompt", "another boat"}});
  EXPECT_FALSE(has_phase(second.phases, "load_text"));
  EXPECT_TRUE(has_phase(second.phases, "text"));
}

TEST(TextStageTest, SameTextTwiceGivesTheSameContext) {
  test::PieceRunner runner(test::tiny_job());
  const auto contexts =
      encode_prompts(runner.session(), {{"prompt", "a boat"}, {"negative_prompt", "a boat"}});
  ASSERT_EQ(contexts.size(), 2);
  EXPECT_TRUE(test::same_bytes(contexts[0].video, contexts[1].video));
}

TEST(TextStageTest, PromptThatMayNotBeCutIsRefusedBeforeAnyWeightIsRead) {
  config::Job job = test::tiny_job();
  job.text.strict_length = true;
  test::PieceRunner runner(job);
  std::string prompt;
  for (int i = 0; i < 3000; ++i) prompt += "word ";
  try {
    encode_prompts(runner.session(), {{"prompt", prompt}});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.message(), HasSubstr("1024 tokens are used"));
  }
  EXPECT_EQ(runner.files.bytes_read(), 0);
  EXPECT_EQ(runner.phases.prompt_truncated(), true);
}

TEST(TextStageTest, EnhancerOfTheSameFolderIsReadOnce) {
  test::PieceRunner plain(test::tiny_job());
  encode_prompts(plain.session(), {{"prompt", "a boat"}});

  test::PieceRunner runner(test::tiny_job());
  runner.job.prompt = "a boat";
  const pipeline::Session session = runner.session();
  const std::string better = enhance_prompt(session);
  EXPECT_TRUE(session.residents->keeps(pipeline::Kept::enhancer));
  encode_prompts(session, {{"prompt", better}});
  EXPECT_FALSE(session.residents->keeps(pipeline::Kept::enhancer));  // its memory is free again
  EXPECT_EQ(runner.files.bytes_read(), plain.files.bytes_read());
}

class EnhanceTest : public test::JobTest {
 protected:
  static std::string text(const std::string& more) {
    return job_text("distilled", "", "seed: 3\n" + outputs(", overwrite: true") + more);
  }
  nlohmann::json metrics() const {
    std::ifstream file(dir_ / "clip.json");
    return nlohmann::json::parse(file);
  }
  io::LatentsFile latents() const { return io::read_latents(dir_ / "clip.h5"); }
};

TEST_F(EnhanceTest, StoredJobHasTheNewPromptAndMakesTheSameClip) {
  const auto prepared = run(text("text: {enhance: true}\n"));
  const io::LatentsFile file = latents();
  EXPECT_EQ(file.original_prompt, "a boat");
  const auto stored = config::load_job_text(file.job_yaml, "stored", "/").job;
  EXPECT_EQ(stored.prompt, prepared.job.prompt);
  EXPECT_FALSE(stored.text.enhance);
  EXPECT_EQ(metrics().at("job").at("original_prompt"), "a boat");
  EXPECT_GT(metrics().at("phases").at("enhance_s").get<double>(), 0.0);

  run(file.job_yaml);
  const io::LatentsFile again = latents();
  EXPECT_FALSE(again.original_prompt.has_value());
  EXPECT_TRUE(metrics().at("phases").at("enhance_s").is_null());
  EXPECT_TRUE(metrics().at("job").at("original_prompt").is_null());
  for (const char* name : {io::latents::kVideoContext, io::latents::kStage2Video}) {
    EXPECT_TRUE(test::same_bytes(again.tensors.at(name), file.tensors.at(name))) << name;
  }
}

TEST_F(EnhanceTest, RunThatGoesOnTakesThePromptOfItsCheckpoint) {
  const std::string job = text("text: {enhance: true}\ncheckpoint: {path: state.h5}\n");
  int polls = 0;
  const auto go = [&](const std::string& yaml, int stop_at) {
    const auto loaded = load(yaml);
    pipeline::RunControl control;
    control.stop.signal = [&] { return ++polls == stop_at ? SIGUSR1 : 0; };
    control.resume = pipeline::find_checkpoint(loaded.job);
    auto prepared = pipeline::prepare_job(loaded, test::host());
    try {
      pipeline::run_job(prepared, test::host(), {}, control);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::stopped) << error.what();
    }
  };
  run(text("text: {enhance: true}\n"));
  const io::LatentsFile expected = latents();
  std::filesystem::remove(dir_ / "clip.h5");
  go(job, 6);
  ASSERT_FALSE(std::filesystem::exists(dir_ / "clip.h5"));
  const std::string resume =
      text("text: {enhance: true}\ncheckpoint: {path: state.h5, resume: must}\n");
  go(resume, -1);
  EXPECT_TRUE(metrics().at("phases").at("enhance_s").is_null());
  EXPECT_EQ(latents().original_prompt, "a boat");
  EXPECT_TRUE(test::same_bytes(latents().tensors.at(io::latents::kStage2Video),
                               expected.tensors.at(io::latents::kStage2Video)));

  // Another prompt is another job.
  std::string other = resume;
  other.replace(other.find("a boat"), 6, "a ship");
  const auto loaded = load(other);
  auto prepared = pipeline::prepare_job(loaded, test::host());
  try {
    pipeline::run_job(prepared, test::host(), {}, {{}, pipeline::find_checkpoint(loaded.job)});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.message(), HasSubstr("prompt"));
  }
}

TEST_F(EnhanceTest, ModelThatCannotChatIsRefusedBeforeTheWork) {
  // A folder of its own whose tokenizer is no tokenizer.
  const auto folder = dir_ / "enhancer";
  std::filesystem::copy(test::tiny_dir() / "gemma", folder);
  std::filesystem::remove(folder / "tokenizer.model");
  const Error error = refusal(text("text: {enhance: true, enhancer: enhancer}\n"));
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.message(), HasSubstr("tokenizer.model"));
}

TEST_F(EnhanceTest, PlanSaysThatThePromptIsRewritten) {
  const auto plan_of = [&](const std::string& more) {
    const auto prepared = pipeline::prepare_job(load(text(more)), test::host());
    std::string lines;
    for (const auto& line : prepared.plan.describe()) lines += line + "\n";
    return lines;
  };
  EXPECT_THAT(plan_of("text: {enhance: true}\n"), HasSubstr("text: the driver writes"));
  EXPECT_THAT(plan_of(""), Not(HasSubstr("text:")));
}

}  // namespace
}  // namespace flotilla
