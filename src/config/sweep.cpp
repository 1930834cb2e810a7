#include "config/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "base/text.h"
#include "config/job_files.h"
#include "config/job_hash.h"
#include "config/job_tree.h"
#include "config/sweep_name.h"
#include "config/sweep_parts.h"
#include "config/values.h"
#include "config/writer.h"

namespace flotilla::config {
namespace fs = std::filesystem;
namespace {

constexpr size_t kPointsShown = 3;

// "point 2 (seed: 4)", "points 2, 5, 7 and 3 more".
std::string text_of_points(const std::vector<const SweepPoint*>& points) {
  if (points.size() == 1) {
    std::vector<std::string> values;
    for (const auto& [key, value] : points[0]->values)
      values.push_back(fmt::format("{}: {}", key, excerpt(value, 40)));
    return fmt::format("point {} ({})", points[0]->index, fmt::join(values, ", "));
  }
  std::vector<int64_t> shown;
  for (size_t i = 0; i < std::min(points.size(), kPointsShown); ++i)
    shown.push_back(points[i]->index);
  const size_t more = points.size() - shown.size();
  return fmt::format("points {}{}", fmt::join(shown, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

// What is wrong with points, each thing once.
class PointProblems {
 public:
  void add(const Problem& problem, const SweepPoint& point) {
    const std::string id = problem.place.text() + '\n' + problem.key + '\n' + problem.text;
    const auto [found, is_new] = numbers_.emplace(id, rows_.size());
    if (is_new) rows_.push_back({problem, {}});
    auto& points = rows_[found->second].points;
    if (points.empty() || points.back() != &point) points.push_back(&point);
  }
  bool empty() const { return rows_.empty(); }
  // A problem of all points is one of the job.
  void hand_over(Problems& problems, size_t num_points) const {
    for (const auto& [problem, points] : rows_) {
      const bool concerns_all = points.size() == num_points && num_points > 1;
      problems.add(problem.place, problem.key,
                   concerns_all ? problem.text
                                : fmt::format("{}; {}", problem.text, text_of_points(points)));
    }
  }

 private:
  struct Row {
    Problem problem;
    std::vector<const SweepPoint*> points;
  };
  std::vector<Row> rows_;
  std::map<std::string, size_t> numbers_;
};

// The job that all points start from.
JobTree read_base(const SweepParts& parts, std::shared_ptr<const Source> source,
                  std::span<const Override> overrides, Problems& problems) {
  JobTree base{source, parts.job};
  if (parts.job.kind == Node::Kind::scalar) {
    const fs::path file = absolute_path(parts.job.text, source->base);
    // As short as the user wrote it, where it can be opened so.
    base.source = file_source(source->base == working_folder() ? fs::path(parts.job.text) : file);
    base.root =
        parse_yaml(read_yaml_file(file, "job file (key job of the sweep)"), base.source, problems);
  }
  check_is_job(base, problems);
  apply_overrides(base.root, overrides, working_folder(), problems);
  return base;
}

class SweepLoader {
 public:
  SweepLoader(SweepParts parts, JobTree base, Problems& problems)
      : parts_(std::move(parts)), base_(std::move(base)), problems_(problems) {}

  Sweep load(const std::shared_ptr<const Source>& source) {
    sweep_.folder = parts_.folder;
    prepare_checkpoint();
    for (const Settings& settings : parts_.points) sweep_.points.push_back(load_point(settings));
    // Names and files of points that are wrong would only hide that.
    for (size_t i = 0; i < sweep_.points.size(); ++i) note(found_[i], sweep_.points[i]);
    if (point_problems_.empty() && problems_.empty()) {
      name_points();
      if (problems_.empty()) place_files(source);
      check_distinct();
    }
    point_problems_.hand_over(problems_, sweep_.points.size());
    return std::move(sweep_);
  }

 private:
  void note(const Problems& problems, const SweepPoint& point) {
    for (const Problem& problem : problems.all()) point_problems_.add(problem, point);
  }

  // The rules about limits ask for a checkpoint, and every point has one.
  void prepare_checkpoint() {
    Node path;
    path.kind = Node::Kind::scalar;
    path.place = {base_.source, 0, 0};
    path.text = (sweep_.folder / "state" / "point.h5").string();
    put_value(base_.root, "checkpoint.path", path, path.place, problems_);
  }

  SweepPoint load_point(const Settings& settings) {
    SweepPoint point;
    point.index = static_cast<int64_t>(sweep_.points.size());
    JobTree tree = base_;
    Problems& problems = found_.emplace_back();
    for (const auto& [key, place, value] : settings) {
      put_value(tree.root, key, value, place, problems);
      point.values.emplace_back(key, node_text(value));
    }
    point.loaded = load_job_tree(tree, problems);
    point.hash = job_hash(point.loaded.job);
    return point;
  }

  static std::optional<std::string> look_up(const SweepPoint& point, const std::string& key) {
    if (key == "hash") return point.hash;
    for (const auto& [name, value] : point.values) {
      if (name == key) return value;
    }
    for (const auto& [name, value] : dotted_values(point.loaded.job)) {
      if (name == key) return value;
    }
    return std::nullopt;
  }

  void name_points() {
    std::optional<std::string> complaint;
    const NameTemplate names(parts_.name, complaint);
    if (complaint) return problems_.add(parts_.name_place, "output.name", *complaint);
    std::map<std::string, const SweepPoint*> taken;
    for (SweepPoint& point : sweep_.points) {
      std::string problem;
      const auto name = names.render(
          point.index, [&](const std::string& key) { return look_up(point, key); }, problem);
      if (!name) {
        point_problems_.add({parts_.name_place, "output.name", problem}, point);
        continue;
      }
      point.name = *name;
      const auto [first, is_new] = taken.emplace(point.name, &point);
      if (is_new) continue;
      problems_.add(parts_.name_place, "output.name",
                    fmt::format("gives the name \"{}\" to points {} and {}; put {{index}} into it",
                                point.name, first->second->index, point.index));
      return;
    }
  }

  // The files that the job asks for, under the point's name.
  void place_files(const std::shared_ptr<const Source>& source) {
    for (SweepPoint& point : sweep_.points) {
      Job& job = point.loaded.job;
      const auto place = [&](fs::path& path, const char* extension) {
        if (!path.empty()) path = sweep_.folder / (point.name + extension);
      };
      const std::string clip_extension = job.output.path.extension().string();
      place(job.output.path, clip_extension.c_str());
      place(job.output.latents, ".h5");
      place(job.output.metrics, ".json");
      place(job.output.contact_sheet, ".png");
      job.checkpoint.path = sweep_.folder / "state" / (point.hash + ".h5");
      job.checkpoint.resume = Resume::automatic;
      Problems problems;
      check_names(job, point.loaded.origins, problems);
      note(problems, point);
      const fs::path own = point_file(sweep_, point);
      if (own == source->file || own == base_.source->file)
        point_problems_.add({parts_.name_place, "output.name",
                             "would replace a file that holds the sweep: " + own.string()},
                            point);
    }
  }

  void check_distinct() {
    std::map<std::string, const SweepPoint*> first;
    for (const SweepPoint& point : sweep_.points) {
      const auto [other, is_new] = first.emplace(point.hash, &point);
      if (is_new) continue;
      problems_.add({base_.source, 0, 0}, "",
                    fmt::format("points {} and {} of the sweep are the same job; exclude one, or "
                                "give it another seed",
                                other->second->index, point.index));
    }
  }

  const SweepParts parts_;
  JobTree base_;
  Problems& problems_;
  PointProblems point_problems_;
  std::vector<Problems> found_;  // of each point's job
  Sweep sweep_;
};

// --set of a key that the sweep sets anyway would be lost in silence.
void check_overrides(const SweepParts& parts, std::span<const Override> overrides,
                     Problems& problems) {
  for (const Override& change : overrides) {
    for (const Settings& settings : parts.points) {
      const auto overlaps = [&](const Setting& setting) {
        return keys_overlap(setting.key, change.key);
      };
      const auto setting = std::find_if(settings.begin(), settings.end(), overlaps);
      if (setting == settings.end()) continue;
      const std::string origin =
          change.origin.empty() ? "--set " + excerpt(change.key) : change.origin;
      problems.add(setting->place, setting->key,
                   fmt::format("the sweep changes this key; leave {} away", origin));
      break;
    }
  }
}

Sweep load_from(std::string_view text, const std::shared_ptr<const Source>& source,
                std::span<const Override> overrides) {
  Problems problems;
  const Node root = parse_yaml(text, source, problems);
  if (root.kind != Node::Kind::map) {
    if (root.kind != Node::Kind::broken)
      problems.add(root.place, "", found_text(root) + "; expected a map, the keys of a sweep");
    problems.throw_if_any(ErrorKind::config);
  }
  SweepParts parts = read_sweep_parts(root, problems);
  check_overrides(parts, overrides, problems);
  if (parts.job.kind != Node::Kind::scalar && parts.job.kind != Node::Kind::map)
    problems.throw_if_any(ErrorKind::config);
  JobTree base = read_base(parts, source, overrides, problems);
  Sweep sweep = SweepLoader(std::move(parts), std::move(base), problems).load(source);
  problems.throw_if_any(ErrorKind::config);
  return sweep;
}

}  // namespace

fs::path point_file(const Sweep& sweep, const SweepPoint& point) {
  return sweep.folder / (point.name + ".yaml");
}

Sweep load_sweep(const fs::path& file, std::span<const Override> overrides) {
  if (file != "-")
    return load_from(read_yaml_file(file, "sweep file"), file_source(file), overrides);
  return load_from(
      read_yaml_stream(std::cin),
      std::make_shared<const Source>(Source{
          .name = "standard input", .base = working_folder(), .has_lines = true, .file = {}}),
      overrides);
}

Sweep load_sweep_text(std::string_view text, const std::string& name, const fs::path& base,
                      std::span<const Override> overrides) {
  return load_from(
      text,
      std::make_shared<const Source>(Source{.name = name,
                                            .base = absolute_path(base, working_folder()),
                                            .has_lines = true,
                                            .file = {}}),
      overrides);
}

}  // namespace flotilla::config
