#include "app/comm_cases.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include "base/error.h"
#include "comm/baseline.h"
#include "comm/head_exchange.h"
#include "gpu/device.h"

namespace flotilla::app {
namespace {

using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

// One operation at one size. `run` gets `fresh`, or its negative, in memory that was just written,
// as a model would do: the values are then in this rank's caches and nowhere else. What it gives,
// put together along its first axis, must be `expected`, or its negative.
struct Case {
  std::string name;
  int64_t bytes;
  double bus_factor;  // the share of the bytes that leaves a rank, as in nccl-tests
  int calls;
  at::Tensor fresh, expected;
  std::function<Tensors(at::Tensor input)> run;
  std::function<void()> prepare = [] {};
  bool rounded = false;  // results are whole numbers up to rounding
};

// From `first` to `end`, of `all` in the whole.
struct Range {
  int64_t first, end, all;
};
Range whole(int64_t count) { return {0, count, count}; }

// The number that each value has in the whole [samples, tokens, width].
at::Tensor places(int64_t samples, Range tokens, Range width, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor s = at::arange(samples, options).view({-1, 1, 1});
  const at::Tensor t = at::arange(tokens.first, tokens.end, options).view({1, -1, 1});
  const at::Tensor w = at::arange(width.first, width.end, options).view({1, 1, -1});
  return (s * tokens.all + t) * width.all + w;
}

// Values that tell rank, token and head apart, as far as the type can hold them exactly. The
// periods are primes, so that no row is like its neighbour.
at::Tensor pattern(const at::Tensor& places, at::ScalarType dtype) {
  return places.remainder(dtype == at::kBFloat16 ? 251 : 16777213).to(dtype);
}

class CommBench {
 public:
  CommBench(comm::RankContext& ranks, const CommSettings& settings, at::Device device);
  CommResults run();

 private:
  void open_exchanges();
  std::vector<Case> cases(int64_t tokens);
  void add_exchanges(std::vector<Case>& cases, int64_t tokens, comm::HeadExchange& exchange,
                     const std::string& suffix);
  void add_raw_exchange(std::vector<Case>& cases, int64_t tokens);
  void add_collectives(std::vector<Case>& cases, int64_t tokens);
  void add_yardstick(std::vector<Case>& cases, int64_t tokens);  // the last one of a size
  CommRecord measure(const Case& item, int64_t tokens);

  Range own_tokens(int64_t tokens) const {
    return {rank_ * tokens, (rank_ + 1) * tokens, ranks_ * tokens};
  }
  Range own_width() const {
    const int64_t width = settings_.width();
    return {rank_ * width / ranks_, (rank_ + 1) * width / ranks_, width};
  }
  at::Tensor marked(int64_t samples, Range tokens, Range width) const {
    return pattern(places(samples, tokens, width, device_), settings_.dtype);
  }
  // The values from `first` on of a row of `count`.
  at::Tensor numbers(int64_t first, int64_t size, int64_t count) const {
    return marked(1, whole(1), {first, first + size, count}).view({-1});
  }
  double leaving() const { return static_cast<double>(ranks_ - 1) / static_cast<double>(ranks_); }
  int calls() const { return device_.is_cuda() ? settings_.calls : 1; }

