#include "config/sweep_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "config/sweep.h"
#include "config/values.h"

namespace flotilla::config {
namespace {

using Axis = std::vector<Settings>;  // what each step along it sets

// Keys of the job that are the sweep's own business.
constexpr std::array<std::string_view, 4> kSweepsOwn = {"output", "checkpoint", "limits",
                                                        "schema_version"};

std::string normal_key(std::string_view key) {
  std::string text;
  for (const char c : key) {
    if (c != ']') text += c == '[' ? '.' : c;
  }
  return text;
}

std::optional<double> as_number(const Node& node) {
  if (node.kind != Node::Kind::scalar || node.quoted) return std::nullopt;
  double value = 0;
  const char* end_of_text = node.text.data() + node.text.size();
  const auto [end, error] = std::from_chars(node.text.data(), end_of_text, value);
  if (error != std::errc() || end != end_of_text) return std::nullopt;
  return value;
}

// As far as it can be told without the key's type: 0.5 and 0.50 are the same number.
bool is_same_value(const Node& a, const Node& b) {
  if (a.kind != b.kind) return false;
  if (const auto x = as_number(a), y = as_number(b); x && y) return *x == *y;
  const auto same_entry = [](const Entry& x, const Entry& y) {
    return x.key == y.key && is_same_value(x.value, y.value);
  };
  return a.text == b.text &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    is_same_value) &&
         std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                    same_entry);
}

class PartsReader {
 public:
  explicit PartsReader(Problems& problems) : problems_(problems) {}

  SweepParts read(const Node& root) {
    static const std::vector<std::string> kKeys = {"schema_version", "job",     "grid",  "zip",
                                                   "points",         "exclude", "output"};
    check_keys(root, "", kKeys);
    if (const Node* version = find(root, "schema_version")) read_version(*version);
    read_job(root);
    read_output(root);
    if (const Node* grid = find(root, "grid")) read_grid(*grid);
    if (const Node* zip = find(root, "zip")) read_zip(*zip);
    expand();
    if (const Node* points = find(root, "points")) read_points(*points);
    if (const Node* exclude = find(root, "exclude")) read_exclude(*exclude);
    if (parts_.points.empty() && problems_.empty())
      add(root, "", "has no points; give grid, zip or points, and exclude less than all of them");
    return std::move(parts_);
  }

 private:
  void add(const Node& node, const std::string& key, std::string text) {
    problems_.add(node.place, key, std::move(text));
  }

  static const Node* find(const Node& map, std::string_view key) {
    for (const Entry& entry : map.entries) {
      if (entry.key == key) return &entry.value;
    }
    return nullptr;
  }

  void check_keys(const Node& map, const std::string& prefix,
                  const std::vector<std::string>& known) {
    for (const Entry& entry : map.entries) {
      if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
      const std::string hint = nearest_hint(entry.key, known);
      problems_.add(
          entry.key_place, prefix + excerpt(entry.key),
          "unknown key of a sweep" + (hint.empty() ? "; expected " + alternatives(known) : hint));
    }
  }

  bool check_kind(const Node& node, Node::Kind kind, const std::string& key,
                  std::string_view expected) {
    if (node.kind == kind) return true;
    if (node.kind != Node::Kind::broken)
      add(node, key, fmt::format("{}; expected {}", found_text(node), expected));
    return false;
  }

  void read_version(const Node& node) {
    int64_t version = 1;
    if (auto complaint = read_value(node, {.min = 1, .max = 1}, version))
      add(node, "schema_version", std::move(*complaint));
  }

  void read_job(const Node& root) {
    const Node* job = find(root, "job");
    if (job == nullptr)
      return add(root, "job", "is missing; expected a job file, or the keys of a job");
    if (job->kind != Node::Kind::map)
      check_kind(*job, Node::Kind::scalar, "job", "a job file, or a map: the keys of a job");
    parts_.job = *job;
  }

