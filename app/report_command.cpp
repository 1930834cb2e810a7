// flotilla report: what a run or a sweep left, as one HTML page.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "app/command.h"
#include "app/options.h"
#include "app/report_pages.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "io/file_bytes.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr Usage kUsage = {
    "report", "flotilla report METRICS.json|FOLDER [options]",
    "Writes one HTML page that needs no network: of a run, from its metrics (output.metrics) or "
    "the\n"
    "folder with them; of a sweep, from its folder. Clips and pictures become part of the page up "
    "to\n"
    "--embed-mb; those beyond are linked by relative paths.",
    "METRICS.json or FOLDER"};

constexpr uintmax_t kMaxMetricsBytes = 64 << 20;

// Nothing when it is not the metrics of a run.
std::optional<json> read_metrics(const fs::path& path) {
  std::error_code code;
  const auto bytes = fs::file_size(path, code);
  if (code || bytes > kMaxMetricsBytes) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  json metrics = json::parse(in, nullptr, /*allow_exceptions=*/false);
  const bool is_one = metrics.is_object() && metrics.contains("phases") && metrics.contains("job");
  return is_one ? std::optional(std::move(metrics)) : std::nullopt;
}

bool is_manifest(const fs::path& path) {
  return path.extension() == ".jsonl" && path.filename().string().starts_with("sweep");
}

bool holds_sweep(const fs::path& folder) {
  std::error_code code;
  const fs::directory_iterator entries(folder, code);
  return std::any_of(begin(entries), end(entries),
                     [](const auto& entry) { return is_manifest(entry.path()); });
}

// The one file of metrics in the folder.
fs::path metrics_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().extension() == ".json" && read_metrics(entry.path()))
      found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  if (found.size() == 1) return found.front();
  fail(ErrorKind::input,
       found.empty() ? fmt::format("\"{}\" holds neither a sweep nor the metrics of a run (set "
                                   "output.metrics)",
                                   folder.string())
                     : fmt::format("\"{}\" holds the metrics of {} runs; name one: {}",
                                   folder.string(), found.size(), fmt::join(found, ", ")));
}

struct Subject {
  fs::path path;  // metrics of a run, or a sweep's folder
  bool is_sweep = false;
};

Subject subject_of(const fs::path& path) {
  std::error_code code;
  if (fs::is_directory(path, code))
    return holds_sweep(path) ? Subject{path, true} : Subject{metrics_in(path), false};
  if (!fs::exists(path, code))
    fail(ErrorKind::input, fmt::format("\"{}\" does not exist", path.string()));
  if (is_manifest(path)) return {path.has_parent_path() ? path.parent_path() : ".", true};
  return {path, false};
}

std::string page_of(const Subject& subject, html::Files& files) {
  if (subject.is_sweep) return sweep_page(subject.path, files);
  const auto metrics = read_metrics(subject.path);
  if (!metrics)
    fail(ErrorKind::input,
         fmt::format("\"{}\" is neither the metrics of a run nor a sweep", subject.path.string()));
  return run_page(*metrics, subject.path, files);
}

void write_page(const fs::path& path, const std::string& page, bool overwrite) {
  PendingFile file(path, overwrite);
  io::write_bytes(file.temporary(), path,
                  {reinterpret_cast<const uint8_t*>(page.data()), page.size()});
  file.commit();
}

}  // namespace

int report(const Arguments& arguments) {
  po::options_description options("options");
  auto add = options.add_options();
  add("output", po::value<std::string>()->value_name("FILE.html"),
      "the page; otherwise METRICS.html, or report.html in the sweep's folder");
  add("embed-mb", po::value<int>()->default_value(64)->value_name("MB"),
      "most of clips and pictures that becomes part of the page; 0: all are linked");
  add("overwrite", "replace a page that exists");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  const int megabytes = (*values)["embed-mb"].as<int>();
  if (megabytes < 0) fail(ErrorKind::usage, "--embed-mb: 0 or more");
  const Subject subject = subject_of(positional(kUsage, *values));
  fs::path output = subject.is_sweep ? subject.path / "report.html"
                                     : fs::path(subject.path).replace_extension(".html");
  if (values->count("output") != 0) output = (*values)["output"].as<std::string>();
  const bool overwrite = values->count("overwrite") != 0;
  check_output_place(output, overwrite);
  html::Files files(output, int64_t{megabytes} * 1'000'000);
  write_page(output, page_of(subject, files), overwrite);
  fmt::print("report         {}\n", output.string());
  return 0;
}

}  // namespace flotilla::app
