// The page of a sweep, from the manifests in its folder.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "app/report_pages.h"
#include "base/error.h"
#include "base/text.h"
#include "io/sweep_manifest.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;
using html::escape;
using io::PointEvent;
using io::PointRecord;

// Sorts by the column that is clicked, numbers as numbers; "#sort=3" in the address does the same.
constexpr std::string_view kSortScript = R"(
const table = document.getElementById("points");
function sortBy(column) {
  const body = table.tBodies[0];
  const down = table.dataset.column === String(column) ? table.dataset.down !== "yes" : false;
  const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
  const compare = (a, b) => {
    const [x, y] = [key(a), key(b)];
    const numbers = x !== "" ? y !== "" ? !isNaN(x) ? !isNaN(y) : false : false : false;
    return (numbers ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
  };
  [...body.rows].sort(compare).forEach(row => body.appendChild(row));
  table.dataset.column = column;
  table.dataset.down = down ? "yes" : "no";
}
[...table.tHead.rows[0].cells].forEach((cell, column) => {
  cell.className = "sortable";
  cell.addEventListener("click", () => sortBy(column));
});
const wish = location.hash.match(/^#sort=(\d+)$/);
if (wish !== null) sortBy(Number(wish[1]));
document.documentElement.dataset.ready = "yes";
)";

struct Point {
  PointRecord last;
  std::map<std::string, std::string> values;
};

// The last that is known of each point; a point that is done stays done.
std::vector<Point> points_of(const std::vector<PointRecord>& records) {
  std::map<int64_t, Point> points;
  for (const auto& record : records) {
    Point& point = points[record.point];
    point.last = record;
    for (const auto& [key, value] : record.values) point.values[key] = value;
  }
  std::vector<Point> list;
  for (auto& [number, point] : points) list.push_back(std::move(point));
  return list;
}

struct Axis {
  std::string key;
  std::vector<std::string> values;  // in the order of the points
};

// Keys whose value is not the same in all points.
std::vector<Axis> axes_of(const std::vector<Point>& points) {
  std::vector<std::string> keys;
  std::map<std::string, Axis> all;
  for (const auto& point : points) {
    for (const auto& [key, value] : point.last.values) {
      Axis& axis = all[key];
      if (axis.key.empty()) keys.push_back(axis.key = key);
      if (std::find(axis.values.begin(), axis.values.end(), value) == axis.values.end())
        axis.values.push_back(value);
    }
  }
  std::vector<Axis> axes;
  for (const auto& key : keys)
    if (all[key].values.size() > 1) axes.push_back(all[key]);
  return axes;
}

std::string value_of(const Point& point, const Axis& axis) {
  const auto found = point.values.find(axis.key);
  return found == point.values.end() ? "" : found->second;
}

std::string state_of(const PointRecord& record) {
  switch (record.event) {
    case PointEvent::done:
      return "done";
    case PointEvent::failed:
      return fmt::format("<span class=\"failed\">failed</span>, exit code {}", record.exit_code);
    case PointEvent::stopped:
      return "stopped";
    case PointEvent::started:
      return "begun, no end known";
  }
  return "";
}

std::string cell_of(const Point& point, const fs::path& folder, html::Files& files) {
  const PointRecord& record = point.last;
  std::string cell = fmt::format("<p>{}: {}</p>", record.point, state_of(record));
  if (record.event == PointEvent::done && !record.output.empty())
    cell += html::clip(files, folder / record.output);
  if (!record.error.empty())
    cell += fmt::format("<p class=\"failed\">{}</p>", escape(record.error));
  return cell;
}

// One table for each combination of the axes behind the first two: rows along the first, columns
// along the second.
std::string grid_of(const std::vector<Point>& points, const std::vector<Axis>& axes,
                    const fs::path& folder, html::Files& files) {
  const Axis none{"", {""}};
  const Axis& down = axes.empty() ? none : axes[0];
  const Axis& across = axes.size() < 2 ? none : axes[1];
  const auto group_of = [&](const Point& point) {
    std::string name;
    for (size_t i = 2; i < axes.size(); ++i)
      name += fmt::format("{}{} = {}", i > 2 ? ", " : "", axes[i].key, value_of(point, axes[i]));
    return name;
  };
  std::vector<std::string> groups;
  std::map<std::string, std::string> cells;
  const auto place = [](const std::string& group, const std::string& row,
                        const std::string& column) {
    return fmt::format("{}:{}|{}:{}|{}", group.size(), group, row.size(), row, column);
  };
  for (const auto& point : points) {
    const std::string group = group_of(point);
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    cells[place(group, value_of(point, down), value_of(point, across))] +=
        cell_of(point, folder, files);
  }
  std::string grid;
  for (const auto& group : groups) {
    if (!group.empty()) grid += fmt::format("<h3>{}</h3>", escape(group));
    grid += "<div class=\"wide\"><table class=\"grid\">";
    if (!across.key.empty()) {
      grid += fmt::format("<tr><th>{} \\ {}</th>", escape(down.key), escape(across.key));
      for (const auto& column : across.values) grid += fmt::format("<th>{}</th>", escape(column));
      grid += "</tr>";
    }
    for (const auto& row : down.values) {
      std::string line;
      for (const auto& column : across.values) {
        const auto found = cells.find(place(group, row, column));
        line += fmt::format("<td>{}</td>", found == cells.end() ? "" : found->second);
      }
      grid += fmt::format("<tr><th>{}</th>{}</tr>", escape(row), line);
    }
    grid += "</table></div>\n";
  }
  return grid;
}

std::string table_of(const std::vector<Point>& points, const std::vector<Axis>& axes) {
  std::string table = "<div class=\"wide\"><table id=\"points\"><thead><tr><th>point</th>";
  for (const auto& axis : axes) table += fmt::format("<th>{}</th>", escape(axis.key));
  table +=
      "<th>state</th><th>exit code</th><th>seconds</th><th>seed</th><th>clip</th><th>checksum</th>"
      "<th>error</th></tr></thead><tbody>";
  for (const auto& point : points) {
    const PointRecord& record = point.last;
    table += fmt::format("<tr><td>{}</td>", record.point);
    for (const auto& axis : axes)
      table += fmt::format("<td>{}</td>", escape(value_of(point, axis)));
    table += fmt::format(
        "<td>{}</td><td class=\"number\">{}</td><td class=\"number\">{:.3f}</td><td>{}</td>"
        "<td>{}</td><td>{}</td><td>{}</td></tr>",
        to_string(record.event), record.exit_code, record.seconds,
        record.seed ? fmt::format("{}", *record.seed) : "", escape(record.output),
        escape(record.checksum), escape(record.error));
  }
  return table + "</tbody></table></div>\n";
}

std::string summary_of(const std::vector<Point>& points) {
  std::map<std::string, int> counts;
  for (const auto& point : points) ++counts[std::string(to_string(point.last.event))];
  std::string text = fmt::format("{} points", points.size());
  for (const auto& [state, count] : counts) text += fmt::format(", {} {}", count, state);
  return text;
}

}  // namespace

std::string sweep_page(const fs::path& folder, html::Files& files) {
  const auto points = points_of(io::read_manifests(folder));
  if (points.empty())
    fail(ErrorKind::input,
         fmt::format("\"{}\" has no manifest of a sweep with points in it", folder.string()));
  const auto axes = axes_of(points);
  const std::string name = fs::absolute(folder).lexically_normal().filename().string();
  const std::string body = fmt::format(
      "<h1>sweep {}</h1>\n<p>{}</p>\n<h2>Clips</h2>\n{}<h2>Points</h2>\n"
      "<p class=\"note\">A click on a column's name sorts by it.</p>\n{}",
      escape(name), summary_of(points), grid_of(points, axes, folder, files),
      table_of(points, axes));
  return html::page("sweep " + name, body, kSortScript);
}

}  // namespace flotilla::app