  comm::Communicator& comm_;
  const CommSettings& settings_;
  at::Device device_;
  int64_t rank_, ranks_;
  std::optional<std::string> nccl_;  // its version, where it serves
  CommResults results_;
  std::unique_ptr<comm::HeadExchange> exchange_, nccl_exchange_;
};

CommBench::CommBench(comm::RankContext& ranks, const CommSettings& settings, at::Device device)
    : comm_(ranks.transformer()),
      settings_(settings),
      device_(device),
      rank_(ranks.rank()),
      ranks_(ranks.world_size()),
      nccl_(comm::nccl_of(comm_, device)) {
  open_exchanges();
}

void CommBench::open_exchanges() {
  const int64_t most_tokens = settings_.sizes(ranks_).back();
  comm::HeadExchangeOptions options{.device = device_,
                                    .transport = comm::ExchangeTransport::peer,
                                    .heads = settings_.heads,
                                    .max_tokens = ranks_ * most_tokens,
                                    .max_batch = 3,
                                    .token_bytes = settings_.row_bytes(),
                                    .max_gather_bytes = 3 * most_tokens * settings_.row_bytes()};
  try {
    exchange_ = comm::make_head_exchange(comm_, options);
    results_.transports = device_.is_cuda() ? "the peers' memory" : "shared memory";
  } catch (const comm::AgreedError& error) {
    if (!nccl_ || error.kind() != ErrorKind::machine) throw;
    results_.missing = error.what();
  }
  if (nccl_) {
    options.transport = comm::ExchangeTransport::nccl;
    nccl_exchange_ = comm::make_head_exchange(comm_, options);
  }
  if (!results_.transports.empty()) results_.transports += ", ";
  results_.has_nccl = nccl_.has_value();
  results_.transports += nccl_ ? "NCCL " + *nccl_ : "MPI";
}

CommResults CommBench::run() {
  for (const int64_t tokens : settings_.sizes(ranks_)) {
    const size_t first = results_.records.size();
    for (const Case& item : cases(tokens)) results_.records.push_back(measure(item, tokens));
    const double yardstick = results_.records.back().p50_us;
    for (size_t i = first; i < results_.records.size(); ++i)
      results_.records[i].vs_all_to_all = yardstick / results_.records[i].p50_us;
  }
  for (const auto& exchange : {exchange_.get(), nccl_exchange_.get()}) {
    if (exchange == nullptr) continue;
    exchange->stats();  // throws what went wrong on the device
    exchange->close();
  }
  return std::move(results_);
}

std::vector<Case> CommBench::cases(int64_t tokens) {
  std::vector<Case> cases;
  if (exchange_) {
    add_exchanges(cases, tokens, *exchange_, "");
    add_raw_exchange(cases, tokens);
  }
  if (nccl_exchange_) add_exchanges(cases, tokens, *nccl_exchange_, "_nccl");
  if (settings_.collectives) add_collectives(cases, tokens);
  add_yardstick(cases, tokens);
  return cases;
}

void CommBench::add_exchanges(std::vector<Case>& cases, int64_t tokens,
                              comm::HeadExchange& exchange, const std::string& suffix) {
  const int64_t all_tokens = tokens * ranks_;
  const int64_t bytes = 3 * tokens * settings_.row_bytes();
  const at::Tensor own = marked(3, own_tokens(tokens), whole(settings_.width()));  // [3, S, W]
  const at::Tensor heads = marked(3, whole(all_tokens), own_width());              // [3, T, W/N]
  // q, k, v as three tensors of one sample; the way back as one tensor of three samples.
  cases.push_back({"exchange" + suffix, bytes, leaving(), calls(), own, heads,
                   [&exchange](const at::Tensor& qkv) { return exchange.exchange(qkv.split(1)); },
                   [&exchange, all_tokens] { exchange.set_token_count(all_tokens, 1); }});
  cases.push_back(
      {"exchange_back" + suffix, bytes, leaving(), calls(), heads, own,
       [&exchange](const at::Tensor& sent) { return Tensors{exchange.exchange_back(sent)}; },
       [&exchange, all_tokens] { exchange.set_token_count(all_tokens, 3); }});
  // As many tokens as make the same size; it counts its calls too, so they are evened out.
  cases.push_back(
      {"all_gather_heads" + suffix, bytes, leaving(), calls(),
       marked(1, whole(3 * tokens), own_width()),
       marked(1, whole(3 * tokens), whole(settings_.width())),
       [&exchange](const at::Tensor& sent) { return Tensors{exchange.all_gather_heads(sent)}; },
       [&exchange, all_tokens] { exchange.set_token_count(all_tokens, 1); }});
}

// Inputs whose results are whole numbers: q and k are 1 or -1, so that the root of their mean
// square is 1, and rotations are by 0 or 90 degrees.
void CommBench::add_raw_exchange(std::vector<Case>& cases, int64_t tokens) {
  const int64_t all_tokens = tokens * ranks_;
  const int64_t own_heads = settings_.heads / ranks_;
  const int64_t half = settings_.head_dim / 2;
  const auto signs = [&](Range of_tokens, Range width) {
    constexpr int64_t kMix = 2654435761;  // Knuth's multiplicative hash
    const at::Tensor hash = places(2, of_tokens, width, device_) * kMix;
    return (hash.bitwise_right_shift(13).bitwise_and(1) * 2 - 1).to(settings_.dtype);
  };
  // Sine [1, heads, tokens, D/2]; the cosine is 1 less this.
  const auto sine = [&](Range heads, Range of_tokens) {
    const at::Tensor turn = places(heads.end - heads.first, of_tokens, whole(half), device_) +
                            heads.first * of_tokens.all * half;
    return turn.remainder(3).eq(0).to(settings_.dtype).unsqueeze(0);
  };
  const auto weight_of = [&](Range width) {
    return (places(1, whole(1), width, device_).view({-1}).remainder(61) + 1).to(settings_.dtype);
  };
  const Range all_width = whole(settings_.width());
  const auto with_v = [&](const at::Tensor& qk, Range of_tokens, Range width) {
    return at::cat({qk, marked(3, of_tokens, width).narrow(0, 2, 1)});  // [3, .., ..]
  };

  const at::Tensor normed = (signs(whole(all_tokens), own_width()) * weight_of(own_width()))
                                .view({2, all_tokens, own_heads, settings_.head_dim})
                                .transpose(1, 2);  // [2, H/N, T, D]
  const at::Tensor low = normed.narrow(3, 0, half), high = normed.narrow(3, half, half);
  const at::Tensor s =
      sine({rank_ * own_heads, (rank_ + 1) * own_heads, settings_.heads}, whole(all_tokens));
  const at::Tensor turned = at::cat({low * (1 - s) - high * s, high * (1 - s) + low * s}, 3)
                                .transpose(1, 2)
                                .reshape({2, all_tokens, -1});  // [2, T, W/N]
  const at::Tensor own_sine = sine(whole(settings_.heads), own_tokens(tokens));
  const at::Tensor own_cosine = 1 - own_sine;
  const at::Tensor weight = weight_of(all_width);
  const auto send = [=, this](const at::Tensor& qkv) {
    std::vector<comm::RawHeads> parts;
    for (int64_t i = 0; i < 2; ++i)
      parts.push_back({qkv.narrow(0, i, 1), weight, own_cosine, own_sine});
    parts.push_back({qkv.narrow(0, 2, 1), {}, {}, {}});
    return exchange_->exchange_raw(parts, settings_.heads, /*norm_eps=*/1e-6);
  };

  const at::Tensor own =
      with_v(signs(own_tokens(tokens), all_width), own_tokens(tokens), all_width);
  exchange_->set_token_count(all_tokens, 1);
  if (!send(own)) return;  // not between CPUs
  cases.push_back({"exchange_raw", 3 * tokens * settings_.row_bytes(), leaving(), calls(), own,
                   with_v(turned, whole(all_tokens), own_width()),
                   [send](const at::Tensor& qkv) { return send(qkv).value(); },
                   [=, this] { exchange_->set_token_count(all_tokens, 1); },
                   /*rounded=*/true});
}

void CommBench::add_collectives(std::vector<Case>& cases, int64_t tokens) {
  const int64_t bytes = 3 * tokens * settings_.row_bytes();
  const int64_t count = 3 * tokens * settings_.width();
  const int64_t slice = count / ranks_;
  cases.push_back({"all_gather", bytes, leaving(), nccl_ ? calls() : 1,
                   numbers(rank_ * slice, slice, count),
                   numbers(0, count, count).view({ranks_, slice}),
                   [this](const at::Tensor& part) { return Tensors{comm_.all_gather(part)}; }});
  // Small values, so that every sum is exact in every type.
  const at::Tensor small = numbers(0, count, count).remainder(8);
  cases.push_back({"all_reduce", bytes, 2 * leaving(), 1, small + rank_,
                   small * ranks_ + ranks_ * (ranks_ - 1) / 2, [this](at::Tensor summed) {
                     comm_.all_reduce_sum(summed);
                     return Tensors{summed};
                   }});
  cases.push_back({"broadcast", bytes, 1.0, 1, rank_ == 0 ? small : at::zeros_like(small), small,
                   [this](at::Tensor tensor) {
                     comm_.broadcast(tensor, 0);
                     return Tensors{tensor};
                   }});
}

void CommBench::add_yardstick(std::vector<Case>& cases, int64_t tokens) {
  const int64_t count = 3 * tokens * settings_.width();
  // Part j of rank i carries i * N + j in front of small values.
  const at::Tensor small = numbers(0, count / ranks_, count).remainder(8);
  Tensors outgoing, incoming;
  for (int64_t r = 0; r < ranks_; ++r) {
    outgoing.push_back(small + (rank_ * ranks_ + r));
    incoming.push_back(small + (r * ranks_ + rank_));
  }
  at::Tensor received = at::empty({count}, small.options());
  cases.push_back({nccl_ ? "NCCL all-to-all" : "MPI_Alltoall", 3 * tokens * settings_.row_bytes(),
                   leaving(), nccl_ ? calls() : 1, at::cat(outgoing), at::cat(incoming),
                   [this, received](const at::Tensor& sent) mutable {
                     comm::plain_all_to_all(comm_, sent, received);
                     return Tensors{received};
                   }});
}

// Runs samples of a case and counts what they get wrong.
class Sampler {
 public:
  Sampler(comm::Communicator& communicator, const Case& item, at::Device device)
      : comm_(communicator), item_(item), device_(device) {
    for (auto& input : inputs_) input = at::empty_like(item.fresh);
  }

