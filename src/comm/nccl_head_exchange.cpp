#include "comm/nccl_head_exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "base/error.h"
#include "comm/agreement.h"
#include "comm/exchange_layout.h"
#include "comm/nccl_communicator.h"

namespace flotilla::comm {
namespace {

using Transfer = NcclCommunicator::Transfer;

class NcclHeadExchange final : public HeadExchange {
 public:
  NcclHeadExchange(NcclCommunicator& communicator, const HeadExchangeOptions& options)
      : communicator_(communicator), options_(options) {
    shards_.world_size = world_size();
  }

  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }
  void set_token_count(int64_t tokens, int64_t batch) override;
  int64_t token_count() const override { return shards_.tokens; }
  std::vector<at::Tensor> exchange(std::span<const at::Tensor> tokens) override;
  at::Tensor exchange_back(const at::Tensor& heads) override;
  std::vector<at::Tensor> all_gather_heads(std::span<const at::Tensor> heads) override;
  ExchangeStats stats() const override;

 private:
  // Blocks of one call. A received block is copied to where it belongs when all have come.
  struct Plan {
    std::vector<Transfer> sends, receives;
    std::vector<at::Tensor> places;  // of the received ones
  };

  // `from` goes to `peer`; the own block needs no way.
  void send(Plan& plan, const at::Tensor& from, int peer) const;
  void receive(Plan& plan, const at::Tensor& place, int peer) const;
  void run(const Plan& plan, std::string_view name);

  // The part of [B, T or S, W] that are the heads of `peer`: [.., W/N].
  at::Tensor heads_of(const at::Tensor& tokens, int peer) const {
    const int64_t width = tokens.size(2) / world_size();
    return tokens.narrow(2, peer * width, width);
  }
  at::Tensor tokens_of(const at::Tensor& whole, int peer) const {
    return whole.narrow(1, shards_.begin(peer), shards_.count(peer));
  }
  at::Tensor own_tokens(const at::Tensor& padded, int64_t count) const {
    return padded.narrow(1, 0, count);
  }

  NcclCommunicator& communicator_;
  HeadExchangeOptions options_;
  TokenShards shards_;
  int64_t batch_ = 0;
  int64_t counts_set_ = 0;
  ExchangeStats stats_;
};

void NcclHeadExchange::set_token_count(int64_t tokens, int64_t batch) {
  agreed(communicator_, [&] {
    check_token_count(tokens, options_.max_tokens);
    FLOTILLA_ASSERT(tokens > 0 && batch > 0 && batch <= options_.max_batch);
  });
  agree_on(communicator_, "the number of video tokens", tokens);
  agree_on(communicator_, "the number of samples", batch);
  shards_.tokens = tokens;
  batch_ = batch;
  ++counts_set_;
}

void NcclHeadExchange::send(Plan& plan, const at::Tensor& from, int peer) const {
  if (from.numel() > 0) plan.sends.push_back({from.contiguous(), peer});
}

void NcclHeadExchange::receive(Plan& plan, const at::Tensor& place, int peer) const {
  if (place.numel() == 0) return;
  plan.receives.push_back(
      {place.is_contiguous() ? place : at::empty(place.sizes(), place.options()), peer});
  plan.places.push_back(place);
}

void NcclHeadExchange::run(const Plan& plan, std::string_view name) {
  const auto start = std::chrono::steady_clock::now();
  const double timeout_s = counts_set_ > 1 ? options_.timeout_s : options_.first_timeout_s;
  ++stats_.calls;
  communicator_.start(plan.sends, plan.receives,
                      fmt::format("{} (call {} of the head exchange)", name, stats_.calls),
                      timeout_s);
  for (size_t i = 0; i < plan.places.size(); ++i) {
    if (!plan.receives[i].tensor.is_same(plan.places[i]))
      plan.places[i].copy_(plan.receives[i].tensor);
  }
  for (const auto& [tensor, peer] : plan.sends)
    stats_.bytes += static_cast<int64_t>(tensor.nbytes());
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  stats_.seconds += spent.count();
  communicator_.peers().note_progress();
}

// out_p[b, t, :] = in_r[b, t - r*S, heads of p]
std::vector<at::Tensor> NcclHeadExchange::exchange(std::span<const at::Tensor> tokens) {
  const int64_t own_count = shards_.count(rank());
  std::vector<at::Tensor> results;
  Plan plan;
  for (const at::Tensor& tensor : tokens) {
    FLOTILLA_ASSERT(tensor.dim() == 3 && tensor.size(0) == batch_ &&
                    tensor.size(1) == local_tokens() && tensor.size(2) % world_size() == 0);
    const at::Tensor own = own_tokens(tensor, own_count);
    const at::Tensor result =
        at::empty({batch_, shards_.tokens, tensor.size(2) / world_size()}, tensor.options());
    tokens_of(result, rank()).copy_(heads_of(own, rank()));
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      send(plan, heads_of(own, peer), peer);
      receive(plan, tokens_of(result, peer), peer);
    }
    results.push_back(result);
  }
  run(plan, "tokens to heads");
  return results;  // [B, T, W/N] each
}

at::Tensor NcclHeadExchange::exchange_back(const at::Tensor& heads) {
  FLOTILLA_ASSERT(heads.dim() == 3 && heads.size(0) == batch_ && heads.size(1) == shards_.tokens);
  const int64_t own_count = shards_.count(rank());
  // Rows behind the last token stay zero.
  const at::Tensor result =
      at::zeros({batch_, local_tokens(), heads.size(2) * world_size()}, heads.options());
  const at::Tensor own = own_tokens(result, own_count);
  heads_of(own, rank()).copy_(tokens_of(heads, rank()));
  Plan plan;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    send(plan, tokens_of(heads, peer), peer);
    receive(plan, heads_of(own, peer), peer);
  }
  run(plan, "heads to tokens");
  return result;  // [B, S, W]
}

std::vector<at::Tensor> NcclHeadExchange::all_gather_heads(std::span<const at::Tensor> heads) {
  std::vector<at::Tensor> results;
  Plan plan;
  for (const at::Tensor& tensor : heads) {
    FLOTILLA_ASSERT(tensor.dim() == 3);
    const at::Tensor result = at::empty(
        {tensor.size(0), tensor.size(1), tensor.size(2) * world_size()}, tensor.options());
    heads_of(result, rank()).copy_(tensor);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      send(plan, tensor, peer);
      receive(plan, heads_of(result, peer), peer);
    }
    results.push_back(result);
  }
  run(plan, "heads to all");
  return results;  // [B, Ta, W] each
}

// The last call too is over before its end is told.
ExchangeStats NcclHeadExchange::stats() const {
  communicator_.finish();
  return stats_;
}

}  // namespace

bool nccl_head_exchange_serves(const Communicator& communicator) {
  return dynamic_cast<const NcclCommunicator*>(&communicator) != nullptr;
}

std::unique_ptr<HeadExchange> make_nccl_head_exchange(Communicator& communicator,
                                                      const HeadExchangeOptions& options) {
  auto* nccl = dynamic_cast<NcclCommunicator*>(&communicator);
  FLOTILLA_ASSERT(nccl != nullptr);
  return std::make_unique<NcclHeadExchange>(*nccl, options);
}

}  // namespace flotilla::comm
