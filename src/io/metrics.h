// The metrics file of a run: one JSON object, always the same fields in the same order, so that two
// runs can be compared line by line; what is not known stays null. Units stand in the names.
// Layout: docs/configuration.md, "Metrics". Times are seconds, sizes bytes, as plain numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace flotilla::io {

// Of one figure over the ranks. With one rank all three are equal.
struct RankSpread {
  double min = 0;
  double median = 0;
  double max = 0;
};
// `values`: one a rank, not empty.
RankSpread spread_over_ranks(std::vector<double> values);

class Metrics {
 public:
  using Json = nlohmann::ordered_json;

  Metrics();
  // Blocks and figures that the caller fills: "start", "end", "versions", "environment", "slurm",
  // "devices", "job", "plan", "timeline", "phases_memory", "checkpoint", "latents".
  void set_block(const std::string& block, Json value);
  // Phases that may come, in this order: null until they do.
  void declare_phases(const std::vector<std::string>& names);
  // phases.<name>_s is the slowest rank's time; over_ranks.phases.<name>_s has all three figures.
  // Phases not declared follow in the order of the first call; a second call for a name adds.
  void add_phase(const std::string& name, const RankSpread& seconds);
  // steps.<stage>[] and over_ranks.steps.<stage>[], likewise.
  void add_step(const std::string& stage, const RankSpread& seconds);
  void set_bytes_read(int64_t total);
  // Padded tokens over all tokens of the sequence-parallel stages, 0 to 1.
  void set_padding_fraction(double fraction);
  // Largest over the ranks; without a device, leave that one unset.
  void set_peak_bytes(int64_t host, std::optional<int64_t> device);
  void set_exchange(int64_t bytes, double seconds);
  void set_total_s(double seconds);
  void set_prompt_truncated(bool truncated);
  // A further figure at the top level, behind the fixed ones.
  void set_extra(const std::string& key, Json value);

  const Json& json() const { return json_; }
  // Written whole or not at all; to a name that ends with ".csv" as a table (metrics_csv.h).
  // Errors: ErrorKind::output.
  void write(const std::filesystem::path& path, bool overwrite) const;

 private:
  Json json_;
};

// Where a run took place: host, kernel, processor, cores, and those variables of Slurm, Open MPI,
// CUDA, NCCL and OpenMP that are on a fixed list. Never the whole environment, which may hold
// secrets, and no user name. `variable` looks a name up (the app passes getenv) and gives null for
// an unset one.
Metrics::Json capture_environment(const std::function<const char*(const char*)>& variable);

// Numbers of the batch job: job_id, array_job_id, array_task_id, step_id, restart_count; null
// without Slurm.
Metrics::Json capture_slurm(const std::function<const char*(const char*)>& variable);
// SLURM_RESTART_COUNT: how often the batch job was put back into the queue.
std::optional<int64_t> restart_count(const std::function<const char*(const char*)>& variable);

// Most memory that this process has held (VmHWM), since start_host_peak() when there was one; 0
// when the system does not say.
int64_t peak_host_bytes();
// Counts the peak anew, from what is held now. False: the system does not allow it.
bool start_host_peak();
// What it holds now (VmRSS); 0 likewise.
int64_t held_host_bytes();

}  // namespace flotilla::io
