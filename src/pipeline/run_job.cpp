#include "pipeline/run_job.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "config/job_hash.h"
#include "config/validate.h"
#include "config/writer.h"
#include "gpu/device.h"
#include "io/clock.h"
#include "io/ffmpeg.h"
#include "io/image_reader.h"
#include "io/metrics.h"
#include "pipeline/decode.h"
#include "pipeline/distilled.h"
#include "pipeline/job_events.h"
#include "pipeline/model_defaults.h"
#include "pipeline/outputs.h"
#include "pipeline/precision.h"
#include "pipeline/preview.h"
#include "pipeline/record.h"
#include "pipeline/two_stages.h"

namespace flotilla::pipeline {
namespace {

// Takes frames and forgets them.
class NullSink final : public io::FrameSink {
 public:
  void push(const io::FrameBatch&) override {}
  void finish() override {}
};

bool needs_ffmpeg(const config::Job& job, Outputs outputs) {
  // An unknown extension asks too: the message then says what this machine could write.
  if (outputs == Outputs::checked && job.output.path.extension() != ".y4m") return true;
  return std::any_of(job.images.begin(), job.images.end(),
                     [](const auto& image) { return image.crf != 0; });
}

gpu::AttentionBackend attention_of(config::Attention choice) {
  switch (choice) {
    case config::Attention::math:
      return gpu::AttentionBackend::math;
    case config::Attention::flash:
      return gpu::AttentionBackend::flash;
    case config::Attention::cudnn:
      return gpu::AttentionBackend::cudnn;
    case config::Attention::automatic:
      break;
  }
  return gpu::AttentionBackend::automatic;
}

// A line for each rank of a job on CPUs; that of GPUs comes when they are attached.
void log_ranks(const Ranks& ranks, const Host& host) {
  const auto facts = facts_of(ranks, host.variable);
  for (size_t rank = 0; rank < facts.size(); ++rank)
    log::info("run", "rank {}: {}, process {}, cores {}", rank, facts[rank].host, facts[rank].pid,
              facts[rank].cores);
}

void log_header(const PreparedJob& prepared, const Ranks& ranks, const Host& host) {
  const auto& [job, ffmpeg, files, plan, residents, original_prompt] = prepared;
  log::info("run", "{}", versions_line());
  if (plan.gpus.empty()) log_ranks(ranks, host);
  log::info("run", "job {}, started {}", config::job_hash(job), io::time_text(io::wall_clock_s()));
  log::info("run", "model {} (version {}), {} on {}, {} threads",
            files->transformer()->path().filename().string(),
            files->model_version().empty() ? "unknown" : files->model_version(),
            config::to_string(job.precision), gpu::device_name(plan.device), at::get_num_threads());
  log::info("run", "prompt \"{}\"", excerpt(job.prompt, 400));
  if (plan.stage_1.guidance.needs_negative_prompt())
    log::info("run", "negative prompt \"{}\"", excerpt(job.negative_prompt, 400));
  log::info("run", "seed {}", *job.seed);
  for (const auto& line : plan.describe()) log::info("plan", "{}", line);
  for (const auto& warning : plan.warnings) log::warn("plan", "{}", warning);
}

// The attributes of a latents file or checkpoint.
io::LatentsFile make_record(const PreparedJob& prepared, const Host& host,
                            const std::string& job_yaml) {
  io::LatentsFile record;
  record.world = prepared.plan.world_size;
  record.restart_count = io::restart_count(host.variable);
  record.flotilla_version = program_version();
  record.job_yaml = job_yaml;
  record.checkpoint_digest = prepared.files->digest();
  record.seed = static_cast<int64_t>(*prepared.job.seed);
  record.original_prompt = prepared.original_prompt;
  return record;
}

// The job for metadata that has no other place for what text.enhance started from.
std::string commented_yaml(const config::Job& job, const std::optional<std::string>& original) {
  const std::string yaml = config::to_yaml(job);
  if (!original) return yaml;
  return fmt::format("# original_prompt: {}\n{}", nlohmann::json(*original).dump(), yaml);
}

// The prompt of the checkpoint, when it was made of the job's; nothing for one of another job.
std::optional<std::string> prompt_of(const FoundCheckpoint& found, const config::Job& job) {
  if (found.file.original_prompt != job.prompt) return std::nullopt;
  return config::load_job_text(found.file.job_yaml, found.path.string(), "/").job.prompt;
}

// text.enhance: puts the new prompt into `job`, the session's, which then asks for no other one,
// and gives the prompt as it was; nothing without text.enhance. A run that goes on has the prompt
// from its checkpoint. Collective.
std::optional<std::string> settle_prompt(
    config::Job& job, const Session& session,
    const std::optional<FoundCheckpoint>& found = std::nullopt) {
  if (!job.text.enhance) return std::nullopt;
  const Ranks& ranks = session.ranks;
  const auto stored =
      ranks.agreed([&] { return found ? prompt_of(*found, job) : std::optional<std::string>(); });
  // The driver alone has the checkpoint: the first letter tells what it found.
  std::string prompt = stored ? "=" + *stored : (found ? "!" : "?");
  if (ranks.world() != nullptr) prompt = ranks.world()->broadcast(prompt, 0);
  if (prompt == "!") return std::nullopt;  // of another job: check_same_job() refuses it
  if (prompt == "?") {
    prompt = fmt::format("={}", enhance_prompt(session));
  } else if (ranks.is_driver()) {
    log::info("enhance", "prompt \"{}\", of the checkpoint", excerpt(prompt.substr(1), 4000));
  }
  job.text.enhance = false;
  job.text.enhancer.clear();
  return std::exchange(job.prompt, prompt.substr(1));
}

// Of images that the job encodes; a decode alone needs no ffmpeg for them.
void check_image_ffmpeg(const Session& session) {
  if (!session.ffmpeg.empty()) return;
  const auto& images = session.job.images;
  for (size_t i = 0; i < images.size(); ++i) {
    if (images[i].crf == 0) continue;
    fail(
        ErrorKind::machine,
        fmt::format("images[{}].crf is {}: the H.264 round trip of \"{}\" needs the ffmpeg program "
                    "with libx264, which was not found; install it, or set crf: 0",
                    i, images[i].crf.value_or(0), images[i].path.string()));
  }
}

// A picture that cannot be read is told before the first weight is, not when its turn comes.
void check_images(const Session& session) {
  check_image_ffmpeg(session);
  for (const auto& image : session.job.images) io::read_image(image.path);
}

ClipLatents run_pipeline(const Session& session, uint64_t seed, RunState& state) {
  session.ranks.agreed([&] { check_images(session); });
  switch (session.job.pipeline) {
    case config::Pipeline::distilled:
      return run_distilled(session, seed, state);
    case config::Pipeline::ti2vid_two_stages:
      return run_two_stages(session, seed, state);
  }
  fail(ErrorKind::internal, "unknown pipeline");
}

// The driver writes what all ranks decode. The latents are on disk by then, so a decode that fails
// loses nothing. Collective; errors are agreed on.
void decode_and_write(const Session& session, const ClipLatents& latents,
                      const std::string& job_yaml, RunState& state) {
  const Ranks& ranks = session.ranks;
  std::optional<ClipWriter> writer;
  ranks.agreed([&] {
    if (ranks.is_driver()) writer.emplace(session.job, session.plan, session.ffmpeg, job_yaml);
  });
  const auto sound = decode_clip(session, latents, writer ? &writer->frames() : nullptr);
  ranks.agreed([&] {
    if (!writer) return;
    if (sound) writer->set_audio(*sound);
    session.phases.run("decode_video", [&] { writer->frames().finish(); });
  });
  if (!writer) return;
  if (sound) {
    state.keep(io::latents::kDecodedAudio, sound->samples[0]);
    state.sample_rate = sound->sample_rate;
  }
  if (session.job.output.save_frames)
    state.keep(io::latents::kDecodedVideo, writer->saved_frames());
}

// The state to go on from, on all ranks; empty at the beginning. Collective.
RunState first_state(const PreparedJob& prepared, const RunControl& control, const Ranks& ranks) {
  const auto& [job, ffmpeg, files, plan, residents, original_prompt] = prepared;
  const auto& found = control.resume;
  ranks.agreed([&] {
    if (found) check_same_job(*found, job, plan, files->digest());
  });
  RunState state = share_state(found, ranks);
  if (!found) return state;
  log::info("resume", "going on from \"{}\", {}", found->path.string(), place_of(state));
  if (found->file.world != plan.world_size && job.reproducible == config::Reproducible::run) {
    log::info("resume",
              "it was written by {} ranks, now there are {}: the result equals that of an "
              "uninterrupted run up to the order of sums (reproducible: world makes it equal)",
              found->file.world, plan.world_size);
  }
  if (found->file.flotilla_version != program_version()) {
    log::warn("resume", "it was written by flotilla {}, this is {}: the result may differ",
              found->file.flotilla_version, program_version());
  }
  return state;
}

// Null when the run cannot stop early.
std::unique_ptr<SafePoints> make_safe_points(const PreparedJob& prepared, const RunState& state,
                                             const RunControl& control, StopWatch& stop,
                                             const Host& host, const Ranks& ranks) {
  const config::Job& job = prepared.job;
  if (job.checkpoint.path.empty() && !control.always_stops) return nullptr;
  SafePointSettings settings;
  settings.checkpoint = job.checkpoint;
  settings.header = make_record(prepared, host, config::to_yaml(stored_job(job, prepared.plan)));
  settings.resumed = next_phase(state) != "text";
  settings.keep_previous = !control.resume || !control.resume->is_previous;
  return std::make_unique<SafePoints>(ranks, state, stop, std::move(settings));
}

// Models that were found to fit each other in an earlier job are not looked at again.
void audit_once(Residents& residents, const ModelFiles& files, const config::Job& job) {
  const std::string key = fmt::format("{}{} enhance {} images {} audio {}", files.identity(),
                                      config::to_string(job.precision), job.text.enhance,
                                      !job.images.empty(), job.output.audio);
  if (residents.was_audited(key)) return;
  audit_models(files, job);
  residents.note_audit(key);
}

// output.latents, on the driver.
void write_record(const Session& session, io::LatentsFile record, const RunState& state,
                  bool overwrite) {
  put_results(record, state);
  session.phases.run("write_latents",
                     [&] { io::write_latents(session.job.output.latents, record, overwrite); });
}

}  // namespace

uint64_t draw_seed() {
  std::random_device source;
  return source() & 0xFFFF'FFFF;
}

PreparedJob prepare_job(const config::LoadedJob& loaded, const Host& host, Outputs outputs,
                        const Ranks& ranks, const std::vector<comm::RankFacts>& assumed,
                        std::shared_ptr<Residents> residents) {
  PreparedJob prepared;
  prepared.residents =
      residents ? std::move(residents) : std::make_shared<Residents>(Residents::Span::job);
  const auto facts = assumed.empty() ? facts_of(ranks, host.variable) : assumed;
  const auto world_size = static_cast<int64_t>(facts.size());
  config::check_supported(loaded.job, loaded.origins, world_size);
  prepared.job = config::resolve_job(
      loaded.job, {.has_gpu = comm::all_see_gpus(facts), .world_size = world_size});
  config::Job& job = prepared.job;
  const RankDevices devices = place_ranks(job, facts, ranks.rank());
  // GPUs that are only assumed cannot be asked.
  if (devices.own.is_cpu() || gpu::cuda_available())
    check_precision(job.precision, gpu::device_facts(devices.own));
  config::validate_files(job, loaded.origins);
  if (needs_ffmpeg(job, outputs)) {
    const auto found = prepared.residents->ffmpeg().find(host.search_path);
    if (found && found->has_h264) prepared.ffmpeg = found->path;
    if (outputs == Outputs::checked) check_outputs(job, found && found->can_write_mp4());
  } else if (outputs == Outputs::checked) {
    check_outputs(job, false);
  }
  gpu::disable_tf32();
  gpu::choose_attention(attention_of(job.attention),
                        job.device == config::Device::cuda ? at::kCUDA : at::kCPU);
  // Exact runs need one number of threads whatever the machine and the ranks on it.
  const int64_t exact_threads = job.reproducible == config::Reproducible::world ? 1 : 0;
  if (const int64_t threads = job.threads.value_or(exact_threads); threads > 0) {
    at::set_num_threads(static_cast<int>(threads));
  }
  prepared.files = std::make_unique<ModelFiles>(
      job.models, ModelFilesOptions{ranks, &prepared.residents->files(), job.text.enhancer});
  if (loaded.job.precision == config::Precision::automatic)
    job.precision = choose_precision(job.precision, *prepared.files->transformer());
  audit_once(*prepared.residents, *prepared.files, job);
  job = with_model_defaults(std::move(job), prepared.files->model_version());
  prepared.plan = make_plan(job, *prepared.files, world_size, devices);
  if (!job.seed) job.seed = draw_seed();
  return prepared;
}

Phases run_job(PreparedJob& prepared, const Host& host, const Ranks& ranks, RunControl control) {
  const auto& [job, ffmpeg, files, plan, residents, original_prompt] = prepared;
  if (ranks.is_driver()) log_header(prepared, ranks, host);
  io::EventSink* const events = ranks.is_driver() ? host.events : nullptr;
  if (events != nullptr) events->emit(accepted_event(prepared));
  ranks.attach_gpus(plan.gpus);
  const auto attention =
      ranks.agreed([&] { return residents->try_attention(job.attention, plan); });
  if (ranks.is_driver())
    log::info("run", "attention {}, {:.1g} from the plain one", attention.kernel,
              attention.difference);
  Phases phases(plan.device, ranks, host.fault);
  phases.tell(events);
  Session session{job, *files, plan, phases, ffmpeg, ranks};
  session.residents = residents;
  Previews previews{.every = host.preview_every, .events = events};
  if (host.preview_every > 0) session.previews = &previews;
  residents->begin(job, *files, plan, session.previews != nullptr);
  if (const auto original = settle_prompt(prepared.job, session, control.resume)) {
    prepared.original_prompt = original;
  } else if (control.resume && control.resume->file.original_prompt) {
    prepared.original_prompt = control.resume->file.original_prompt;  // of a stored job
  }
  RunState state = first_state(prepared, control, ranks);
  const bool has_checkpoint = !job.checkpoint.path.empty();
  StopWatch stop(job.limits, control.stop);
  const auto safe_points = make_safe_points(prepared, state, control, stop, host, ranks);
  session.safe_points = safe_points.get();
  const io::LatentsFile record = make_record(prepared, host, config::to_yaml(job));
  const bool wants_latents = ranks.is_driver() && !job.output.latents.empty();

  const ClipLatents latents = run_pipeline(session, *job.seed, state);
  // A run that is stopped in the decode is to find the place of its latents free when it goes on;
  // its checkpoint has them as well.
  if (wants_latents && !has_checkpoint) write_record(session, record, state, job.output.overwrite);
  if (has_checkpoint || wants_latents)
    phases.note_latents(has_checkpoint ? job.checkpoint.path : job.output.latents);
  decode_and_write(session, latents, commented_yaml(job, original_prompt), state);
  // Again, with what was decoded.
  if (wants_latents) write_record(session, record, state, job.output.overwrite || !has_checkpoint);
  phases.enter("finish");
  write_metrics(prepared, phases, host, ranks,
                {&state, safe_points ? safe_points->writes() : CheckpointWrites{}});
  phases.fault().require_done();
  if (host.results && ranks.is_driver()) host.results(state);
  if (events != nullptr) events->emit(done_event(prepared, phases));
  return phases;
}

Phases decode_job(const PreparedJob& prepared, const io::LatentsFile& file, const Host& host,
                  const Ranks& ranks) {
  const auto& [job, ffmpeg, files, plan, residents, original_prompt] = prepared;
  Phases phases(plan.device);
  ranks.attach_gpus(plan.gpus);
  Session session{job, *files, plan, phases, ffmpeg, ranks};
  session.residents = residents;
  residents->begin(job, *files, plan);
  ClipLatents latents{file.tensors.at(io::latents::kStage2Video),
                      file.tensors.at(io::latents::kStage2Audio)};
  ranks.agreed([&, &plan = plan] {
    if (plan.decode.fits(latents.video)) return;
    fail(ErrorKind::input,
         fmt::format("the latents are of shape {}, the job asks for a clip of {} x {}, {} frames",
                     shape_text(latents.video.sizes().vec()), plan.format.width, plan.format.height,
                     plan.format.num_frames));
  });
  for (const auto& line : plan.describe()) log::debug("plan", "{}", line);
  RunState state;
  decode_and_write(session, latents, commented_yaml(job, file.original_prompt), state);
  write_metrics(prepared, phases, host, ranks);
  return phases;
}

ClipLatents run_latents(const PreparedJob& prepared, const Ranks& ranks) {
  ranks.attach_gpus(prepared.plan.gpus);
  Phases phases(prepared.plan.device, ranks);
  config::Job job = prepared.job;
  Session session{job, *prepared.files, prepared.plan, phases, prepared.ffmpeg, ranks};
  session.residents = prepared.residents;
  session.residents->begin(job, *prepared.files, prepared.plan);
  settle_prompt(job, session);
  RunState state;
  return run_pipeline(session, *job.seed, state);
}

Phases run_without_outputs(const PreparedJob& prepared) {
  Phases phases(prepared.plan.device);
  config::Job job = prepared.job;
  Session session{job, *prepared.files, prepared.plan, phases, prepared.ffmpeg};
  session.residents = prepared.residents;
  session.residents->begin(job, *prepared.files, prepared.plan);
  settle_prompt(job, session);
  RunState state;
  const ClipLatents latents = run_pipeline(session, *job.seed, state);
  NullSink sink;
  decode_clip(session, latents, &sink);
  return phases;
}

std::vector<std::string> phase_table(const Phases& phases) {
  std::vector<std::string> lines;
  const double total = phases.total_s();
  for (const auto& [name, seconds] : phases.seconds()) {
    lines.push_back(fmt::format("{:<18} {:>9.3f} s  {:>5.1f} %", name, seconds,
                                total > 0 ? 100 * seconds / total : 0.0));
  }
  lines.push_back(fmt::format("{:<18} {:>9.3f} s", "total", total));
  return lines;
}

}  // namespace flotilla::pipeline
