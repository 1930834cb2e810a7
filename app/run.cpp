// flotilla run: a job file becomes a clip.
#include <fmt/format.h>

#include "app/command.h"
#include "app/controller.h"
#include "app/dry_run.h"
#include "app/job_listener.h"
#include "app/launcher.h"
#include "app/options.h"
#include "app/process.h"
#include "app/stored_job.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/rank_context.h"
#include "config/writer.h"
#include "pipeline/outputs.h"
#include "pipeline/run_job.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "run",
    "flotilla run JOB.yaml [options]\n       flotilla run --ranks N JOB.yaml [options]\n"
    "       flotilla run --resume CHECKPOINT.h5 [options]\n"
    "       flotilla run --from CLIP.mp4|LATENTS.h5 [options]",
    "Generates the clip that JOB.yaml describes (\"-\": standard input). "
    "Keys: docs/configuration.md.\n"
    "Order: defaults < JOB.yaml < options. Paths in the file count from the "
    "file, those of options from here.\n"
    "--resume goes on with a run that was stopped; without JOB.yaml, the job is the one in the "
    "checkpoint.\n"
    "--from makes a clip once more, with the job that its file holds and the options' changes to "
    "it.",
    "JOB.yaml", /*many_ranks=*/true};

// The driver's job on every rank, with one seed. The file was read by each rank for itself; what
// counts is the driver's reading, so that a file that changes meanwhile cannot split the ranks.
config::LoadedJob share_job(config::LoadedJob loaded, comm::RankContext& context) {
  if (context.is_driver() && !loaded.job.seed) loaded.job.seed = pipeline::draw_seed();
  const std::string text = context.world().broadcast(config::to_yaml(loaded.job), 0);
  if (context.is_driver()) return loaded;
  return config::load_job_text(text, "the driver's job", "/");
}

config::LoadedJob load(const po::variables_map& values) {
  auto overrides = job_overrides(values);
  if (values.count("from") != 0) {
    if (values.count("positional") != 0 || values.count("resume") != 0)
      fail(ErrorKind::usage, "--from takes the place of JOB.yaml and of --resume");
    return load_job_from(values["from"].as<std::string>(), overrides);
  }
  if (values.count("resume") == 0) return config::load_job(positional(kUsage, values), overrides);
  const std::string checkpoint = values["resume"].as<std::string>();
  overrides.push_back({"checkpoint.path", checkpoint, "--resume", /*raw_string=*/true});
  overrides.push_back({"checkpoint.resume", "must", "--resume", false});
  return values.count("positional") != 0 ? config::load_job(positional(kUsage, values), overrides)
                                         : load_checkpoint_job(checkpoint, overrides);
}

int run_loaded(config::LoadedJob loaded, const pipeline::Ranks& ranks,
               const pipeline::StopSources& stop, const JobListener& listener) {
  pipeline::Host surroundings = host();
  surroundings.fault = test_fault();
  surroundings.events = listener.events();
  surroundings.preview_every = listener.preview_every();
  if (ranks.context != nullptr) ranks.context->note_phase("prepare");
  pipeline::RunControl control{stop, {}};
  control.resume = ranks.agreed(
      [&] { return ranks.is_driver() ? pipeline::find_checkpoint(loaded.job) : std::nullopt; });
  // A seed that was drawn is the checkpoint's.
  if (control.resume && !loaded.job.seed)
    loaded.job.seed = static_cast<uint64_t>(control.resume->file.seed);
  if (ranks.context != nullptr) loaded = share_job(std::move(loaded), *ranks.context);
  const auto outputs = ranks.is_driver() ? pipeline::Outputs::checked : pipeline::Outputs::ignored;
  pipeline::PreparedJob prepared =
      ranks.agreed([&] { return pipeline::prepare_job(loaded, host(), outputs, ranks); });
  const pipeline::Phases phases = pipeline::run_job(prepared, surroundings, ranks, control);
  if (!ranks.is_driver()) return 0;
  log::info("run", "done in {}, clip \"{}\", exit code 0 (success)",
            human_duration(phases.elapsed_s()), prepared.job.output.path.string());
  if (listener.owns_stdout()) return 0;
  fmt::print("prompt         {}\nseed           {}\n", prepared.job.prompt, *prepared.job.seed);
  for (const auto& line : pipeline::describe_outputs(prepared.job, prepared.plan))
    fmt::print("{}\n", line);
  for (const auto& line : pipeline::phase_table(phases)) fmt::print("{}\n", line);
  return 0;
}

// A test may ask for a rank that does not come: a fault in a phase "start".
comm::RankOptions rank_options() {
  comm::RankOptions options{.environment = host().variable};
  const auto fault = test_fault();
  if (!fault) return options;
  options.start_limit_s = fault->patience_s.value_or(options.start_limit_s);
  if (fault->phase == "start")
    pipeline::FaultHook(fault, launched_ranks().rank).reached("start", 0);
  return options;
}

int run_job_file(const po::variables_map& values, const Arguments& arguments,
                 const std::optional<ControlRequest>& control, JobListener& listener) {
  auto loaded = load(values);
  if (values.count("print-config") != 0) {
    fmt::print("{}", config::to_yaml(loaded.job));
    return 0;
  }
  if (values.count("dry-run") != 0) return dry_run(loaded, values);
  require_no_dry_run_options(values);
  // Without a checkpoint there is nothing that a stop at the next step could save.
  const bool can_stop = !loaded.job.checkpoint.path.empty();
  if (control && control->ranks > 1) return control_ranks(*control, arguments, can_stop);
  const pipeline::StopSources stop{.signal = held_signal, .allocation_end = allocation_end()};
  if (can_stop) hold_first_signal();
  if (launched_ranks().world_size == 1) return run_loaded(std::move(loaded), {}, stop, listener);
  return comm::run_on_ranks(rank_options(), [&](comm::RankContext& context) {
    return listener.watch(
        [&] { return run_loaded(std::move(loaded), {&context}, stop, listener); });
  });
}

}  // namespace

int run(const Arguments& arguments) {
  po::options_description options = job_options();
  auto add = options.add_options();
  add("resume", po::value<std::string>()->value_name("FILE"),
      "go on from this checkpoint, and write the next ones to it");
  add("from", po::value<std::string>()->value_name("FILE"),
      "make the clip of this .mp4 or latents file once more, with the job that it holds");
  add("print-config", "print the job in force as YAML and stop");
  add_events_options(options);
  add_control_options(options);
  add_dry_run_options(options);
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  const auto control = control_request(*values);
  if (!control) test_fault();  // refused here, before the ranks are open
  if (control && control->ranks > 1 && values->count("positional") != 0 &&
      positional(kUsage, *values) == "-")
    fail(ErrorKind::usage, "--ranks: standard input reaches one process only; name a job file");
  if (values->count("events") != 0 &&
      (values->count("dry-run") != 0 || values->count("print-config") != 0))
    fail(ErrorKind::usage, "--events: there are none without a run");
  JobListener listener(*values);
  return listener.watch([&] { return run_job_file(*values, arguments, control, listener); });
}

}  // namespace flotilla::app
