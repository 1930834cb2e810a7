#include "pipeline/sweep_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "config/job_files.h"
#include "config/writer.h"

namespace flotilla::pipeline {
namespace {

// Numbers texts in the order in which they come first.
class FirstSeen {
 public:
  size_t number_of(const std::string& text) {
    return numbers_.emplace(text, numbers_.size()).first->second;
  }

 private:
  std::map<std::string, size_t> numbers_;
};

struct Loads {
  std::string models;
  std::string loras;
  std::string prompts;
};

Loads loads_of(const config::Job& job) {
  Loads loads;
  for (const auto& [key, value] : config::dotted_values(job)) {
    const bool is_lora =
        key.starts_with("models.loras") || key.starts_with("models.distilled_lora");
    const bool is_prompt = key == "prompt" || key == "negative_prompt" || key.starts_with("text.");
    const bool is_model = key.starts_with("models.") || key == "pipeline" || key == "precision" ||
                          key == "device" || key == "offload";
    if (!is_lora && !is_prompt && !is_model) continue;
    (is_lora ? loads.loras : (is_prompt ? loads.prompts : loads.models)) +=
        fmt::format("{}={}\n", key, value);
  }
  return loads;
}

// Why the record is no proof that the point is done; empty: it is.
std::string fault_of(const io::PointRecord& record, const config::SweepPoint& point,
                     const std::filesystem::path& folder) {
  for (const auto& name : output_names(point)) {
    const auto has_name = [&](const io::RecordedFile& file) { return file.name == name; };
    if (std::none_of(record.files.begin(), record.files.end(), has_name))
      return fmt::format("\"{}\" was not made then", name);
  }
  for (const auto& file : record.files) {
    const auto found = io::record_file(folder, file.name);
    if (!found) return fmt::format("\"{}\" is gone", file.name);
    if (*found != file) return fmt::format("\"{}\" has changed since", file.name);
  }
  return "";
}

// `records`: of one point, oldest first.
PointStatus judge(const std::vector<const io::PointRecord*>& records,
                  const config::SweepPoint& point, const std::filesystem::path& folder) {
  PointStatus status;
  if (records.empty()) return status;
  status.known = true;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if ((*record)->event != io::PointEvent::done) continue;
    status.note = fault_of(**record, point, folder);
    status.record = **record;
    if (status.note.empty()) {
      status.state = PointState::done;
      return status;
    }
    break;  // older ones are of files that this one has replaced
  }
  const io::PointRecord& last = *records.back();
  if (last.event == io::PointEvent::done) return status;
  status.record = last;
  status.state = last.event == io::PointEvent::failed ? PointState::failed : PointState::started;
  return status;
}

}  // namespace

std::vector<size_t> order_points(const config::Sweep& sweep) {
  FirstSeen models, loras, prompts;
  std::vector<std::tuple<size_t, size_t, size_t>> groups;
  for (const auto& point : sweep.points) {
    const Loads loads = loads_of(point.loaded.job);
    groups.emplace_back(models.number_of(loads.models), loras.number_of(loads.loras),
                        prompts.number_of(loads.prompts));
  }
  std::vector<size_t> order(sweep.points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return groups[a] < groups[b]; });
  return order;
}

std::vector<size_t> select_points(const config::Sweep& sweep, const SweepSelection& selection) {
  const auto num_points = static_cast<int64_t>(sweep.points.size());
  const auto& [what, number, count] = selection;
  if (what == SweepSelection::What::point) {
    if (number < 0 || number >= num_points)
      fail(ErrorKind::usage, fmt::format("there is no point {}: the sweep has the points 0 to {}",
                                         number, num_points - 1));
    return {static_cast<size_t>(number)};
  }
  const std::vector<size_t> order = order_points(sweep);
  if (what == SweepSelection::What::all) return order;
  if (count < 1 || number < 1 || number > count)
    fail(ErrorKind::usage, fmt::format("there is no shard {}/{}: expected 1/{} to {}/{}", number,
                                       count, count, count, count));
  return {order.begin() + (number - 1) * num_points / count,
          order.begin() + number * num_points / count};
}

std::string manifest_name(const SweepSelection& selection) {
  switch (selection.what) {
    case SweepSelection::What::all:
      break;
    case SweepSelection::What::shard:
      return fmt::format("sweep.{}-of-{}.jsonl", selection.number, selection.count);
    case SweepSelection::What::point:
      return fmt::format("sweep.point-{}.jsonl", selection.number);
  }
  return "sweep.jsonl";
}

std::string_view to_string(PointState state) {
  switch (state) {
    case PointState::pending:
      return "pending";
    case PointState::started:
      return "started";
    case PointState::done:
      return "done";
    case PointState::failed:
      return "failed";
  }
  return "?";
}

std::vector<std::string> output_names(const config::SweepPoint& point) {
  std::vector<std::string> names;
  for (const auto& file : config::output_files(point.loaded.job)) {
    if (file.key == "checkpoint.path") continue;
    names.push_back(file.path.filename().string());
  }
  return names;
}

std::vector<PointStatus> survey(const config::Sweep& sweep, const std::vector<size_t>& positions) {
  const std::vector<io::PointRecord> records = io::read_manifests(sweep.folder);
  // A point under another name, of a sweep that was changed meanwhile, has other files.
  std::map<std::pair<std::string, std::string>, std::vector<const io::PointRecord*>> of_point;
  for (const auto& record : records) of_point[{record.hash, record.name}].push_back(&record);
  std::vector<PointStatus> statuses;
  for (const size_t position : positions) {
    const config::SweepPoint& point = sweep.points[position];
    statuses.push_back(judge(of_point[{point.hash, point.name}], point, sweep.folder));
  }
  return statuses;
}

}  // namespace flotilla::pipeline
