// Agreement points: all ranks exchange their status and go on or fail together, with one error that
// names the ranks at fault. Errors that are not agreed leave the other ranks waiting somewhere, so
// they end all ranks (run_on_ranks in rank_context.h).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace flotilla::comm {

class Communicator;

// All ranks throw it alike. It is recoverable: no rank waits for another one.
class AgreedError : public Error {
 public:
  // `speaks`: this rank prints it; exactly one does.
  AgreedError(ErrorKind kind, std::string message, bool speaks)
      : Error(kind, std::move(message)), speaks_(speaks) {}
  bool speaks() const noexcept { return speaks_; }

 private:
  bool speaks_;
};

// The exception in flight as an Error: those of LibTorch and of the standard library find their
// kind here. To be called inside a catch block.
Error current_error();

// Collective. Throws AgreedError on all ranks when any rank brings an error. The kind is that of
// the lowest rank whose error is not a mere consequence (communication) of another's. When the
// others do not come and do not get on (the error was thrown between two collective calls, where
// they now wait), this rank's error passes on as it is, to end all ranks.
void agree(Communicator& communicator, const std::optional<Error>& error);

// Collective. All ranks must have the same `value`. Errors (agreed, ErrorKind::internal): they do
// not; the message has `what` and the values.
void agree_on(Communicator& communicator, const std::string& what, int64_t value);

// Runs `body` on each rank and agrees on how it went; gives its result. `body` must not be
// collective past a point where it can fail on some ranks only. An AgreedError passes through.
template <typename Body>
auto agreed(Communicator& communicator, Body&& body) {
  std::optional<Error> error;
  const auto guarded = [&](auto&& action) {
    try {
      action();
    } catch (const AgreedError&) {
      throw;
    } catch (...) {
      error = current_error();
    }
    agree(communicator, error);
  };
  if constexpr (std::is_void_v<decltype(body())>) {
    guarded(body);
  } else {
    std::optional<decltype(body())> result;
    guarded([&] { result.emplace(body()); });
    return std::move(*result);
  }
}

}  // namespace flotilla::comm
