// flotilla devices: what this machine has for a job, and what a job would use of it.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "app/report.h"
#include "base/error.h"
#include "comm/libraries.h"
#include "comm/rank_context.h"
#include "config/validate.h"
#include "fleet/mpirun.h"
#include "gpu/device.h"
#include "gpu/visible_gpus.h"
#include "io/ffmpeg.h"
#include "pipeline/precision.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "devices", "flotilla devices [--json]",
    "Lists the processor, the GPUs that CUDA shows and the links between them, MPI, NCCL and\n"
    "ffmpeg, and says what a job with \"device: auto\" would use here, and why. Computes nothing.",
    "nothing"};

at::Device gpu_number(size_t i) { return {at::kCUDA, static_cast<c10::DeviceIndex>(i)}; }

Report cpu_of(const comm::RankFacts& facts) {
  return {
      {"name", gpu::device_name(at::kCPU)},
      {"cores", facts.cores},
      {"threads", at::get_num_threads()},
      {"memory_bytes", static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE)},
      // Where a control group (Slurm, a container) leaves less than the machine has.
      {"usable_memory_bytes", gpu::total_memory_bytes(at::kCPU)}};
}

Report gpus_of(const comm::RankFacts& facts) {
  Report list = Report::array();
  for (size_t i = 0; i < facts.gpus.size(); ++i) {
    const gpu::Gpu& gpu = facts.gpus[i];
    const auto capability = gpu::device_facts(gpu_number(i)).capability;
    list.push_back({{"number", i},
                    {"name", gpu.name},
                    {"memory_bytes", gpu.memory_bytes},
                    {"capability", capability ? Report(capability->text()) : Report()},
                    {"uuid", gpu.uuid},
                    {"bus_id", gpu.bus_id}});
  }
  return list;
}

// How kernels on one GPU reach the memory of each other one; none with fewer than two.
Report links_of(const comm::RankFacts& facts) {
  Report list = Report::array();
  const auto count = static_cast<int>(facts.gpus.size());
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from == to) continue;
      list.push_back(
          {{"from", from}, {"to", to}, {"link", gpu::to_string(gpu::peer_link(from, to))}});
    }
  }
  return list;
}

// The program's place, or why there is none.
Report mpirun_here() {
  try {
    return fleet::find_mpirun("", host().search_path);
  } catch (const Error&) {
    return {};
  }
}

Report ffmpeg_here() {
  try {
    const auto found = io::find_ffmpeg({}, host().search_path);
    if (!found) return {};
    return {{"path", found->path.string()},
            {"version", found->version},
            {"libx264", found->has_h264},
            {"aac", found->has_aac},
            {"can_write_mp4", found->can_write_mp4()}};
  } catch (const Error& error) {
    Report report;
    report["problem"] = error.message();
    return report;
  }
}

std::string reason(const comm::RankFacts& facts) {
  if (!facts.gpus.empty()) {
    return fmt::format("CUDA shows {} GPU{}", facts.gpus.size(), facts.gpus.size() == 1 ? "" : "s");
  }
  if (std::string_view(kCudaBuild) == "off") return "this is a build without CUDA";
  return fmt::format("CUDA shows no GPU; CUDA_VISIBLE_DEVICES {}",
                     comm::describe_cuda_filter(facts.cuda_filter));
}

// The precisions that the device can do at all.
std::vector<std::string> precisions_on(const gpu::DeviceFacts& device) {
  using config::Precision;
  std::vector<std::string> able;
  for (const auto precision :
       {Precision::fp32, Precision::bf16, Precision::fp8_cast, Precision::fp8_scaled_mm}) {
    try {
      pipeline::check_precision(precision, device);
      able.emplace_back(config::to_string(precision));
    } catch (const Error&) {
      continue;
    }
  }
  return able;
}

// As prepare_job() decides it, for a job in which everything is `auto`.
Report auto_job(const comm::RankFacts& facts) {
  const bool has_gpu = !facts.gpus.empty();
  const config::Job job = config::resolve_job({}, {.has_gpu = has_gpu, .world_size = 1});
  const at::Device device = has_gpu ? gpu_number(0) : at::Device(at::kCPU);
  return {{"device", config::to_string(job.device)},
          {"because", reason(facts)},
          {"precision", config::to_string(job.precision)},
          {"precisions", precisions_on(gpu::device_facts(device))},
          {"attention", has_gpu ? "cudnn, and flash where that cannot serve" : "flash"},
          {"ranks", has_gpu ? facts.gpus.size() : 1}};
}

Report look_around() {
  const comm::RankFacts facts = comm::local_facts(host().variable);
  const std::string nccl = comm::nccl_library();
  return {{"host", facts.host},
          {"cpu", cpu_of(facts)},
          {"gpus", gpus_of(facts)},
          {"links", links_of(facts)},
          {"mpi", {{"library", comm::mpi_library()}, {"mpirun", mpirun_here()}}},
          {"nccl", nccl.empty() ? Report() : Report(nccl)},
          {"ffmpeg", ffmpeg_here()},
          {"build",
           {{"flotilla", fmt::format("{} ({})", kVersion, kCommit)},
            {"libtorch", kTorchVersion},
            {"cuda", kCudaBuild}}},
          {"auto", auto_job(facts)}};
}

}  // namespace

int devices(const Arguments& arguments) {
  po::options_description options("options");
  options.add_options()("json", "as JSON, with sizes as plain bytes");
  const auto values = parse(kUsage, options, arguments);
  if (!values) return 0;
  if (values->count("positional") != 0)
    fail(ErrorKind::usage, "flotilla devices takes options only; usage: flotilla devices [--json]");
  print_report(look_around(), values->count("json") != 0);
  return 0;
}

}  // namespace flotilla::app