  void read_output(const Node& root) {
    const Node* output = find(root, "output");
    if (output == nullptr)
      return add(root, "output", "is missing; expected {folder: ...}, where the clips go");
    if (!check_kind(*output, Node::Kind::map, "output", "{folder: , name: }")) return;
    check_keys(*output, "output.", {"folder", "name"});
    const Node* folder = find(*output, "folder");
    if (folder == nullptr) {
      add(*output, "output.folder", "is missing; expected the folder for all files of the sweep");
    } else if (auto complaint = read_value(*folder, {}, parts_.folder)) {
      add(*folder, "output.folder", std::move(*complaint));
    } else if (parts_.folder.empty()) {
      add(*folder, "output.folder", "is empty");
    }
    parts_.name_place = output->place;
    const Node* name = find(*output, "name");
    if (name == nullptr) return;
    parts_.name_place = name->place;
    if (auto complaint = read_value(*name, {}, parts_.name))
      add(*name, "output.name", std::move(*complaint));
  }

  // False for a key that no point may set.
  bool check_key(const Entry& entry, const std::string& where) {
    for (const auto own : kSweepsOwn) {
      if (!keys_overlap(entry.key, own)) continue;
      problems_.add(entry.key_place, fmt::format("{}.{}", where, excerpt(entry.key)),
                    fmt::format("cannot change from point to point: the sweep sees to {} itself; "
                                "set it in the job",
                                own));
      return false;
    }
    return true;
  }

  // A key of grid or zip with its values; empty when something is wrong with it.
  Axis read_axis(const Entry& entry, const std::string& where) {
    const std::string name = fmt::format("{}.{}", where, excerpt(entry.key));
    if (!check_key(entry, where)) return {};
    for (const auto& other : varied_) {
      if (!keys_overlap(entry.key, other)) continue;
      problems_.add(entry.key_place, name,
                    fmt::format("sets what \"{}\" sets; keep one of the two", excerpt(other)));
      return {};
    }
    varied_.push_back(entry.key);
    if (!check_kind(entry.value, Node::Kind::sequence, name, "a list of values")) return {};
    if (entry.value.items.empty()) add(entry.value, name, "holds no value; remove the key");
    Axis axis;
    for (const Node& value : entry.value.items)
      axis.push_back({Setting{entry.key, entry.key_place, value}});
    return axis;
  }

  void read_grid(const Node& grid) {
    if (!check_kind(grid, Node::Kind::map, "grid", "a map of keys with lists of values")) return;
    for (const Entry& entry : grid.entries) {
      if (Axis axis = read_axis(entry, "grid"); !axis.empty()) axes_.push_back(std::move(axis));
    }
  }

  void read_zip(const Node& zip) {
    if (!check_kind(zip, Node::Kind::map, "zip", "a map of keys with lists of equal length"))
      return;
    Axis rows;
    for (const Entry& entry : zip.entries) {
      const Axis column = read_axis(entry, "zip");
      if (column.empty()) continue;
      if (rows.empty()) rows.resize(column.size());
      if (rows.size() != column.size()) {
        add(entry.value, "zip." + excerpt(entry.key),
            fmt::format("holds {} values where \"{}\" holds {}; lists of zip go in step",
                        column.size(), excerpt(rows.front().front().key), rows.size()));
        continue;
      }
      for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(column[i].front());
    }
    if (!rows.empty()) axes_.push_back(std::move(rows));
  }

  // The product of the axes; the first one changes slowest.
  void expand() {
    if (axes_.empty()) return;
    std::vector<Settings> points(1);
    for (const Axis& axis : axes_) {
      std::vector<Settings> longer;
      if (points.size() * axis.size() > static_cast<size_t>(kMaxSweepPoints)) {
        problems_.add(axis.front().front().place, "",
                      fmt::format("the sweep has more than {} points", kMaxSweepPoints));
        return;
      }
      for (const Settings& point : points) {
        for (const Settings& step : axis) {
          longer.push_back(point);
          longer.back().insert(longer.back().end(), step.begin(), step.end());
        }
      }
      points = std::move(longer);
    }
    parts_.points = std::move(points);
  }

