// flotilla bench comm: the head exchange and the collectives of this machine, in the manner of
// nccl-tests, beside plain MPI_Alltoall. Every result is checked in the run that is timed.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "comm/head_exchange.h"
#include "comm/mpi_baseline.h"
#include "comm/rank_context.h"
#include "gpu/device.h"
#include "io/file_bytes.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "bench comm", "mpirun -n N flotilla bench comm [options]",
    "Times the exchange of tokens for heads (q, k and v in one call), the way back, the head\n"
    "gather, the collectives and plain MPI_Alltoall. size: bytes of a rank's tensors; algbw =\n"
    "size / p50; busbw = algbw times the share of the bytes that leaves a rank; vs a2a:\n"
    "MPI_Alltoall's p50 divided by the row's.",
    "\"comm\"",
    /*many_ranks=*/true};

// From this size on --min-busbw holds; below, latency rules.
constexpr int64_t kBandwidthBytes = int64_t{1} << 20;

struct Settings {
  int64_t min_bytes, max_bytes, heads, head_dim;
  int warmup, iters;
  at::ScalarType dtype;
  double min_busbw;
  std::string json;
  int64_t width() const { return heads * head_dim; }
  int64_t row_bytes() const { return width() * static_cast<int64_t>(c10::elementSize(dtype)); }
};

// One operation at one size. Before each run `prepare` is called and `input` is written anew from
// `fresh`, as a model would do: its values are then in this rank's caches and nowhere else. What
// `run` gives, put together along its first axis, must be `expected`.
struct Case {
  std::string name;
  int64_t bytes;
  double bus_factor;
  at::Tensor input, fresh;
  std::function<std::vector<at::Tensor>()> run;
  at::Tensor expected;
  std::function<void()> prepare = [] {};
};

struct Record {
  std::string name;
  int64_t bytes = 0;
  int64_t tokens = 0;  // of a rank
  double min_us = 0, p50_us = 0, p99_us = 0;
  double algbw = 0, busbw = 0;  // GB/s
  double vs_all_to_all = 0;
  int64_t wrong = 0;
};

// Values that tell rank, token and head apart, as exactly as the type can hold.
at::Tensor pattern(at::IntArrayRef shape, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const int64_t period = dtype == at::kBFloat16 ? 256 : int64_t{1} << 24;
  return at::arange(count, at::kLong).remainder_(period).to(dtype).view(shape);
}

class CommBench {
 public:
  CommBench(comm::Communicator& communicator, const Settings& settings)
      : comm_(communicator),
        settings_(settings),
        ranks_(communicator.world_size()),
        exchange_(comm::make_head_exchange(
            communicator,
            {.heads = settings.heads,
             .max_tokens = ranks_ * local_tokens(settings.max_bytes),
             .max_batch = 3,
             .token_bytes = 3 * settings.row_bytes(),
             .max_gather_bytes = 3 * local_tokens(settings.max_bytes) * settings.row_bytes()})) {}

  std::vector<Record> run() {
    std::vector<Record> records;
    int64_t last_tokens = 0;
    for (int64_t bytes = settings_.min_bytes; bytes <= settings_.max_bytes; bytes *= 4) {
      const int64_t tokens = local_tokens(bytes);
      // Sizes below one token are all the same.
      if (std::exchange(last_tokens, tokens) == tokens) continue;
      const size_t first = records.size();
      for (const Case& item : cases(tokens)) records.push_back(measure(item, tokens));
      const double baseline = records.back().p50_us;
      for (size_t i = first; i < records.size(); ++i)
        records[i].vs_all_to_all = baseline / records[i].p50_us;
    }
    return records;
  }

 private:
  // q, k and v of so many tokens have about `bytes`.
  int64_t local_tokens(int64_t bytes) const {
    return std::max<int64_t>(1, bytes / (3 * settings_.row_bytes()));
  }
  std::vector<Case> cases(int64_t tokens);
  void add_exchanges(std::vector<Case>& cases, int64_t tokens);
  void add_collectives(std::vector<Case>& cases, int64_t tokens);
  Record measure(const Case& item, int64_t tokens);

  comm::Communicator& comm_;
  const Settings& settings_;
  int64_t ranks_;
  std::unique_ptr<comm::HeadExchange> exchange_;
};

