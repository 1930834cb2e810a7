#include "pipeline/job_events.h"

#include <nlohmann/json.hpp>

#include "config/job_hash.h"
#include "io/clock.h"
#include "pipeline/record.h"

namespace flotilla::pipeline {
namespace {

using nlohmann::json;

json outputs_of(const config::Output& output) {
  json outputs = {{"clip", output.path.string()}};
  if (!output.latents.empty()) outputs["latents"] = output.latents.string();
  if (!output.metrics.empty()) outputs["metrics"] = output.metrics.string();
  if (!output.contact_sheet.empty()) outputs["contact_sheet"] = output.contact_sheet.string();
  return outputs;
}

}  // namespace

json accepted_event(const PreparedJob& prepared) {
  const auto& [job, plan] = std::tie(prepared.job, prepared.plan);
  return {{"event", "accepted"},
          {"time", io::time_text(io::wall_clock_s())},
          {"version", program_version()},
          {"job_hash", config::job_hash(job)},
          {"seed", *job.seed},
          {"world_size", plan.world_size},
          {"steps",
           {{plan.stage_1.name, plan.stage_1.num_steps()},
            {plan.stage_2.name, plan.stage_2.num_steps()}}},
          {"outputs", outputs_of(job.output)}};
}

json done_event(const PreparedJob& prepared, const Phases& phases) {
  return {{"event", "done"},
          {"time", io::time_text(io::wall_clock_s())},
          {"elapsed_s", phases.elapsed_s()},
          {"warm", phases.warm()},
          {"seed", *prepared.job.seed},
          {"prompt", prepared.job.prompt},
          {"outputs", outputs_of(prepared.job.output)},
          {"exit_code", 0}};
}

json error_event(ErrorKind kind, std::string_view message) {
  return {{"event", "error"},
          {"time", io::time_text(io::wall_clock_s())},
          {"kind", to_string(kind)},
          {"message", message},
          {"exit_code", exit_code(kind)}};
}

}  // namespace flotilla::pipeline
