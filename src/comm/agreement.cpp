#include "comm/agreement.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <new>
#include <vector>

#include "comm/communicator.h"

namespace flotilla::comm {
namespace {

// For ranks that do not get on.
constexpr double kErrorPatienceSeconds = 10;

struct Report {
  ErrorKind kind;
  std::string text;
  std::vector<int> ranks;
};

// One byte of kind, then the text; "" means success.
std::string pack(const std::optional<Error>& error) {
  if (!error) return "";
  return static_cast<char>(error->kind()) + std::string(error->what());
}

// Ranks with the same error share a report; in the order of their lowest ranks.
std::vector<Report> merge(const Communicator& communicator,
                          const std::vector<std::string>& packed) {
  std::vector<Report> reports;
  for (size_t r = 0; r < packed.size(); ++r) {
    if (packed[r].empty()) continue;
    const auto kind = static_cast<ErrorKind>(packed[r].front());
    const std::string text = packed[r].substr(1);
    auto same = std::find_if(reports.begin(), reports.end(), [&](const Report& report) {
      return report.kind == kind && report.text == text;
    });
    if (same == reports.end()) same = reports.insert(same, Report{kind, text, {}});
    same->ranks.push_back(communicator.world_rank(static_cast<int>(r)));
  }
  return reports;
}

// An error that all ranks found alike (a wrong job) needs no ranks in its text.
std::string describe(const std::vector<Report>& reports, int world_size) {
  if (static_cast<int>(reports.front().ranks.size()) == world_size) return reports.front().text;
  std::string text;
  for (const auto& report : reports) {
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "\n", ranks_text(report.ranks), report.text);
  }
  return text;
}

// A rank with an error may be alone with it: the others wait in a collective call that it has left.
// Then there is nobody to agree with, and the error itself passes on, to end all ranks.
void meet(Communicator& communicator, const std::optional<Error>& error) {
  try {
    communicator.meet("agreement",
                      error ? kErrorPatienceSeconds : std::numeric_limits<double>::infinity());
  } catch (const Error&) {
    if (error) throw *error;
    throw;
  }
}

}  // namespace

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const c10::OutOfMemoryError& error) {
    return Error(ErrorKind::memory,
                 fmt::format("out of device memory: {}", error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::memory, "out of host memory");
  } catch (const c10::Error& error) {
    return Error(ErrorKind::internal, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Error(ErrorKind::internal, error.what());
  } catch (...) {
    return Error(ErrorKind::internal, "an exception that is no std::exception");
  }
}

void agree(Communicator& communicator, const std::optional<Error>& error) {
  meet(communicator, error);
  if (communicator.all_max(error ? 1 : 0) == 0) return;
  const auto reports = merge(communicator, communicator.all_gather(pack(error)));
  const auto cause = std::find_if(reports.begin(), reports.end(), [](const Report& report) {
    return report.kind != ErrorKind::communication;
  });
  throw AgreedError((cause == reports.end() ? reports.front() : *cause).kind,
                    describe(reports, communicator.world_size()), communicator.is_driver());
}

void agree_on(Communicator& communicator, const std::string& what, int64_t value) {
  // all_max(-x) is minus the smallest: two small reductions instead of a gather in the usual case.
  if (communicator.all_max(value) == -communicator.all_max(-value)) return;
  const auto values = communicator.all_gather(fmt::format("{}", value));
  throw AgreedError(ErrorKind::internal,
                    fmt::format("{} differs between ranks: {} (in the order of the ranks)", what,
                                fmt::join(values, ", ")),
                    communicator.is_driver());
}

}  // namespace flotilla::comm
