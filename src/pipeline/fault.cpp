#include "pipeline/fault.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <limits>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace flotilla::pipeline {
namespace {

using Action = Fault::Action;

constexpr std::pair<std::string_view, Action> kActions[] = {
    {"throw", Action::throw_error}, {"oom", Action::oom},       {"kill", Action::kill},
    {"crash", Action::crash},       {"exit", Action::exit},     {"stop", Action::stop},
    {"hang", Action::hang},         {"nan", Action::nan_video}, {"nan_audio", Action::nan_audio},
    {"pause", Action::pause},
};

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  fail(ErrorKind::usage, fmt::format("the test fault \"{}\": {}; an example: "
                                     "rank=1,phase=stage_1,step=2,do=kill",
                                     excerpt(text), why));
}

Action action_of(std::string_view text, std::string_view word) {
  std::vector<std::string_view> known;
  for (const auto& [name, action] : kActions) {
    if (name == word) return action;
    known.push_back(name);
  }
  refuse(text, fmt::format("do={} is none of {}", excerpt(word), fmt::join(known, ", ")));
}

int number_of(std::string_view text, std::string_view key, std::string_view word) {
  int value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code == std::errc() && end == word.data() + word.size() && value >= 0) return value;
  refuse(text, fmt::format("{} must be 0 or more, not \"{}\"", key, excerpt(word)));
}

void go_wrong(Action action, const std::string& place) {
  switch (action) {
    case Action::throw_error:
      fail(ErrorKind::machine, fmt::format("the fault that a test asked for, at {}", place));
    case Action::oom:
      throw std::bad_alloc();
    case Action::kill:
      std::raise(SIGKILL);
      break;
    case Action::crash:
      std::signal(SIGSEGV, SIG_DFL);  // Open MPI's handler prints a page
      std::raise(SIGSEGV);
      break;
    case Action::exit:
      ::_exit(0);
    case Action::stop:
      std::raise(SIGSTOP);
      break;
    case Action::hang:
      for (;;) ::pause();
    case Action::pause:
      log::warn("test", "pauses at {}", place);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      break;
    case Action::nan_video:
    case Action::nan_audio:
      break;
  }
}

bool is_nan(Action action) { return action == Action::nan_video || action == Action::nan_audio; }

}  // namespace

Fault parse_fault(std::string_view text) {
  Fault fault;
  bool has_action = false;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::string_view item = rest.substr(0, rest.find(','));
    more = item.size() < rest.size();
    rest.remove_prefix(item.size() + (more ? 1 : 0));
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals < item.size() ? item.substr(equals + 1) : "";
    if (key == "rank") {
      fault.rank = number_of(text, key, value);
    } else if (key == "step") {
      fault.step = number_of(text, key, value);
    } else if (key == "phase") {
      fault.phase = value;
    } else if (key == "patience") {
      fault.patience_s = number_of(text, key, value);
    } else if (key == "do") {
      fault.action = action_of(text, value);
      has_action = true;
    } else {
      refuse(text,
             fmt::format("\"{}\" is none of rank=, phase=, step=, do=, patience=", excerpt(item)));
    }
  }
  if (fault.phase.empty() || !has_action) refuse(text, "phase= and do= are needed");
  if (is_nan(fault.action) && fault.step == 0) refuse(text, "do=nan needs a step=");
  return fault;
}

FaultHook::FaultHook(std::optional<Fault> fault, int own_rank) {
  if (fault && fault->rank == own_rank) fault_ = std::move(fault);
}

void FaultHook::reached(std::string_view phase, int64_t step) {
  if (!fault_ || fault_->phase != phase || fault_->step != step) return;
  if (is_nan(fault_->action)) {
    poisons_ = true;
    return;
  }
  const Fault now = *std::exchange(fault_, std::nullopt);
  go_wrong(now.action, fmt::format("{}, step {}", phase, step));
}

void FaultHook::poison(diffusion::AvTokens& tokens) {
  if (!std::exchange(poisons_, false)) return;
  at::Tensor& stream = fault_->action == Action::nan_audio ? tokens.audio : tokens.video;
  stream = stream.clone();
  stream.view({-1}).narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  fault_.reset();
}

void FaultHook::require_done() const {
  if (!fault_) return;
  fail(ErrorKind::usage, fmt::format("the test fault never came: no step {} of a phase \"{}\"",
                                     fault_->step, fault_->phase));
}

std::vector<diffusion::AvTokens> FaultyPasses::run(const diffusion::PassRequest& request,
                                                   const diffusion::AvLatents& latents,
                                                   double sigma) {
  auto results = passes_.run(request, latents, sigma);
  if (!results.empty()) hook_.poison(results.front());
  return results;
}

}  // namespace flotilla::pipeline
