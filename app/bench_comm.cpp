// flotilla bench comm: the head exchange and the collectives of this machine, in the manner of
// nccl-tests, beside a plain all-to-all. Every result is checked in the run that is timed
// (comm_cases.h).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "app/bench_support.h"
#include "app/comm_cases.h"
#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "comm/device_choice.h"
#include "comm/rank_context.h"
#include "gpu/device.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "bench comm", "mpirun -n N flotilla bench comm [options]",
    "Times the exchange of tokens for heads (q, k and v in one call), the same with norm and RoPE\n"
    "on the way (exchange_raw), the way back, the head gather, the collectives and a plain\n"
    "all-to-all; on GPUs where every rank sees one. Rows of an exchange that goes through NCCL "
    "end\n"
    "in _nccl. size: bytes of a rank's tensors; algbw = size / p50; busbw = algbw times the share\n"
    "of the bytes that leaves a rank; last but one column: the p50 of the plain all-to-all "
    "(NCCL's\n"
    "on GPUs, else MPI's) divided by the row's.",
    "\"comm\"",
    /*many_ranks=*/true};

// From this size on --min-busbw holds; below, latency rules.
constexpr int64_t kBandwidthBytes = int64_t{1} << 20;

struct Settings {
  CommSettings comm;
  bool allow_shared_device = false;
  double min_busbw = 0;
  std::string json;
};

bool fast_enough(const Settings& settings, const CommResults& results) {
  return std::all_of(results.records.begin(), results.records.end(), [&](const auto& record) {
    return record.name != "exchange" || record.bytes < kBandwidthBytes ||
           record.busbw >= settings.min_busbw;
  });
}

int64_t total_wrong(const CommResults& results) {
  int64_t wrong = 0;
  for (const auto& record : results.records) wrong += record.wrong;
  return wrong;
}

const char* type_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

// A line for each rank: its GPU and how it reaches the others', or its cores.
std::vector<std::string> rank_lines(const comm::RankContext& ranks,
                                    const std::vector<int>& gpu_choice) {
  if (!gpu_choice.empty()) return comm::device_table(ranks.facts(), gpu_choice, ranks.links());
  std::vector<std::string> lines;
  for (const auto& facts : ranks.facts()) {
    lines.push_back(fmt::format("rank {:>2}  {}  process {}  cores {}  {}", lines.size(),
                                facts.host, facts.pid, facts.cores, gpu::device_name(at::kCPU)));
  }
  return lines;
}

void print_table(const std::vector<std::string>& ranks, const Settings& settings,
                 const CommResults& results) {
  const CommSettings& comm = settings.comm;
  fmt::print(
      "# flotilla bench comm {} ({})  mpi {}  torch {}  ranks {}  warmup {}  iters {}  "
      "transport {}  inputs written anew  time = slowest rank\n",
      kVersion, kCommit, kMpiVersion, kTorchVersion, ranks.size(), comm.warmup, comm.iters,
      results.transports);
  for (const auto& line : ranks) fmt::print("#  {}\n", line);
  if (!results.missing.empty())
    fmt::print("# no exchange through the peers' memory: {}\n", results.missing);
  constexpr const char* kHeads =
      "# {:<21} {:>9} {:>7} {:>6} {:>5} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7}\n";
  fmt::print(fmt::runtime(kHeads), "operation", "size", "tokens", "heads", "type", "calls", "min",
             "p50", "p99", "algbw", "busbw", results.has_nccl ? "vs nccl" : "vs a2a", "#wrong");
  fmt::print(fmt::runtime(kHeads), "", "(B)", "a rank", "", "", "", "(us)", "(us)", "(us)",
             "(GB/s)", "(GB/s)", "(x)", "");
  for (const auto& record : results.records) {
    fmt::print(
        "  {:<21} {:>9} {:>7} {:>6} {:>5} {:>6} {:>9.1f} {:>9.1f} {:>9.1f} {:>8.2f} {:>8.2f} "
        "{:>7.2f} {:>7}\n",
        record.name, record.bytes, record.tokens, comm.heads, type_name(comm.dtype), record.calls,
        record.min_us, record.p50_us, record.p99_us, record.algbw, record.busbw,
        record.vs_all_to_all, record.wrong);
  }
  const int64_t wrong = total_wrong(results);
  fmt::print("# wrong values: {} {}        min busbw: {}\n", wrong, wrong == 0 ? "OK" : "FAILED",
             settings.min_busbw <= 0          ? "unchecked"
             : fast_enough(settings, results) ? "OK"
                                              : "FAILED");
}

