#include "base/error.h"

#include <algorithm>
#include <array>
#include <utility>

namespace flotilla {
namespace {

struct KindRow {
  ErrorKind kind;
  std::string_view name;
  int code;
};

constexpr std::array kKinds = {
    KindRow{ErrorKind::internal, "internal", 1},
    KindRow{ErrorKind::usage, "usage", 2},
    KindRow{ErrorKind::config, "config", 2},
    KindRow{ErrorKind::input, "input", 3},
    KindRow{ErrorKind::machine, "machine", 4},
    KindRow{ErrorKind::memory, "memory", 5},
    KindRow{ErrorKind::communication, "communication", 6},
    KindRow{ErrorKind::non_finite, "non-finite", 7},
    KindRow{ErrorKind::output, "output", 8},
    KindRow{ErrorKind::failed_jobs, "failed jobs", 9},
    KindRow{ErrorKind::stopped, "stopped", 75},
};

const KindRow& row_of(ErrorKind kind) noexcept {
  const auto row = std::find_if(kKinds.begin(), kKinds.end(),
                                [kind](const KindRow& r) { return r.kind == kind; });
  return row == kKinds.end() ? kKinds.front() : *row;
}

}  // namespace

int exit_code(ErrorKind kind) noexcept { return row_of(kind).code; }
std::string_view to_string(ErrorKind kind) noexcept { return row_of(kind).name; }

Error::Error(ErrorKind kind, std::string message, std::source_location where)
    : kind_(kind), message_(std::move(message)), where_(where) {
  rebuild_text();
}

Error& Error::add_context(std::string context) {
  contexts_.insert(contexts_.begin(), std::move(context));
  rebuild_text();
  return *this;
}

void Error::rebuild_text() {
  text_.clear();
  for (const auto& context : contexts_) text_ += context + ": ";
  text_ += message_;
}

void fail(ErrorKind kind, std::string message, std::source_location where) {
  throw Error(kind, std::move(message), where);
}

}  // namespace flotilla
