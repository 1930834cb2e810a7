#include "app/html_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <vector>

#include "app/html.h"

namespace flotilla::app::html {
namespace {

using nlohmann::json;

constexpr double kWidth = 1000;
constexpr double kLabels = 70;  // left of the lanes
constexpr double kLane = 26;
constexpr double kLegendColumns = 5;

// Distinct in light and in dark surroundings.
constexpr std::array<std::string_view, 10> kColours = {"#4e79a7", "#f28e2b", "#59a14f", "#e15759",
                                                       "#76b7b2", "#b07aa1", "#edc948", "#9c755f",
                                                       "#ff9da7", "#8c8c8c"};

struct Span {
  int64_t rank = 0;
  std::string phase;
  double start_s = 0;
  double end_s = 0;
};

std::vector<Span> spans_of(const json& timeline) {
  std::vector<Span> spans;
  if (!timeline.is_array()) return spans;
  for (const auto& entry : timeline) {
    if (!entry.is_object() || !entry.value("rank", json()).is_number_integer() ||
        !entry.value("phase", json()).is_string() || !entry.value("start_s", json()).is_number() ||
        !entry.value("end_s", json()).is_number())
      continue;
    const Span span{entry.at("rank").get<int64_t>(), entry.at("phase").get<std::string>(),
                    entry.at("start_s").get<double>(), entry.at("end_s").get<double>()};
    const bool is_sane = span.rank >= 0 && std::isfinite(span.start_s) && span.start_s >= 0 &&
                         std::isfinite(span.end_s) && span.end_s >= span.start_s;
    if (is_sane) spans.push_back(span);
  }
  return spans;
}

// 1, 2 or 5 times a power of ten: at most ten marks up to `end`.
double mark_distance(double end) {
  const double power = std::pow(10.0, std::floor(std::log10(std::max(end, 1e-6) / 10)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (end / (factor * power) <= 10) return factor * power;
  return end;
}

std::string axis(double end_s, double scale, double bottom) {
  std::string svg;
  const double distance = mark_distance(end_s);
  for (int mark = 0; mark * distance <= end_s; ++mark) {
    const double x = kLabels + mark * distance * scale;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"0\" x2=\"{0:.1f}\" y2=\"{1:.1f}\" stroke=\"#8884\"/>"
        "<text x=\"{0:.1f}\" y=\"{2:.1f}\" text-anchor=\"middle\">{3:g} s</text>",
        x, bottom, bottom + 14, mark * distance);
  }
  return svg;
}

std::string legend(const std::vector<std::string>& phases, double top) {
  std::string svg;
  for (size_t i = 0; i < phases.size(); ++i) {
    const double column = static_cast<double>(i % static_cast<size_t>(kLegendColumns));
    const double row = static_cast<double>(i / static_cast<size_t>(kLegendColumns));
    const double x = kLabels + column * (kWidth - kLabels) / kLegendColumns;
    const double y = top + row * 18;
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>",
        x, y, kColours[i % kColours.size()], x + 17, y + 10.5, escape(phases[i]));
  }
  return svg;
}

}  // namespace

std::string timeline_chart(const json& timeline) {
  const std::vector<Span> spans = spans_of(timeline);
  if (spans.empty()) return "";
  double end_s = 1e-6;
  std::vector<std::string> phases;
  std::map<int64_t, double> lanes;  // rank -> top
  for (const auto& span : spans) {
    end_s = std::max(end_s, span.end_s);
    lanes[span.rank] = 0;
    if (std::find(phases.begin(), phases.end(), span.phase) == phases.end())
      phases.push_back(span.phase);
  }
  double top = 0;
  for (auto& [rank, lane_top] : lanes) {
    lane_top = top;
    top += kLane;
  }
  const double scale = (kWidth - kLabels - 30) / end_s;
  std::string svg = axis(end_s, scale, top);
  for (const auto& [rank, lane_top] : lanes)
    svg += fmt::format("<text x=\"0\" y=\"{:.1f}\">rank {}</text>", lane_top + 17, rank);
  for (const auto& span : spans) {
    const auto phase = std::find(phases.begin(), phases.end(), span.phase) - phases.begin();
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\">"
        "<title>rank {}: {}, {:.3f} s to {:.3f} s</title></rect>",
        kLabels + span.start_s * scale, lanes[span.rank] + 3,
        std::max(0.5, (span.end_s - span.start_s) * scale), kLane - 6,
        kColours[static_cast<size_t>(phase) % kColours.size()], span.rank, escape(span.phase),
        span.start_s, span.end_s);
  }
  svg += legend(phases, top + 26);
  const double rows = std::ceil(static_cast<double>(phases.size()) / kLegendColumns);
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"phases of each "
      "rank over time\">{}</svg>",
      kWidth, top + 30 + rows * 18, svg);
}

std::string step_chart(const json& values) {
  if (!values.is_array() || values.empty()) return "";
  constexpr double kHeight = 90;
  double most = 1e-9;
  for (const auto& value : values)
    if (value.is_number()) most = std::max(most, value.get<double>());
  const double width = std::min(60.0, kWidth / static_cast<double>(values.size()));
  std::string svg;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_number()) continue;
    const double seconds = std::max(0.0, values[i].get<double>());
    const double height = std::max(0.5, seconds / most * kHeight);
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\">"
        "<title>step {}: {:.3f} s</title></rect>",
        static_cast<double>(i) * width, kHeight - height, std::max(1.0, width - 3), height,
        kColours[0], i + 1, seconds);
  }
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" role=\"img\" "
      "aria-label=\"seconds of each step\">{}</svg>",
      std::max(width, width * static_cast<double>(values.size())), kHeight,
      std::max(width, width * static_cast<double>(values.size())), svg);
}

}  // namespace flotilla::app::html