std::vector<Case> CommBench::cases(int64_t tokens) {
  std::vector<Case> cases;
  add_exchanges(cases, tokens);
  add_collectives(cases, tokens);
  return cases;
}

void CommBench::add_exchanges(std::vector<Case>& cases, int64_t tokens) {
  const int64_t all_tokens = tokens * ranks_;
  const int64_t rank = comm_.rank();
  const int64_t own_width = settings_.width() / ranks_;
  const int64_t bytes = 3 * tokens * settings_.row_bytes();
  const double leaving = static_cast<double>(ranks_ - 1) / static_cast<double>(ranks_);
  const at::Tensor whole = pattern({3, all_tokens, settings_.width()}, settings_.dtype);
  const at::Tensor own = whole.narrow(1, rank * tokens, tokens).contiguous();  // [3, S, W]
  const at::Tensor heads =
      whole.narrow(2, rank * own_width, own_width).contiguous();  // [3, T, W/N]
  // q, k, v as three tensors of one sample; the way back as one tensor of three samples.
  const at::Tensor sent = own.clone();
  const std::vector<at::Tensor> qkv = sent.split(1);
  cases.push_back({"exchange", bytes, leaving, sent, own,
                   [=, this] { return exchange_->exchange(qkv); }, heads,
                   [=, this] { exchange_->set_token_count(all_tokens, 1); }});
  const at::Tensor sent_back = heads.clone();
  cases.push_back({"exchange_back", bytes, leaving, sent_back, heads,
                   [=, this] { return std::vector{exchange_->exchange_back(sent_back)}; }, own,
                   [=, this] { exchange_->set_token_count(all_tokens, 3); }});
  const at::Tensor audio = pattern({1, 3 * tokens, settings_.width()}, settings_.dtype);
  const at::Tensor audio_heads = audio.narrow(2, rank * own_width, own_width).contiguous();
  const at::Tensor gathered = audio_heads.clone();
  cases.push_back({"all_gather_heads", bytes, leaving, gathered, audio_heads,
                   [=, this] { return std::vector{exchange_->all_gather_heads(gathered)}; },
                   audio});
}

void CommBench::add_collectives(std::vector<Case>& cases, int64_t tokens) {
  const int64_t rank = comm_.rank();
  const int64_t count = 3 * tokens * settings_.width();
  const int64_t bytes = 3 * tokens * settings_.row_bytes();
  const double leaving = static_cast<double>(ranks_ - 1) / static_cast<double>(ranks_);
  const at::Tensor parts = pattern({ranks_, count / ranks_}, settings_.dtype);
  const at::Tensor part_of_this = parts[rank].clone();
  cases.push_back({"all_gather", bytes, leaving, part_of_this, parts[rank],
                   [=, this] { return std::vector{comm_.all_gather(part_of_this)}; }, parts});

  // Small values, so that every sum is exact in every type.
  const at::Tensor small = pattern({count}, settings_.dtype).remainder(8);
  const at::Tensor work = at::empty_like(small);
  const auto in_place = [work](auto call) {
    return [work, call] {
      at::Tensor tensor = work;
      call(tensor);
      return std::vector{tensor};
    };
  };
  cases.push_back({"all_reduce", bytes, 2 * leaving, work, small + rank,
                   in_place([this](at::Tensor& tensor) { comm_.all_reduce_sum(tensor); }),
                   small * ranks_ + ranks_ * (ranks_ - 1) / 2});
  cases.push_back({"broadcast", bytes, 1.0, work, rank == 0 ? small : at::zeros_like(small),
                   in_place([this](at::Tensor& tensor) { comm_.broadcast(tensor, 0); }), small});

  // Part j of rank i carries i * N + j in front of its values.
  const auto part = [=, this](int64_t from, int64_t to) {
    return pattern({count / ranks_}, settings_.dtype).remainder(8) + (from * ranks_ + to);
  };
  std::vector<at::Tensor> outgoing, incoming;
  for (int64_t r = 0; r < ranks_; ++r) {
    outgoing.push_back(part(rank, r));
    incoming.push_back(part(r, rank));
  }
  const at::Tensor fresh = at::cat(outgoing);
  const at::Tensor sent = fresh.clone();
  at::Tensor received = at::empty_like(sent);
  cases.push_back({"MPI_Alltoall", bytes, leaving, sent, fresh,
                   [=, this]() mutable {
                     comm::plain_all_to_all(comm_, sent, received);
                     return std::vector{received};
                   },
                   at::cat(incoming)});
}

