// The one exception of the project and the one table from kinds of errors to exit codes.
// A message says what was found, what was expected and what to change. Contexts are added on the
// way up ("stage 2, block 17"). Checks that throw live beside what they check; see fail().
#pragma once

#include <cstdint>
#include <exception>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

enum class ErrorKind {
  internal,       // a broken invariant: our fault
  usage,          // wrong command line
  config,         // wrong job file
  input,          // input file missing, damaged, or of another model
  machine,        // no GPU, capability, peers
  memory,         // out of device or host memory
  communication,  // a rank that died or does not answer
  non_finite,     // NaN or infinity in latents, frames or audio
  output,         // output or checkpoint not writable
  failed_jobs,    // a sweep or fleet with failed jobs; busy
  stopped,        // stopped on request, checkpoint written
};

// Process exit code of a kind, as documented in docs/troubleshooting.md.
int exit_code(ErrorKind kind) noexcept;
// Short name for logs: "config", "non-finite", ...
std::string_view to_string(ErrorKind kind) noexcept;

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message,
        std::source_location where = std::source_location::current());

  const char* what() const noexcept override { return text_.c_str(); }
  ErrorKind kind() const noexcept { return kind_; }
  const std::string& message() const noexcept { return message_; }
  const std::source_location& where() const noexcept { return where_; }
  // Outermost first.
  const std::vector<std::string>& contexts() const noexcept { return contexts_; }
  // Puts `context` in front of those that are there: the caller is further out than the thrower.
  Error& add_context(std::string context);

 private:
  void rebuild_text();

  ErrorKind kind_;
  std::string message_;
  std::source_location where_;
  std::vector<std::string> contexts_;
  std::string text_;
};

[[noreturn]] void fail(ErrorKind kind, std::string message,
                       std::source_location where = std::source_location::current());

// Throws an internal error when `condition` is false; for invariants, not for input.
inline void check_internal(bool condition, std::string_view rule,
                           std::source_location where = std::source_location::current()) {
  if (!condition) fail(ErrorKind::internal, "broken invariant: " + std::string(rule), where);
}

// Runs `body` and adds `context` to any Error that leaves it.
template <typename Body>
decltype(auto) with_context(std::string_view context, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (Error& error) {
    error.add_context(std::string(context));
    throw;
  }
}

}  // namespace flotilla

// Broken invariants in code of ours, also in release builds; the text of the expression is the
// message.
#define FLOTILLA_ASSERT(condition) \
  ::flotilla::check_internal(static_cast<bool>(condition), #condition)
