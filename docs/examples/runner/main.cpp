// A runner of one's own in a fleet: this program starts itself once a rank, and the ranks serve job
// after job with the pipeline in own_pipeline.h.
//
//   runner RANKS JOB.yaml [LATENTS.h5]
//
// Makes latents and frames twice: with another prompt, and as JOB.yaml says. LATENTS.h5, written by
// "flotilla run" (output.latents), is compared with the latter: exit code 1 when they differ.
#include <c10/core/InferenceMode.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "fleet/controller.h"
#include "fleet/worker.h"
#include "io/latents_file.h"
#include "own_pipeline.h"

namespace {

// On each rank. A job is {"prompt": , "seed": }, both from JOB.yaml when they are not given.
class OwnRunner final : public fleet::Runner {
 public:
  OwnRunner(comm::RankContext& ranks, const std::string& job_file)
      : ranks_(ranks), prepared_(prepare(ranks, job_file)), own_(prepared_, ranks) {
    pipeline::Ranks{&ranks_}.attach_gpus(prepared_.plan.gpus);
  }

  void run(const fleet::Message& job, fleet::JobScope& scope) override {
    const uint64_t seed = job.body.value("seed", *prepared_.job.seed);
    const std::string prompt = job.body.value("prompt", prepared_.job.prompt);
    const auto on_step = [&](const std::string& stage, int64_t step, int64_t steps) {
      if (ranks_.is_driver())
        scope.emit(nlohmann::json{{"stage", stage}, {"step", step}, {"steps", steps}});
    };
    const Clip clip = own_.make_latents(prompt, seed, on_step);
    const int64_t num_frames = own_.decode(clip.video);
    if (!ranks_.is_driver()) return;
    fleet::Message result(nlohmann::json{{"frames", num_frames}, {"ranks", ranks_.world_size()}});
    result.tensors = {{"video", clip.video}, {"audio", clip.audio}};
    scope.emit(result);
  }
  void close() override { own_.close(); }

 private:
  static pipeline::PreparedJob prepare(comm::RankContext& context, const std::string& job_file) {
    const pipeline::Host host{"",
                              [](const char* name) -> const char* { return std::getenv(name); }};
    const pipeline::Ranks ranks{&context};
    return ranks.agreed([&] {
      return pipeline::prepare_job(config::load_job(job_file), host, pipeline::Outputs::ignored,
                                   ranks);
    });
  }

  comm::RankContext& ranks_;
  pipeline::PreparedJob prepared_;
  OwnPipeline own_;
};

int serve(const std::string& job_file) {
  fleet::WorkerOptions options;
  options.ranks.environment = [](const char* name) -> const char* { return std::getenv(name); };
  return fleet::run_worker(
      [&](comm::RankContext& ranks) { return std::make_unique<OwnRunner>(ranks, job_file); },
      options);
}

// Up to the order of sums, which other ranks change.
bool is_close(const char* what, const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor found = actual.to(at::kFloat);
  const double scale = expected.abs().max().item<double>();
  const double difference = (found - expected).abs().max().item<double>() / scale;
  std::printf("%s: largest difference %.1e of the largest value\n", what, difference);
  return difference <= 1e-4;
}

// Of one job; its steps are printed as they come.
fleet::Message finish(fleet::Stream stream) {
  fleet::Message result;
  while (auto item = stream.next()) {
    std::printf("%s\n", item->body.dump().c_str());
    result = std::move(*item);
  }
  return result;
}

int control(int ranks, const std::string& job_file, const char* latents_file) {
  fleet::ControllerOptions options;
  options.ranks = ranks;
  options.worker = {fleet::own_program(), "worker", job_file};
  fleet::Controller controller(options);
  finish(controller.stream(nlohmann::json{{"prompt", "another boat"}, {"seed", 7}}));
  const fleet::Message result = finish(controller.stream({}));
  if (latents_file == nullptr) return 0;
  const auto expected = io::read_latents(latents_file).tensors;
  const bool video =
      is_close("video", result.tensors.at("video"), expected.at(io::latents::kStage2Video));
  const bool audio =
      is_close("audio", result.tensors.at("audio"), expected.at(io::latents::kStage2Audio));
  return video && audio ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const c10::InferenceMode no_gradients;
  try {
    if (argc == 3 && std::string(argv[1]) == "worker") return serve(argv[2]);
    if (argc >= 3) return control(std::atoi(argv[1]), argv[2], argc > 3 ? argv[3] : nullptr);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.kind());
  }
  std::fprintf(stderr, "usage: runner RANKS JOB.yaml [LATENTS.h5]\n");
  return exit_code(ErrorKind::usage);
}