void write_json(const std::vector<std::string>& ranks, const Settings& settings,
                const CommResults& results) {
  nlohmann::ordered_json json = {{"version", kVersion},
                                 {"commit", kCommit},
                                 {"mpi", kMpiVersion},
                                 {"ranks", ranks.size()},
                                 {"places", ranks},
                                 {"transports", results.transports},
                                 {"missing", results.missing},
                                 {"warmup", settings.comm.warmup},
                                 {"type", type_name(settings.comm.dtype)},
                                 {"heads", settings.comm.heads},
                                 {"head_dim", settings.comm.head_dim},
                                 {"records", nlohmann::ordered_json::array()}};
  for (const auto& record : results.records) {
    json["records"].push_back({{"operation", record.name},
                               {"size_bytes", record.bytes},
                               {"tokens", record.tokens},
                               {"calls", record.calls},
                               {"iters", record.iters},
                               {"min_us", record.min_us},
                               {"p50_us", record.p50_us},
                               {"p99_us", record.p99_us},
                               {"algbw_gbps", record.algbw},
                               {"busbw_gbps", record.busbw},
                               {"vs_all_to_all", record.vs_all_to_all},
                               {"wrong", record.wrong}});
  }
  write_bench_json(settings.json, json);
}

// "6144,24576"
std::vector<int64_t> parse_tokens(const std::string& text) {
  std::vector<int64_t> tokens;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int64_t count = 0;
    const auto [next, error] = std::from_chars(at, end, count);
    if (error != std::errc() || count < 1 || count > 1 << 24 || (next != end && *next != ','))
      fail(ErrorKind::usage, fmt::format("--tokens is like 6144,24576, not \"{}\"", text));
    tokens.push_back(count);
    if (next == end) return tokens;
    at = next + 1;
  }
}

CommSettings read_sizes(const po::variables_map& values) {
  CommSettings comm;
  // With --tokens, what is not said is as in the model of those clips.
  const bool by_tokens = values.count("tokens") != 0;
  if (by_tokens) comm.tokens = parse_tokens(values["tokens"].as<std::string>());
  const auto size = [&](const char* name, int64_t otherwise) {
    return values.count(name) != 0 ? values[name].as<int64_t>() : otherwise;
  };
  comm.min_bytes = values["min-bytes"].as<int64_t>();
  comm.max_bytes = values["max-bytes"].as<int64_t>();
  comm.heads = size("heads", by_tokens ? 32 : 24);
  comm.head_dim = size("head-dim", by_tokens ? 128 : 64);
  const std::string type = values.count("type") != 0 ? values["type"].as<std::string>()
                           : by_tokens               ? "bf16"
                                                     : "fp32";
  if (type != "fp32" && type != "bf16")
    fail(ErrorKind::usage, fmt::format("--type is fp32 or bf16, not \"{}\"", type));
  comm.dtype = type == "bf16" ? at::kBFloat16 : at::kFloat;
  const bool sizes =
      comm.min_bytes >= 1 && comm.max_bytes >= comm.min_bytes && comm.max_bytes <= int64_t{1} << 30;
  if (!sizes || comm.heads < 1 || comm.head_dim < 1 || comm.row_bytes() > 1 << 20) {
    fail(ErrorKind::usage,
         "sizes must be 1 B to 1 GiB with --min-bytes <= --max-bytes, heads times head-dim at most "
         "1 MiB a token");
  }
  return comm;
}

