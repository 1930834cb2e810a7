// The ranks of fleet_test: a runner that does what the job says, without any model.
//   {"do": "echo"}                      the message comes back
//   {"do": "sum"}                       the ranks add up their numbers
//   {"do": "items", "count": 3, "bytes": 100, "pause_ms": 5}
//   {"do": "fail", "how": HOW, "ranks": [1]}   without "ranks": all of them
//   {"do": "wait_for_stop"}             until the controller asks to stop
//   {"do": "meet", "mine": FILE, "other": FILE}   makes the one and waits for the other; then tells
//                                       what the rank sees of GPUs
// The first argument, if any, goes wrong in the set-up: "HOW:RANK".
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fleet/worker.h"

namespace flotilla::fleet {
namespace {

using namespace std::chrono_literals;

[[noreturn]] void hang() {
  while (true) std::this_thread::sleep_for(1s);
}

void go_wrong(const std::string& how, comm::RankContext& ranks) {
  if (how == "runner") throw RunnerError("the job is too large");
  if (how == "runner_own_words") throw RunnerError(fmt::format("bad on {}", ranks.rank()));
  if (how == "invalid") throw std::invalid_argument("no such sampler");
  if (how == "logic") throw std::logic_error("a bug");
  if (how == "error") fail(ErrorKind::input, "not agreed on");
  if (how == "exit") std::exit(3);
  if (how == "_exit") ::_exit(0);
  if (how == "kill") ::raise(SIGKILL);
  if (how == "hang") hang();
  if (how == "stop") ::raise(SIGSTOP);
  throw std::logic_error("unknown way to go wrong: " + how);
}

class ScriptedRunner final : public Runner {
 public:
  explicit ScriptedRunner(comm::RankContext& ranks) : ranks_(ranks) {}

  void run(const Message& job, JobScope& scope) override {
    ++jobs_;
    const auto what = job.body.value("do", "");
    if (what == "echo" && ranks_.is_driver()) {
      Message item = job;
      item.body["jobs"] = jobs_;
      item.body["stop_signal"] = scope.stop_signal();
      scope.emit(item);
    }
    if (what == "sum") sum(scope);
    if (what == "items" && ranks_.is_driver()) yield_items(job.body, scope);
    if (what == "emit_anywhere") scope.emit(Message());
    if (what == "agreed") {
      comm::agreed(ranks_.world(), [&] {
        if (ranks_.rank() == 1) fail(ErrorKind::memory, "no room on this rank");
      });
    }
    if (what == "leave_others") {
      if (ranks_.rank() == 1) throw RunnerError("too late");
      ranks_.world().barrier("for rank 1", /*timeout_s=*/600);
    }
    if (what == "wait_for_stop") {
      while (scope.stop_signal() == 0) std::this_thread::sleep_for(10ms);
      if (ranks_.is_driver()) scope.emit(nlohmann::json{{"stopped", scope.stop_signal()}});
    }
    if (what == "meet" && ranks_.is_driver()) meet(job.body, scope);
    if (what == "fail") fail_as_told(job.body);
  }

 private:
  void sum(JobScope& scope) {
    at::Tensor number = at::full({3}, static_cast<double>(ranks_.rank()), at::kDouble);
    ranks_.world().all_reduce_sum(number);
    if (!ranks_.is_driver()) return;
    Message item(nlohmann::json{{"ranks", ranks_.world_size()}});
    item.tensors["sum"] = number;
    scope.emit(item);
  }
  static void yield_items(const nlohmann::json& body, JobScope& scope) {
    for (int i = 0; i < body.value("count", 1); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(body.value("pause_ms", 0)));
      Message item(nlohmann::json{{"item", i}});
      item.tensors["bytes"] = at::full({body.value("bytes", int64_t{0})}, i, at::kByte);
      scope.emit(item);
    }
  }
  static void meet(const nlohmann::json& body, JobScope& scope) {
    std::ofstream(body.at("mine").get<std::string>()) << "here";
    while (!std::filesystem::exists(body.at("other").get<std::string>()))
      std::this_thread::sleep_for(10ms);
    const char* devices = std::getenv("CUDA_VISIBLE_DEVICES");
    scope.emit(nlohmann::json{{"devices", devices == nullptr ? "" : devices}});
  }
  void fail_as_told(const nlohmann::json& body) {
    const auto chosen = body.value("ranks", std::vector<int>{});
    if (chosen.empty() || std::find(chosen.begin(), chosen.end(), ranks_.rank()) != chosen.end())
      go_wrong(body.at("how").get<std::string>(), ranks_);
  }

  comm::RankContext& ranks_;
  int jobs_ = 0;
};

}  // namespace
}  // namespace flotilla::fleet

int main(int argc, char** argv) {
  using namespace flotilla;
  const std::string fault = argc > 1 ? argv[1] : "";
  fleet::WorkerOptions options;
  options.ranks.environment = [](const char* name) -> const char* { return std::getenv(name); };
  options.ranks.silence_limit_s = 3;
  options.patience_s = 2;
  if (fault.starts_with("silent:") && std::getenv("OMPI_COMM_WORLD_RANK") == fault.substr(7))
    fleet::hang();
  return fleet::run_worker(
      [&](comm::RankContext& ranks) {
        const size_t colon = fault.find(':');
        if (colon != std::string::npos && ranks.rank() == std::stoi(fault.substr(colon + 1)))
          fleet::go_wrong(fault.substr(0, colon), ranks);
        return std::make_unique<fleet::ScriptedRunner>(ranks);
      },
      options);
}
