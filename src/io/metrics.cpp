#include "io/metrics.h"

#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/temp_file.h"
#include "base/text.h"
#include "io/file_bytes.h"
#include "io/metrics_csv.h"

namespace flotilla::io {
namespace {

constexpr int kSchemaVersion = 1;

// Variables that explain a speed or a placement.
constexpr const char* kVariables[] = {"SLURM_JOB_ID",
                                      "SLURM_ARRAY_JOB_ID",
                                      "SLURM_ARRAY_TASK_ID",
                                      "SLURM_STEP_ID",
                                      "SLURM_RESTART_COUNT",
                                      "SLURM_JOB_PARTITION",
                                      "SLURM_JOB_NUM_NODES",
                                      "SLURM_JOB_NODELIST",
                                      "SLURM_NTASKS",
                                      "SLURM_CPUS_PER_TASK",
                                      "SLURM_GPUS_PER_NODE",
                                      "SLURM_GPUS_PER_TASK",
                                      "SLURM_JOB_GPUS",
                                      "SLURM_JOB_END_TIME",
                                      "SLURM_CPU_BIND",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "OMPI_MCA_btl",
                                      "OMPI_MCA_pml",
                                      "OMPI_MCA_coll",
                                      "OMPI_MCA_hwloc_base_binding_policy",
                                      "OMPI_MCA_mpi_yield_when_idle",
                                      "OMPI_MCA_rmaps_base_oversubscribe",
                                      "PMIX_VERSION",
                                      "CUDA_VISIBLE_DEVICES",
                                      "CUDA_DEVICE_ORDER",
                                      "CUDA_LAUNCH_BLOCKING",
                                      "CUDA_MODULE_LOADING",
                                      "NCCL_ALGO",
                                      "NCCL_PROTO",
                                      "NCCL_DEBUG",
                                      "NCCL_P2P_DISABLE",
                                      "NCCL_P2P_LEVEL",
                                      "NCCL_SHM_DISABLE",
                                      "NCCL_NVLS_ENABLE",
                                      "NCCL_CUMEM_ENABLE",
                                      "NCCL_NET",
                                      "NCCL_IB_DISABLE",
                                      "NCCL_SOCKET_IFNAME",
                                      "NCCL_BUFFSIZE",
                                      "NCCL_MAX_NCHANNELS",
                                      "FLOTILLA_TEST_FAULT",
                                      "OMP_NUM_THREADS",
                                      "OMP_PROC_BIND",
                                      "OMP_PLACES",
                                      "OMP_SCHEDULE",
                                      "OMP_DYNAMIC",
                                      "OMP_WAIT_POLICY",
                                      "MKL_NUM_THREADS",
                                      "HDF5_USE_FILE_LOCKING",
                                      "LOADEDMODULES",
                                      "APPTAINER_NAME",
                                      "SINGULARITY_NAME"};

// The first line of a /proc file that begins with `key`, from its value on; "" when there is none.
std::string proc_value(const char* path, std::string_view key) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const size_t start = line.find_first_not_of(" \t", line.find(':') + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

Metrics::Json to_json(const RankSpread& spread) {
  return {{"min", spread.min}, {"median", spread.median}, {"max", spread.max}};
}

// An entry of the process' status that is given in kB.
int64_t bytes_of_process(const char* entry) {
  int64_t kibibytes = 0;
  std::istringstream(proc_value("/proc/self/status", entry)) >> kibibytes;
  return kibibytes * 1024;
}

}  // namespace

RankSpread spread_over_ranks(std::vector<double> values) {
  FLOTILLA_ASSERT(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {values.front(), median, values.back()};
}

Metrics::Metrics() {
  json_["schema_version"] = kSchemaVersion;
  for (const char* block :
       {"start", "end", "versions", "environment", "slurm", "devices", "job", "plan"})
    json_[block] = nullptr;
  json_["prompt_truncated"] = nullptr;
  json_["total_s"] = nullptr;
  json_["phases"] = Json::object();
  json_["steps"] = Json::object();
  json_["over_ranks"] = {{"phases", Json::object()}, {"steps", Json::object()}};
  for (const char* block : {"timeline", "phases_memory"}) json_[block] = nullptr;
  json_["exchange"] = {{"bytes", nullptr}, {"seconds", nullptr}};
  for (const char* block : {"checkpoint", "latents"}) json_[block] = nullptr;
  for (const char* figure :
       {"bytes_read_total", "padding_fraction", "peak_host_bytes", "peak_device_bytes"}) {
    json_[figure] = nullptr;
  }
}

void Metrics::set_block(const std::string& block, Json value) {
  FLOTILLA_ASSERT(json_.contains(block));
  json_[block] = std::move(value);
}

void Metrics::declare_phases(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    json_["phases"][name + "_s"] = nullptr;
    json_["over_ranks"]["phases"][name + "_s"] = nullptr;
  }
}

void Metrics::add_phase(const std::string& name, const RankSpread& seconds) {
  Json& total = json_["phases"][name + "_s"];
  Json& sum = json_["over_ranks"]["phases"][name + "_s"];
  if (total.is_null()) {
    total = 0.0;
    sum = to_json({});
  }
  total = total.get<double>() + seconds.max;
  sum =
      to_json({sum["min"].get<double>() + seconds.min, sum["median"].get<double>() + seconds.median,
               sum["max"].get<double>() + seconds.max});
}

void Metrics::add_step(const std::string& stage, const RankSpread& seconds) {
  json_["steps"][stage].push_back(seconds.max);
  json_["over_ranks"]["steps"][stage].push_back(to_json(seconds));
}

void Metrics::set_bytes_read(int64_t total) { json_["bytes_read_total"] = total; }

void Metrics::set_padding_fraction(double fraction) { json_["padding_fraction"] = fraction; }

void Metrics::set_peak_bytes(int64_t host, std::optional<int64_t> device) {
  json_["peak_host_bytes"] = host;
  if (device) json_["peak_device_bytes"] = *device;
}

void Metrics::set_exchange(int64_t bytes, double seconds) {
  json_["exchange"]["bytes"] = bytes;
  json_["exchange"]["seconds"] = seconds;
}

void Metrics::set_total_s(double seconds) { json_["total_s"] = seconds; }

void Metrics::set_prompt_truncated(bool truncated) { json_["prompt_truncated"] = truncated; }

void Metrics::set_extra(const std::string& key, Json value) { json_[key] = std::move(value); }

void Metrics::write(const std::filesystem::path& path, bool overwrite) const {
  PendingFile file(path, overwrite);
  // Bytes that are no UTF-8 (a path from the environment) must not cost the whole file.
  const std::string text = to_lower(path.extension().string()) == ".csv"
                               ? metrics_csv(json_)
                               : json_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  write_bytes(file.temporary(), path, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.commit();
}

Metrics::Json capture_environment(const std::function<const char*(const char*)>& variable) {
  Metrics::Json json;
  utsname names{};
  ::uname(&names);
  json["host"] = names.nodename;
  json["kernel"] = std::string(names.sysname) + " " + names.release;
  json["architecture"] = names.machine;
  json["cpu"] = proc_value("/proc/cpuinfo", "model name");
  json["cpu_threads"] = std::thread::hardware_concurrency();
  json["host_memory"] = proc_value("/proc/meminfo", "MemTotal");
  Metrics::Json& variables = json["variables"] = Metrics::Json::object();
  for (const char* name : kVariables) {
    const char* value = variable(name);
    variables[name] = value != nullptr ? Metrics::Json(value) : Metrics::Json(nullptr);
  }
  return json;
}

std::optional<int64_t> restart_count(const std::function<const char*(const char*)>& variable) {
  const char* text = variable("SLURM_RESTART_COUNT");
  if (text == nullptr) return std::nullopt;
  int64_t count = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, code] = std::from_chars(text, end, count);
  if (code != std::errc() || stop != end || count < 0) return std::nullopt;
  return count;
}

Metrics::Json capture_slurm(const std::function<const char*(const char*)>& variable) {
  if (variable("SLURM_JOB_ID") == nullptr) return nullptr;
  Metrics::Json json;
  for (const auto& [key, name] :
       {std::pair("job_id", "SLURM_JOB_ID"), std::pair("array_job_id", "SLURM_ARRAY_JOB_ID"),
        std::pair("array_task_id", "SLURM_ARRAY_TASK_ID"), std::pair("step_id", "SLURM_STEP_ID")}) {
    const char* value = variable(name);
    json[key] = value != nullptr ? Metrics::Json(value) : Metrics::Json(nullptr);
  }
  const auto count = restart_count(variable);
  json["restart_count"] = count ? Metrics::Json(*count) : Metrics::Json(nullptr);
  return json;
}

int64_t peak_host_bytes() { return bytes_of_process("VmHWM"); }
bool start_host_peak() {
  // "5" resets the peak alone, see proc(5).
  std::ofstream stream("/proc/self/clear_refs");
  stream << "5";
  stream.close();
  return stream.good();
}
int64_t held_host_bytes() { return bytes_of_process("VmRSS"); }

}  // namespace flotilla::io
