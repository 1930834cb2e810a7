// A small job of several ranks in which rank 1 goes wrong: fault_program FAULT PHASE. Run by
// fault_test.cpp and, with the phases whose names begin with gpu_, gpu_fault_test.cpp under mpirun.
// Ends with code 77 and the reason where a machine cannot show a phase.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "comm/device_choice.h"
#include "comm/head_exchange.h"
#include "comm/rank_context.h"

namespace flotilla::comm {
namespace {

constexpr int kCannotRun = 77;

void go_wrong(const std::string& fault) {
  if (fault == "kill") std::raise(SIGKILL);
  if (fault == "crash") std::raise(SIGSEGV);
  if (fault == "exit") std::_Exit(0);
  if (fault == "stop") std::raise(SIGSTOP);
  while (fault == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
  fail(ErrorKind::non_finite, "numbers ran away");  // "throw"
}

void exchange_rounds(RankContext& ranks, const std::string& fault) {
  const int world = ranks.world_size();
  const auto exchange = make_head_exchange(ranks.transformer(), {.heads = world,
                                                                 .max_tokens = 64,
                                                                 .token_bytes = 3 * 16 * world,
                                                                 .timeout_s = 3,
                                                                 .first_timeout_s = 3});
  exchange->set_token_count(64, 1);
  at::Tensor own = at::ones({1, exchange->local_tokens(), 4 * world});
  for (int round = 0; round < 50; ++round) {
    if (ranks.rank() == 1 && round == 20) go_wrong(fault);
    own = exchange->exchange_back(exchange->exchange(std::vector{own})[0]);
  }
}

void collective_rounds(RankContext& ranks, const std::string& fault) {
  at::Tensor sum = at::ones({1000});
  for (int round = 0; round < 50; ++round) {
    if (ranks.rank() == 1 && round == 20) go_wrong(fault);
    ranks.text().all_reduce_sum(sum);
    sum = sum / ranks.world_size();
  }
}

// The GPU of this rank; several ranks may share one. Nothing where the phase needs what is not
// here.
std::optional<at::Device> attached_gpu(RankContext& ranks, const std::string& phase) {
  const auto& facts = ranks.facts();
  const auto cannot = [&](const char* reason) {
    if (ranks.is_driver()) fmt::print("{}: {}\n", phase, reason);
    return std::nullopt;
  };
  if (!all_see_gpus(facts)) return cannot("no CUDA device (or a build without CUDA)");
  const auto choice = choose_gpus(facts, /*allow_shared=*/true);
  if (phase != "gpu_exchange" && !nccl_serves(chosen_gpus(facts, choice)))
    return cannot("NCCL needs a GPU for each rank");
  ranks.attach_gpus(choice);
  const int own = choice[static_cast<size_t>(ranks.rank())];
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(own));
}

// Each round is a step: counts agreed, then calls, and a wait for the GPU, which is where the
// others are when rank 1 goes wrong.
void gpu_exchange_rounds(RankContext& ranks, const std::string& fault, at::Device device,
                         ExchangeTransport transport) {
  const int world = ranks.world_size();
  const auto exchange = make_head_exchange(ranks.transformer(), {.device = device,
                                                                 .transport = transport,
                                                                 .heads = world,
                                                                 .max_tokens = 64,
                                                                 .token_bytes = 3 * 16 * world,
                                                                 .timeout_s = 5,
                                                                 .first_timeout_s = 20});
  at::Tensor own;
  for (int round = 0; round < 50; ++round) {
    exchange->set_token_count(64, 1);
    if (round == 0)
      own = at::ones({1, exchange->local_tokens(), 4 * world}, at::TensorOptions(device));
    if (ranks.rank() == 1 && round == 20) go_wrong(fault);
    own = exchange->exchange_back(exchange->exchange(std::vector{own})[0]).clone();
    exchange->stats();
  }
}

void gpu_collective_rounds(RankContext& ranks, const std::string& fault, at::Device device) {
  at::Tensor sum = at::ones({1 << 20}, at::TensorOptions(device));
  for (int round = 0; round < 50; ++round) {
    if (ranks.rank() == 1 && round == 20) go_wrong(fault);
    ranks.transformer().all_reduce_sum(sum);
    sum = sum / ranks.world_size();
  }
}

// All but rank 1 compute for minutes without a look at the others.
void busy_rounds(RankContext& ranks, const std::string& fault) {
  ranks.world().barrier("start", 60);
  if (ranks.rank() == 1) go_wrong(fault);
  std::this_thread::sleep_for(std::chrono::minutes(2));
}

int run_phase(RankContext& ranks, const std::string& fault, const std::string& phase) {
  log::configure({.rank = ranks.rank(), .world_size = ranks.world_size()});
  std::optional<at::Device> gpu;
  if (phase.starts_with("gpu_") && !(gpu = attached_gpu(ranks, phase))) return kCannotRun;
  ranks.note_phase(phase + ", round 20");
  with_context(phase, [&] {
    if (phase == "gpu_exchange")
      return gpu_exchange_rounds(ranks, fault, *gpu, ExchangeTransport::peer);
    if (phase == "gpu_nccl_exchange")
      return gpu_exchange_rounds(ranks, fault, *gpu, ExchangeTransport::nccl);
    if (phase == "gpu_collective") return gpu_collective_rounds(ranks, fault, *gpu);
    if (phase == "busy") return busy_rounds(ranks, fault);
    if (phase == "exchange") return exchange_rounds(ranks, fault);
    if (phase == "collective") return collective_rounds(ranks, fault);
    if (phase == "agreed_rounds") {
      return agreed(ranks.world(), [&] {
        if (ranks.rank() == 1) go_wrong(fault);
        ranks.world().all_max(1);
      });
    }
    agreed(ranks.world(), [&] {  // "agreement"
      if (ranks.rank() == 1) go_wrong(fault);
    });
  });
  return 0;
}

// GPUs take seconds until a first call.
double timeout_s(const std::string& phase) {
  if (phase == "agreed_rounds") return 60;
  return phase.starts_with("gpu_") ? 20 : 3;
}

int guarded(const std::string& fault, const std::string& phase) {
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  try {
    return run_on_ranks({environment, timeout_s(phase), /*silence_limit_s=*/4},
                        [&](RankContext& ranks) { return run_phase(ranks, fault, phase); });
  } catch (const AgreedError& error) {
    if (error.speaks()) log::error("test", "{}", error.what());
    return exit_code(error.kind());
  } catch (const Error& error) {
    log::error("test", "{}", error.what());
    return exit_code(error.kind());
  }
}

}  // namespace
}  // namespace flotilla::comm

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return flotilla::comm::guarded(argv[1], argv[2]);
}