Settings read_settings(const po::variables_map& values) {
  Settings settings{.comm = read_sizes(values),
                    .allow_shared_device = values.count("allow-shared-device") != 0,
                    .min_busbw = values["min-busbw"].as<double>(),
                    .json = values.count("json") != 0 ? values["json"].as<std::string>() : ""};
  settings.comm.warmup = values["warmup"].as<int>();
  settings.comm.iters = values["iters"].as<int>();
  settings.comm.calls = values["calls"].as<int>();
  settings.comm.collectives = values.count("exchanges-only") == 0;
  settings.comm.limit_s = values["limit"].as<double>();
  if (settings.comm.warmup < 0 || settings.comm.iters < 1 || settings.comm.calls < 1)
    fail(ErrorKind::usage, "--warmup must be 0 or more, --iters and --calls 1 or more");
  return settings;
}

int run_on(comm::RankContext& ranks, const Settings& settings) {
  comm::agreed(ranks.world(), [&] {
    if (ranks.is_driver() && !settings.json.empty()) check_output_place(settings.json, true);
  });
  std::vector<int> gpu_choice;
  at::Device device = at::kCPU;
  if (comm::all_see_gpus(ranks.facts())) {
    gpu_choice = comm::choose_gpus(ranks.facts(), settings.allow_shared_device);
    ranks.attach_gpus(gpu_choice);
    const int own = gpu_choice[static_cast<size_t>(ranks.rank())];
    device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(own));
  }
  const CommResults results = measure_communication(ranks, settings.comm, device);
  comm::agreed(ranks.world(), [&] {
    if (!ranks.is_driver()) return;
    const auto lines = rank_lines(ranks, gpu_choice);
    print_table(lines, settings, results);
    if (!settings.json.empty()) write_json(lines, settings, results);
  });
  const bool good = total_wrong(results) == 0 && fast_enough(settings, results);
  // The times are the same on all ranks, so all give the same code.
  return good ? 0 : exit_code(ErrorKind::internal);
}

}  // namespace

int bench_comm(const Arguments& arguments) {
  po::options_description options("options");
  const auto size = [](int64_t value) { return po::value<int64_t>()->default_value(value); };
  const auto count = [](int value) { return po::value<int>()->default_value(value); };
  auto add = options.add_options();
  add("min-bytes", size(4096), "smallest size; the next is four times as large");
  add("max-bytes", size(16 << 20), "largest size");
  add("tokens", po::value<std::string>()->value_name("T,.."),
      "tokens of clips, over all ranks, instead of sizes");
  add("heads", po::value<int64_t>(),
      "attention heads, a multiple of the ranks (24; with --tokens 32)");
  add("head-dim", po::value<int64_t>(), "values of a head (64; with --tokens 128)");
  add("type", po::value<std::string>(), "fp32 or bf16 (fp32; with --tokens bf16)");
  add("warmup", count(5), "samples that are not counted, two at least");
  add("iters", count(20), "samples that are");
  add("calls", count(20), "calls of a sample on GPUs, between two waits for the device");
  add("limit", po::value<double>()->default_value(5),
      "seconds of one operation at one size, about: slow ones get fewer samples");
  add("exchanges-only", "without the collectives");
  add("min-busbw", po::value<double>()->default_value(0),
      "GB/s that an exchange of 1 MiB or more must reach; 0: any");
  add("allow-shared-device", "several ranks may have one GPU");
  add("json", po::value<std::string>()->value_name("FILE"), "write the records there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  positional(kUsage, *values);  // the word "comm" itself, and nothing behind it
  const Settings settings = read_settings(*values);
  return comm::run_on_ranks({host().variable},
                            [&](comm::RankContext& ranks) { return run_on(ranks, settings); });
}

}  // namespace flotilla::app
