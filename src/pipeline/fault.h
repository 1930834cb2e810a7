// A hook for the tests: makes one rank go wrong at a place that is asked for, so that they can see
// what the others do. Asked for by FLOTILLA_TEST_FAULT (CONTRIBUTING.md); costs nothing otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "diffusion/guided_denoiser.h"

namespace flotilla::pipeline {

struct Fault {
  enum class Action {
    throw_error,  // of ErrorKind::machine
    oom,          // std::bad_alloc
    kill,         // SIGKILL
    crash,        // SIGSEGV
    exit,         // _exit(0), without a word to MPI
    stop,         // SIGSTOP
    hang,         // the compute thread alone
    pause,        // for half a second, with a line in the log: time to send signals
    nan_video,    // in what the model says of the video
    nan_audio,
  };
  int rank = 0;
  std::string phase;  // as the table of times calls it
  int64_t step = 0;   // 0: when the phase begins; from 1: before that step or tile of it
  Action action = Action::throw_error;
  // How long the watchers of a start and of a step wait for it, in the place of minutes.
  std::optional<double> patience_s;
};

// "rank=1,phase=stage_1,step=2,do=kill"; rank and step may be left out, "patience=3" (seconds)
// added. Errors (ErrorKind::usage): anything else.
Fault parse_fault(std::string_view text);

class FaultHook {
 public:
  FaultHook() = default;
  FaultHook(std::optional<Fault> fault, int own_rank);

  // The rank is there now. Goes wrong when that is the place.
  void reached(std::string_view phase, int64_t step);
  // Makes a number of `tokens` NaN once it is time to.
  void poison(diffusion::AvTokens& tokens);
  // Errors (ErrorKind::usage): the run ends and never came to the place.
  void require_done() const;

 private:
  std::optional<Fault> fault_;  // still to come; of this rank
  bool poisons_ = false;        // the next tokens
};

// The passes of a step, poisoned by the hook.
class FaultyPasses final : public diffusion::PassRunner {
 public:
  FaultyPasses(diffusion::PassRunner& passes, FaultHook& hook) : passes_(passes), hook_(hook) {}
  std::vector<diffusion::AvTokens> run(const diffusion::PassRequest& request,
                                       const diffusion::AvLatents& latents, double sigma) override;

 private:
  diffusion::PassRunner& passes_;
  FaultHook& hook_;
};

}  // namespace flotilla::pipeline