Record CommBench::measure(const Case& item, int64_t tokens) {
  using Clock = std::chrono::steady_clock;
  const at::Tensor times = at::zeros({settings_.iters}, at::kDouble);
  int64_t wrong = 0;
  for (int i = -settings_.warmup; i < settings_.iters; ++i) {
    item.prepare();
    item.input.copy_(item.fresh);
    comm_.barrier("benchmark", 60);
    const auto start = Clock::now();
    const std::vector<at::Tensor> result = item.run();
    const auto end = Clock::now();
    wrong += at::ne(at::cat(result), item.expected).sum().item<int64_t>();
    if (i >= 0) times[i] = std::chrono::duration<double, std::micro>(end - start).count();
  }
  // The slowest rank counts, run by run.
  const at::Tensor slowest = std::get<0>(std::get<0>(comm_.all_gather(times).max(0)).sort());
  const auto at_quantile = [&](double q) {
    return slowest[static_cast<int64_t>(q * static_cast<double>(settings_.iters - 1) + 0.5)]
        .item<double>();
  };
  Record record{.name = item.name,
                .bytes = item.bytes,
                .tokens = tokens,
                .min_us = at_quantile(0),
                .p50_us = at_quantile(0.5),
                .p99_us = at_quantile(0.99)};
  record.algbw = 1e-3 * static_cast<double>(item.bytes) / record.p50_us;
  record.busbw = record.algbw * item.bus_factor;
  record.wrong = comm_.all_gather(at::scalar_tensor(wrong, at::kLong)).sum().item<int64_t>();
  return record;
}

bool fast_enough(const Settings& settings, const std::vector<Record>& records) {
  return std::all_of(records.begin(), records.end(), [&](const Record& record) {
    return record.name != "exchange" || record.bytes < kBandwidthBytes ||
           record.busbw >= settings.min_busbw;
  });
}

int64_t total_wrong(const std::vector<Record>& records) {
  int64_t wrong = 0;
  for (const auto& record : records) wrong += record.wrong;
  return wrong;
}

const char* type_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

void print_table(const comm::RankContext& ranks, const Settings& settings,
                 const std::vector<Record>& records) {
  fmt::print(
      "# flotilla bench comm {} ({})  mpi {}  torch {}  ranks {}  warmup {}  iters {}  "
      "transport shared memory, MPI  inputs written anew  time = slowest rank\n",
      kVersion, kCommit, kMpiVersion, kTorchVersion, ranks.world_size(), settings.warmup,
      settings.iters);
  for (size_t r = 0; r < ranks.facts().size(); ++r) {
    const auto& facts = ranks.facts()[r];
    fmt::print("#  rank {:>2}  {}  process {}  cores {}  {}\n", r, facts.host, facts.pid,
               facts.cores, gpu::device_name(at::kCPU));
  }
  constexpr const char* kHeads =
      "# {:<17} {:>9} {:>7} {:>6} {:>5} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7}\n";
  fmt::print(fmt::runtime(kHeads), "operation", "size", "tokens", "heads", "type", "min", "p50",
             "p99", "algbw", "busbw", "vs a2a", "#wrong");
  fmt::print(fmt::runtime(kHeads), "", "(B)", "a rank", "", "", "(us)", "(us)", "(us)", "(GB/s)",
             "(GB/s)", "(x)", "");
  for (const auto& record : records) {
    fmt::print(
        "  {:<17} {:>9} {:>7} {:>6} {:>5} {:>9.1f} {:>9.1f} {:>9.1f} {:>8.2f} {:>8.2f} {:>7.2f} "
        "{:>7}\n",
        record.name, record.bytes, record.tokens, settings.heads, type_name(settings.dtype),
        record.min_us, record.p50_us, record.p99_us, record.algbw, record.busbw,
        record.vs_all_to_all, record.wrong);
  }
  const int64_t wrong = total_wrong(records);
  fmt::print("# wrong values: {} {}        min busbw: {}\n", wrong, wrong == 0 ? "OK" : "FAILED",
             settings.min_busbw <= 0          ? "unchecked"
             : fast_enough(settings, records) ? "OK"
                                              : "FAILED");
}

