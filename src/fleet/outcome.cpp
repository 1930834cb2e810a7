#include "fleet/outcome.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace flotilla::fleet {
namespace {

using nlohmann::json;

void meet(comm::Communicator& world, const std::optional<Error>& own, double patience_s) {
  try {
    world.meet("the end of the job", own ? patience_s : std::numeric_limits<double>::infinity());
  } catch (const Error&) {
    if (own) throw *own;
    throw;
  }
}

// One byte of kind, then the text; "" means success.
std::string pack(const std::optional<Error>& error) {
  return error ? static_cast<char>(error->kind()) + std::string(error->what()) : "";
}

std::vector<int> all_ranks(const std::vector<RankError>& reports) {
  std::vector<int> ranks;
  for (const RankError& report : reports)
    ranks.insert(ranks.end(), report.ranks.begin(), report.ranks.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

AsymmetricRunnerError::AsymmetricRunnerError(std::vector<RankError> reports)
    : FleetError(reports.front().kind, all_ranks(reports),
                 "the ranks do not agree on how the job went; " + describe(reports)),
      reports_(std::move(reports)) {}

std::string describe(const std::vector<RankError>& errors) {
  std::string text;
  for (const RankError& error : errors) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", ranks_text(error.ranks), error.text);
  }
  return text;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

JobEnd gather_outcomes(comm::Communicator& world, const std::optional<Error>& own,
                       double patience_s) {
  meet(world, own, patience_s);
  if (world.all_max(own ? 1 : 0) == 0) return {};
  const auto packed = world.all_gather(pack(own));
  JobEnd end;
  for (size_t r = 0; r < packed.size(); ++r) {
    if (packed[r].empty()) continue;
    const auto kind = static_cast<ErrorKind>(packed[r].front());
    const std::string text = packed[r].substr(1);
    auto same = std::find_if(end.errors.begin(), end.errors.end(), [&](const RankError& error) {
      return error.kind == kind && error.text == text;
    });
    if (same == end.errors.end()) same = end.errors.insert(same, RankError{{}, kind, text});
    same->ranks.push_back(static_cast<int>(r));
  }
  end.alike = end.errors.size() == 1 && end.errors.front().ranks.size() == packed.size();
  return end;
}

Message to_message(const JobEnd& end) {
  json errors = json::array();
  for (const RankError& error : end.errors) {
    errors.push_back(
        {{"ranks", error.ranks}, {"kind", static_cast<int>(error.kind)}, {"text", error.text}});
  }
  return json{{"errors", std::move(errors)}, {"alike", end.alike}};
}

JobEnd job_end_from(const Message& message) {
  JobEnd end;
  try {
    end.alike = message.body.at("alike").get<bool>();
    for (const json& error : message.body.at("errors")) {
      RankError report{{},
                       static_cast<ErrorKind>(integer_of(error.at("kind"))),
                       error.at("text").get<std::string>()};
      for (const json& rank : error.at("ranks"))
        report.ranks.push_back(static_cast<int>(integer_of(rank)));
      end.errors.push_back(std::move(report));
    }
  } catch (const json::exception& error) {
    fail(ErrorKind::communication,
         fmt::format("the driver says how the job went in words of its own: {}", error.what()));
  }
  return end;
}

void throw_errors(const JobEnd& end) {
  if (end.errors.empty()) return;
  if (!end.alike) throw AsymmetricRunnerError(end.errors);
  const RankError& error = end.errors.front();
  throw SymmetricRunnerError(error.kind, error.ranks, error.text);
}

}  // namespace flotilla::fleet