  // Seconds of a call. Signs go + + - - + + .., so that no call leaves in either slot of an
  // exchange what the next one must bring.
  double sample() {
    item_.prepare();
    if (item_.calls > 1) write(!negative());
    write(negative());
    gpu::synchronize(device_);
    comm_.barrier("benchmark", 60);
    bool is_negative = false;
    Tensors result;
    const auto start = Clock::now();
    for (int call = 0; call < item_.calls; ++call, ++number_) {
      is_negative = negative();
      result = item_.run(inputs_[is_negative ? 1 : 0]);
    }
    gpu::synchronize(device_);
    const auto end = Clock::now();
    check(result, is_negative);
    return std::chrono::duration<double>(end - start).count() / item_.calls;
  }
  int64_t wrong() const { return wrong_; }

 private:
  bool negative() const { return number_ / 2 % 2 != 0; }
  void write(bool is_negative) {
    if (is_negative) {
      at::neg_out(inputs_[1], item_.fresh);
    } else {
      inputs_[0].copy_(item_.fresh);
    }
  }
  void check(const Tensors& result, bool is_negative) {
    at::Tensor values = at::cat(result);
    if (item_.rounded) values = values.round();
    if (is_negative) values = -values;
    wrong_ += at::ne(values, item_.expected).sum().item<int64_t>();
  }

