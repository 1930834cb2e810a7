// What a valid job may ask for and this version does not run yet, and the choice of `auto` values.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "config/validate.h"

namespace flotilla::config {
namespace {

struct Unsupported {
  bool is_asked_for;
  std::string_view key;
  std::string_view instead;
};

}  // namespace

void check_supported(const Job& job, const Origins& origins, int64_t world_size) {
  const bool is_fp8 =
      job.precision == Precision::fp8_cast || job.precision == Precision::fp8_scaled_mm;
  const bool has_limits = job.limits.max_hours || !job.limits.stop_file.empty();
  const auto& grid = job.decoder.tiles.grid;
  const Unsupported table[] = {
      {is_fp8, "precision", "use auto, fp32 or bf16"},
      {job.offload != Offload::none, "offload", "use none"},
      {job.text.enhance, "text.enhance", "use false"},
      {!job.checkpoint.path.empty(), "checkpoint.path", "remove it"},
      {has_limits, "limits", "remove it"},
      {grid && *grid != TileGrid{1, 1, 1}, "decoder.tiles.grid", "use auto"},
  };
  Problems problems;
  for (const auto& [is_asked_for, key, instead] : table) {
    const std::string name(key);
    if (is_asked_for) {
      problems.add(origins.place(name), name,
                   fmt::format("is not built into this version yet; {}", instead));
    }
  }
  if (const int64_t groups = job.stage_1.guidance_groups.value_or(1); world_size % groups != 0) {
    const std::string key = "stage_1.guidance_groups";
    problems.add(origins.place(key), key,
                 fmt::format("{} groups of equal size cannot be made of {} rank{}; use auto, or a "
                             "divisor of the number of ranks",
                             groups, world_size, world_size == 1 ? "" : "s"));
  }
  problems.throw_if_any(ErrorKind::config);
}

Job resolve_job(Job job, const Machine& machine) {
  if (job.device == Device::automatic) job.device = machine.has_gpu ? Device::cuda : Device::cpu;
  const bool on_gpu = job.device == Device::cuda;
  if (job.precision == Precision::automatic) {
    job.precision = on_gpu ? Precision::bf16 : Precision::fp32;
  }
  if (job.stage_2.parallel == Stage2Parallel::automatic) {
    const bool tiles = job.pipeline == Pipeline::ti2vid_two_stages && machine.world_size > 1 &&
                       job.reproducible == Reproducible::run;
    job.stage_2.parallel = tiles ? Stage2Parallel::tdp : Stage2Parallel::sp;
  }
  if (!job.sp.exchange_timeout_seconds) job.sp.exchange_timeout_seconds = on_gpu ? 10.0 : 120.0;
  return job;
}

}  // namespace flotilla::config