  std::optional<Settings> read_map(const Node& map, const std::string& key) {
    if (!check_kind(map, Node::Kind::map, key, "a map of keys with their values"))
      return std::nullopt;
    Settings settings;
    for (const Entry& entry : map.entries) {
      if (check_key(entry, key)) settings.push_back({entry.key, entry.key_place, entry.value});
    }
    return settings;
  }

  void read_points(const Node& points) {
    if (!check_kind(points, Node::Kind::sequence, "points", "a list of maps")) return;
    if (parts_.points.size() + points.items.size() > static_cast<size_t>(kMaxSweepPoints))
      return add(points, "points",
                 fmt::format("the sweep has more than {} points", kMaxSweepPoints));
    for (size_t i = 0; i < points.items.size(); ++i) {
      auto settings = read_map(points.items[i], fmt::format("points[{}]", i));
      if (!settings) continue;
      for (const Setting& setting : *settings) varied_.push_back(setting.key);
      parts_.points.push_back(std::move(*settings));
    }
  }

  void read_exclude(const Node& exclude) {
    if (!check_kind(exclude, Node::Kind::sequence, "exclude", "a list of maps")) return;
    for (size_t i = 0; i < exclude.items.size(); ++i) {
      const std::string name = fmt::format("exclude[{}]", i);
      const auto settings = read_map(exclude.items[i], name);
      if (!settings || !check_varied(*settings, name)) continue;
      const auto matches = [&](const Settings& point) { return is_excluded(point, *settings); };
      const size_t count = settings->empty() ? 0 : std::erase_if(parts_.points, matches);
      if (count == 0)
        add(exclude.items[i], name, "matches no point that is left; correct it, or remove it");
    }
  }

  // False when `settings` has a key that is the same in all points.
  bool check_varied(const Settings& settings, const std::string& name) {
    bool all_known = true;
    for (const Setting& setting : settings) {
      const auto same = [&](const std::string& key) {
        return normal_key(key) == normal_key(setting.key);
      };
      if (std::any_of(varied_.begin(), varied_.end(), same)) continue;
      all_known = false;
      problems_.add(setting.place, fmt::format("{}.{}", name, excerpt(setting.key)),
                    "is no key that the sweep changes" + nearest_hint(setting.key, varied_));
    }
    return all_known;
  }

  static bool is_excluded(const Settings& point, const Settings& settings) {
    return std::all_of(settings.begin(), settings.end(), [&](const Setting& wanted) {
      return std::any_of(point.begin(), point.end(), [&](const Setting& setting) {
        return normal_key(setting.key) == normal_key(wanted.key) &&
               is_same_value(setting.value, wanted.value);
      });
    });
  }

  Problems& problems_;
  SweepParts parts_;
  std::vector<Axis> axes_;
  std::vector<std::string> varied_;  // keys that some point sets
};

}  // namespace

bool keys_overlap(std::string_view a, std::string_view b) {
  const std::string x = normal_key(a) + '.';
  const std::string y = normal_key(b) + '.';
  return x.starts_with(y) || y.starts_with(x);
}

std::string node_text(const Node& node) {
  std::string text;
  const auto append = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  switch (node.kind) {
    case Node::Kind::null:
    case Node::Kind::broken:
      return "";
    case Node::Kind::scalar:
      return node.text;
    case Node::Kind::sequence:
      for (const Node& item : node.items) append(node_text(item));
      return "[" + text + "]";
    case Node::Kind::map:
      for (const Entry& entry : node.entries) append(entry.key + ": " + node_text(entry.value));
      return "{" + text + "}";
  }
  return "";
}

SweepParts read_sweep_parts(const Node& root, Problems& problems) {
  return PartsReader(problems).read(root);
}

}  // namespace flotilla::config
