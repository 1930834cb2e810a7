#include "fleet/job_runner.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/text.h"
#include "config/load.h"
#include "config/writer.h"
#include "io/events.h"
#include "io/latents_file.h"
#include "io/metrics.h"

namespace flotilla::fleet {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kKeys = {"job_yaml", "base_folder", "return",
                                                   "preview_every"};
constexpr std::array<const char*, 4> kReturns = {"latents", "audio", "frames", "residents"};

}  // namespace

struct JobRequest {
  std::string yaml;
  std::filesystem::path base;
  std::set<std::string> wanted;
  int64_t preview_every = 0;
};

namespace {

// A whole number from 1; 0: it is not there. Errors (ErrorKind::config).
int64_t read_preview_every(const json& body) {
  const auto found = body.find("preview_every");
  if (found == body.end()) return 0;
  if (found->is_number_integer() && found->get<int64_t>() >= 1) return found->get<int64_t>();
  fail(ErrorKind::config,
       fmt::format("preview_every {} of a job message: a whole number of steps, 1 or more",
                   excerpt(found->dump(-1, ' ', false, json::error_handler_t::replace))));
}

// Errors (ErrorKind::config).
JobRequest read_request(const json& body) {
  JobRequest request;
  try {
    request.yaml = body.at("job_yaml").get<std::string>();
    request.base = body.value("base_folder", "/");
    request.wanted = body.value("return", std::set<std::string>());
    request.preview_every = read_preview_every(body);
    for (const auto& [key, value] : body.items()) {
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
        fail(ErrorKind::config, fmt::format("unknown key \"{}\" of a job message", excerpt(key)));
    }
  } catch (const json::exception& error) {
    fail(ErrorKind::config, fmt::format("a job message needs job_yaml, a text; base_folder, a "
                                        "text, and return, a list, may follow: {}",
                                        error.what()));
  }
  if (!request.base.is_absolute()) {
    fail(ErrorKind::config, fmt::format("base_folder \"{}\" of a job message must be absolute",
                                        excerpt(request.base.string())));
  }
  std::error_code ignored;
  if (request.base.native().find('\0') != std::string::npos ||
      !std::filesystem::is_directory(request.base, ignored))
    fail(ErrorKind::config, fmt::format("base_folder \"{}\" of a job message is no folder",
                                        excerpt(request.base.string())));
  for (const std::string& name : request.wanted) {
    if (std::find(kReturns.begin(), kReturns.end(), name) == kReturns.end())
      fail(ErrorKind::config, fmt::format("return \"{}\" of a job message; there are {}",
                                          excerpt(name), fmt::join(kReturns, ", ")));
  }
  return request;
}

class ItemEvents final : public io::EventSink {
 public:
  explicit ItemEvents(JobScope& scope) : scope_(scope) {}
  void emit(const json& event) override { scope_.emit(event); }

 private:
  JobScope& scope_;
};

// At the end of a job, also of one that fails: memory that it has freed goes back to the system, so
// that a rank which waits holds what it keeps and no more, job after job.
struct GiveBackMemory {
  GiveBackMemory() = default;
  GiveBackMemory(const GiveBackMemory&) = delete;
  GiveBackMemory& operator=(const GiveBackMemory&) = delete;
  ~GiveBackMemory() {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }
};

Message results_of(const pipeline::RunState& state, const std::set<std::string>& wanted) {
  Message results(json{{"event", "results"}});
  const auto take = [&](const char* what, const char* name, const char* result) {
    const auto found = state.results.find(result);
    if (!wanted.contains(what) || found == state.results.end()) return;
    const at::Tensor& tensor = found->second;
    results.tensors[name] = tensor.is_floating_point() ? tensor.to(at::kFloat) : tensor;
  };
  take("latents", "video_latent", io::latents::kStage2Video);
  take("latents", "audio_latent", io::latents::kStage2Audio);
  take("audio", "audio", io::latents::kDecodedAudio);
  take("frames", "frames", io::latents::kDecodedVideo);
  if (results.tensors.count("audio") != 0) results.body["sample_rate"] = state.sample_rate;
  return results;
}

}  // namespace

JobRunner::JobRunner(comm::RankContext& ranks, pipeline::Host host)
    : ranks_(ranks), host_(std::move(host)) {}

void JobRunner::run(const Message& job, JobScope& scope) {
  const pipeline::Ranks ranks{&ranks_};
  ranks_.note_phase("prepare");
  const JobRequest request = ranks.agreed([&] { return read_request(job.body); });
  int64_t device_bytes = 0;
  {
    const GiveBackMemory at_end;
    device_bytes = run_request(request, scope);
  }
  if (request.wanted.contains("residents")) tell_residents(scope, device_bytes);
}

int64_t JobRunner::run_request(const JobRequest& request, JobScope& scope) {
  const pipeline::Ranks ranks{&ranks_};
  config::LoadedJob loaded =
      ranks.agreed([&] { return config::load_job_text(request.yaml, "the job", request.base); });
  pipeline::RunControl control{
      .stop = {.signal = [&] { return scope.stop_signal(); }}, .resume = {}, .always_stops = true};
  control.resume = ranks.agreed(
      [&] { return ranks.is_driver() ? pipeline::find_checkpoint(loaded.job) : std::nullopt; });
  // One seed for all ranks: the checkpoint's, or one that the driver draws.
  if (!loaded.job.seed) {
    const uint64_t drawn =
        control.resume ? static_cast<uint64_t>(control.resume->file.seed) : pipeline::draw_seed();
    loaded.job.seed = std::stoull(ranks_.world().broadcast(std::to_string(drawn), 0));
  }
  const auto outputs = ranks.is_driver() ? pipeline::Outputs::checked : pipeline::Outputs::ignored;
  pipeline::PreparedJob prepared = ranks.agreed(
      [&] { return pipeline::prepare_job(loaded, host_, outputs, ranks, {}, residents_); });
  prepared.job.output.save_frames =
      prepared.job.output.save_frames || request.wanted.contains("frames");

  ItemEvents events(scope);
  pipeline::Host surroundings = host_;
  surroundings.events = &events;
  surroundings.preview_every = request.preview_every;
  if (request.wanted.size() > request.wanted.count("residents")) {
    surroundings.results = [&](const pipeline::RunState& state) {
      scope.emit(results_of(state, request.wanted));
    };
  }
  const auto phases = pipeline::run_job(prepared, surroundings, ranks, std::move(control));
  return phases.peak_memory().device_bytes;
}

void JobRunner::tell_residents(JobScope& scope, int64_t device_bytes) {
  const json own = {{"host_bytes", io::held_host_bytes()}, {"device_bytes", device_bytes}};
  const auto all = ranks_.world().all_gather(own.dump());
  if (!ranks_.is_driver()) return;
  json event = {{"event", "residents"}, {"models", residents_->names()}};
  for (const std::string& text : all) {
    const json rank = json::parse(text);
    for (const auto& [key, bytes] : rank.items()) event[key].push_back(bytes);
  }
  scope.emit(event);
}

}  // namespace flotilla::fleet
