// flotilla status and flotilla cancel: what a server does, and the end of its job.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>

#include "app/command.h"
#include "app/options.h"
#include "app/report.h"
#include "app/server_call.h"
#include "base/error.h"
#include "base/text.h"

namespace flotilla::app {
namespace {

using nlohmann::json;

constexpr Usage kStatusUsage = {"status", "flotilla status [options]",
                                "Tells what the flotilla serve of this user does: its job, what is "
                                "loaded, and how many jobs it has done.",
                                ""};
constexpr Usage kCancelUsage = {"cancel", "flotilla cancel [options]",
                                "Stops the job of the flotilla serve of this user at its next safe "
                                "point: the next step, or tile of the decode.",
                                ""};

void require_no_argument(const Usage& usage, const po::variables_map& values) {
  if (values.count("positional") != 0)
    fail(ErrorKind::usage, fmt::format("flotilla {} takes options only", usage.command));
}

// In the order in which people read it.
Report report_of(const json& event) {
  Report report;
  for (const char* key : {"state", "process", "version", "uptime_s", "ranks", "devices", "starts",
                          "jobs_done", "jobs_failed", "jobs_stopped", "jobs_waiting", "models",
                          "host_bytes", "device_bytes", "job"})
    report[key] = event.contains(key) ? Report(event.at(key)) : Report();
  return report;
}

}  // namespace

int status(const Arguments& arguments) {
  po::options_description options("options");
  add_socket_option(options);
  options.add_options()("json", "as JSON");
  const auto values = parse(kStatusUsage, std::move(options), arguments);
  if (!values) return 0;
  require_no_argument(kStatusUsage, *values);
  ServerCall call(*values);
  call.send({{"op", "status"}});
  const json event = call.next();
  if (event.at("event") != "status") return report_error_event(event);
  print_report(report_of(event), values->count("json") != 0);
  return 0;
}

int cancel(const Arguments& arguments) {
  po::options_description options("options");
  add_socket_option(options);
  options.add_options()("job", po::value<int64_t>()->value_name("N"),
                        "only when the job of this number is running");
  const auto values = parse(kCancelUsage, std::move(options), arguments);
  if (!values) return 0;
  require_no_argument(kCancelUsage, *values);
  ServerCall call(*values);
  json request = {{"op", "cancel"}};
  if (values->count("job") != 0) request["job"] = (*values)["job"].as<int64_t>();
  call.send(request);
  const json event = call.next();
  if (event.at("event") != "cancelling") return report_error_event(event);
  fmt::print("job {} stops at its next safe point\n", event.value("job", 0));
  return 0;
}

}  // namespace flotilla::app