void write_json(const comm::RankContext& ranks, const Settings& settings,
                const std::vector<Record>& records) {
  nlohmann::ordered_json json = {{"version", kVersion},
                                 {"commit", kCommit},
                                 {"mpi", kMpiVersion},
                                 {"ranks", ranks.world_size()},
                                 {"warmup", settings.warmup},
                                 {"iters", settings.iters},
                                 {"type", type_name(settings.dtype)},
                                 {"heads", settings.heads},
                                 {"head_dim", settings.head_dim},
                                 {"records", nlohmann::ordered_json::array()}};
  for (const auto& record : records) {
    json["records"].push_back({{"operation", record.name},
                               {"size_bytes", record.bytes},
                               {"tokens", record.tokens},
                               {"min_us", record.min_us},
                               {"p50_us", record.p50_us},
                               {"p99_us", record.p99_us},
                               {"algbw_gbps", record.algbw},
                               {"busbw_gbps", record.busbw},
                               {"vs_all_to_all", record.vs_all_to_all},
                               {"wrong", record.wrong}});
  }
  const std::string text = json.dump(1) + "\n";
  PendingFile file(settings.json, /*overwrite=*/true);
  io::write_bytes(file.temporary(), settings.json,
                  {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.commit();
}

Settings read_settings(const po::variables_map& values) {
  const std::string type = values["type"].as<std::string>();
  if (type != "fp32" && type != "bf16")
    fail(ErrorKind::usage, fmt::format("--type is fp32 or bf16, not \"{}\"", type));
  Settings settings{.min_bytes = values["min-bytes"].as<int64_t>(),
                    .max_bytes = values["max-bytes"].as<int64_t>(),
                    .heads = values["heads"].as<int64_t>(),
                    .head_dim = values["head-dim"].as<int64_t>(),
                    .warmup = values["warmup"].as<int>(),
                    .iters = values["iters"].as<int>(),
                    .dtype = type == "bf16" ? at::kBFloat16 : at::kFloat,
                    .min_busbw = values["min-busbw"].as<double>(),
                    .json = values.count("json") != 0 ? values["json"].as<std::string>() : ""};
  const bool sizes = settings.min_bytes >= 1 && settings.max_bytes >= settings.min_bytes &&
                     settings.max_bytes <= int64_t{1} << 30;
  if (!sizes || settings.heads < 1 || settings.head_dim < 1 || settings.row_bytes() > 1 << 20) {
    fail(ErrorKind::usage,
         "sizes must be 1 B to 1 GiB with --min-bytes <= --max-bytes, heads times head-dim at most "
         "1 MiB a token");
  }
  if (settings.warmup < 0 || settings.iters < 1)
    fail(ErrorKind::usage, "--warmup must be 0 or more, --iters 1 or more");
  return settings;
}

int run_on(comm::RankContext& ranks, const Settings& settings) {
  comm::agreed(ranks.world(), [&] {
    if (ranks.is_driver() && !settings.json.empty()) check_output_place(settings.json, true);
  });
  const std::vector<Record> records = CommBench(ranks.transformer(), settings).run();
  comm::agreed(ranks.world(), [&] {
    if (!ranks.is_driver()) return;
    print_table(ranks, settings, records);
    if (!settings.json.empty()) write_json(ranks, settings, records);
  });
  const bool good = total_wrong(records) == 0 && fast_enough(settings, records);
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
  add("heads", size(24), "attention heads, a multiple of the ranks");
  add("head-dim", size(64), "values of a head");
  add("type", po::value<std::string>()->default_value("fp32"), "fp32 or bf16");
  add("warmup", count(5), "runs that are not counted");
  add("iters", count(20), "runs that are");
  add("min-busbw", po::value<double>()->default_value(0),
      "GB/s that an exchange of 1 MiB or more must reach; 0: any");
  add("json", po::value<std::string>()->value_name("FILE"), "write the records there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  positional(kUsage, *values);  // the word "comm" itself, and nothing behind it
  const Settings settings = read_settings(*values);
  return comm::run_on_ranks({host().variable},
                            [&](comm::RankContext& ranks) { return run_on(ranks, settings); });
}

}  // namespace flotilla::app
