// What a valid job may ask for and these ranks or this machine cannot do, and the choice of `auto`
// values.
#include <fmt/format.h>

#include <string>
#include <thread>

#include "config/validate.h"

namespace flotilla::config {
namespace {

// More threads than this for each core only wait for each other; the pool behind them fails to
// start long before the key's own limit.
constexpr int64_t kThreadsPerCore = 4;

void check_threads(const Job& job, const Origins& origins, Problems& problems) {
  const int64_t cores = std::thread::hardware_concurrency();  // 0: unknown
  if (!job.threads || cores == 0 || *job.threads <= kThreadsPerCore * cores) return;
  problems.add(origins.place("threads"), "threads",
               fmt::format("{} is more than {} for each core that this process may use ({}); use "
                           "auto, or at most {}",
                           *job.threads, kThreadsPerCore, cores, kThreadsPerCore * cores));
}

}  // namespace

void check_supported(const Job& job, const Origins& origins, int64_t world_size) {
  Problems problems;
  if (job.offload != Offload::none && world_size > 1) {
    problems.add(origins.place("offload"), "offload",
                 fmt::format("{} works on one rank, and this run has {}; use none, or one rank",
                             to_string(job.offload), world_size));
  }
  if (const int64_t groups = job.stage_1.guidance_groups.value_or(1); world_size % groups != 0) {
    const std::string key = "stage_1.guidance_groups";
    problems.add(origins.place(key), key,
                 fmt::format("{} groups of equal size cannot be made of {} rank{}; use auto, or a "
                             "divisor of the number of ranks",
                             groups, world_size, world_size == 1 ? "" : "s"));
  }
  check_threads(job, origins, problems);
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