  comm::Communicator& comm_;
  const Case& item_;
  at::Device device_;
  at::Tensor inputs_[2];  // as it is, negative
  int64_t number_ = 0;    // of calls
  int64_t wrong_ = 0;
};

CommRecord CommBench::measure(const Case& item, int64_t tokens) {
  Sampler sampler(comm_, item, device_);
  sampler.sample();  // the first one also touches memory and loads kernels
  const auto start = Clock::now();
  sampler.sample();
  const std::chrono::duration<double, std::micro> once = Clock::now() - start;
  const auto once_us = static_cast<double>(comm_.all_max(std::llround(once.count())) + 1);
  const int fitting = static_cast<int>(std::min(1e6, 1e6 * settings_.limit_s / once_us));
  const int iters = std::min(std::max(fitting, 3), settings_.iters);
  for (int i = 2; i < std::min(settings_.warmup, fitting); ++i) sampler.sample();

  std::vector<double> seconds;
  for (int i = 0; i < iters; ++i) seconds.push_back(sampler.sample());
  // The slowest rank counts, sample by sample.
  const at::Tensor all = comm_.all_gather(at::tensor(seconds, at::kDouble));  // [N, iters]
  const at::Tensor slowest = std::get<0>(std::get<0>(all.max(0)).sort());
  const auto us_at_quantile = [&](double q) {
    return 1e6 * slowest[static_cast<int64_t>(q * (iters - 1) + 0.5)].item<double>();
  };
  CommRecord record{.name = item.name,
                    .bytes = item.bytes,
                    .tokens = tokens,
                    .calls = item.calls,
                    .iters = iters,
                    .min_us = us_at_quantile(0),
                    .p50_us = us_at_quantile(0.5),
                    .p99_us = us_at_quantile(0.99)};
  record.algbw = 1e-3 * static_cast<double>(item.bytes) / record.p50_us;
  record.busbw = record.algbw * item.bus_factor;
  const at::Tensor wrong = at::full({1}, sampler.wrong(), at::kLong);
  record.wrong = comm_.all_gather(wrong).sum().item<int64_t>();
  return record;
}

}  // namespace

std::vector<int64_t> CommSettings::sizes(int64_t ranks) const {
  std::vector<int64_t> sizes;
  for (const int64_t all : tokens) sizes.push_back((all + ranks - 1) / ranks);
  if (tokens.empty()) {
    // q, k and v of so many tokens have about `bytes`; below one token all sizes are the same.
    for (int64_t bytes = min_bytes; bytes <= max_bytes; bytes *= 4)
      sizes.push_back(std::max<int64_t>(1, bytes / (3 * row_bytes())));
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

CommResults measure_communication(comm::RankContext& ranks, const CommSettings& settings,
                                  at::Device device) {
  return CommBench(ranks, settings, device).run();
}

}  // namespace flotilla::app
