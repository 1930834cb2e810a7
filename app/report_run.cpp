// The page of one run, from its metrics.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "app/html_charts.h"
#include "app/report_pages.h"
#include "base/error.h"
#include "base/text.h"
#include "config/load.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;
using html::escape;
using nlohmann::json;

// "" for what is missing: metrics of other versions have other figures.
std::string text_at(const json& metrics, const char* pointer) {
  const json::json_pointer place(pointer);
  if (!metrics.contains(place)) return "";
  const json& value = metrics.at(place);
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::optional<double> number_at(const json& metrics, const std::string& pointer) {
  const json::json_pointer place(pointer);
  if (!metrics.contains(place) || !metrics.at(place).is_number()) return std::nullopt;
  return metrics.at(place).get<double>();
}

std::string rows(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string table = "<table>";
  for (const auto& [name, value] : entries) {
    if (value.empty()) continue;
    table += fmt::format("<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
  }
  return table + "</table>";
}

std::string section(std::string_view title, const std::string& body) {
  return body.empty() ? "" : fmt::format("<h2>{}</h2>\n{}\n", title, body);
}

std::string size_of(const json& metrics) {
  const auto width = text_at(metrics, "/plan/stage_2/width");
  return width.empty()
             ? ""
             : fmt::format(
                   "{} x {}, {} frames, {} fps", width, text_at(metrics, "/plan/stage_2/height"),
                   text_at(metrics, "/plan/num_frames"), text_at(metrics, "/plan/frame_rate"));
}

std::string settings(const json& metrics) {
  const auto duration = number_at(metrics, "/total_s");
  return rows({{"seed", text_at(metrics, "/job/seed")},
               {"original prompt", text_at(metrics, "/job/original_prompt")},
               {"pipeline", text_at(metrics, "/plan/pipeline")},
               {"clip", size_of(metrics)},
               {"precision", text_at(metrics, "/plan/precision")},
               {"ranks", text_at(metrics, "/plan/world_size")},
               {"device", text_at(metrics, "/devices/0/device")},
               {"stage 1", text_at(metrics, "/plan/stage_1/parallel")},
               {"stage 2", text_at(metrics, "/plan/stage_2/parallel")},
               {"decode", text_at(metrics, "/plan/decode")},
               {"started", text_at(metrics, "/start")},
               {"ended", text_at(metrics, "/end")},
               {"sum of phases", duration ? human_duration(*duration) : ""},
               {"host", text_at(metrics, "/environment/host")},
               {"Slurm job", text_at(metrics, "/slurm/job_id")},
               {"model", text_at(metrics, "/versions/model")},
               {"model digest", text_at(metrics, "/versions/model_digest")},
               {"job hash", text_at(metrics, "/job/hash")},
               {"program", fmt::format("flotilla {} ({})", text_at(metrics, "/versions/flotilla"),
                                       text_at(metrics, "/versions/commit"))}});
}

std::string steps(const json& metrics) {
  std::string body;
  for (const char* stage : {"stage_1", "stage_2"}) {
    const json::json_pointer place(fmt::format("/steps/{}", stage));
    if (!metrics.contains(place)) continue;
    const json& values = metrics.at(place);
    const std::string chart = html::step_chart(values);
    if (chart.empty()) continue;
    double sum = 0;
    for (const auto& value : values) sum += value.is_number() ? value.get<double>() : 0;
    body += fmt::format("<p>{}: {} steps in {}, {:.3f} s each</p>{}", stage, values.size(),
                        human_duration(sum), sum / static_cast<double>(values.size()), chart);
  }
  return body;
}

std::string exchange(const json& metrics) {
  const auto bytes = number_at(metrics, "/exchange/bytes");
  const auto seconds = number_at(metrics, "/exchange/seconds");
  if (!bytes || !seconds) return "";
  if (*bytes <= 0) return "<p>No exchange between ranks.</p>";
  const double stages = number_at(metrics, "/phases/stage_1_s").value_or(0) +
                        number_at(metrics, "/phases/stage_2_s").value_or(0);
  std::string text = fmt::format("<p>{} in {}", human_bytes(*bytes), human_duration(*seconds));
  if (stages > 0) text += fmt::format(", {:.1f} % of both stages", 100 * *seconds / stages);
  if (const auto padding = number_at(metrics, "/padding_fraction"))
    text += fmt::format("; {:.1f} % of the tokens are padding", 100 * *padding);
  return text + ".</p>";
}

std::string bytes_cell(const json& memory, const char* kind) {
  double most = -1;
  if (memory.contains(kind) && memory.at(kind).is_array()) {
    for (const auto& value : memory.at(kind))
      if (value.is_number()) most = std::max(most, value.get<double>());
  }
  return most < 0 ? "<td></td>" : fmt::format("<td class=\"number\">{}</td>", human_bytes(most));
}

// Seconds and memory of each phase; of the slowest and of the largest rank.
std::string phases(const json& metrics) {
  if (!metrics.contains("phases") || !metrics.at("phases").is_object()) return "";
  std::string body =
      "<table><tr><th>phase</th><th>seconds</th><th>host memory</th><th>GPU memory</th></tr>";
  for (const auto& [key, seconds] : metrics.at("phases").items()) {
    if (!seconds.is_number()) continue;
    const std::string name = key.ends_with("_s") ? key.substr(0, key.size() - 2) : key;
    const json memory = metrics.value("phases_memory", json::object()).is_object()
                            ? metrics.value("phases_memory", json::object()).value(name, json())
                            : json();
    const json own = memory.is_object() ? memory : json::object();
    body += fmt::format("<tr><td>{}</td><td class=\"number\">{:.3f}</td>{}{}</tr>", escape(name),
                        seconds.get<double>(), bytes_cell(own, "host_bytes"),
                        bytes_cell(own, "device_bytes"));
  }
  const auto peak = [&](const char* name) {
    const auto bytes = number_at(metrics, name);
    return bytes ? human_bytes(*bytes) : std::string();
  };
  return body + fmt::format(
                    "<tr><th>most</th><td></td><td class=\"number\">{}</td><td "
                    "class=\"number\">{}</td></tr></table>",
                    peak("/peak_host_bytes"), peak("/peak_device_bytes"));
}

std::string details(std::string_view title, const std::string& text) {
  if (text.empty()) return "";
  return fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", title,
                     escape(text));
}

std::string block(const json& metrics, const char* name) {
  return metrics.contains(name) && !metrics.at(name).is_null() ? metrics.at(name).dump(2) : "";
}

// Where the run wrote it, or beside the metrics when the folder has moved.
fs::path find_output(const fs::path& written, const fs::path& metrics) {
  std::error_code code;
  if (written.empty() || fs::exists(written, code)) return written;
  const fs::path beside = metrics.parent_path() / written.filename();
  return fs::exists(beside, code) ? beside : written;
}

// Nothing for a job of another version.
std::optional<config::Job> job_of(const json& metrics) {
  try {
    return config::load_job_text(text_at(metrics, "/job/yaml"), "job.yaml", "/").job;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string run_page(const json& metrics, const fs::path& path, html::Files& files) {
  const auto job = job_of(metrics);
  const std::string prompt = job ? job->prompt : "";
  std::string body = fmt::format("<h1>{}</h1>\n", escape(prompt.empty() ? "run" : prompt));
  if (job) body += html::clip(files, find_output(job->output.path, path));
  body += section("Settings", settings(metrics));
  if (job && !job->output.contact_sheet.empty()) {
    const std::string url = files.url(find_output(job->output.contact_sheet, path), "image/png");
    if (!url.empty())
      body += section("Frames", fmt::format("<img src=\"{}\" alt=\"frames side by side\"/>", url));
  }
  body += section("Timeline", metrics.contains("timeline")
                                  ? html::timeline_chart(metrics.at("timeline"))
                                  : std::string());
  body += section("Steps", steps(metrics));
  body += section("Exchange", exchange(metrics));
  body += section("Phases and memory", phases(metrics));
  body += section("More", details("job in force", text_at(metrics, "/job/yaml")) +
                              details("versions", block(metrics, "versions")) +
                              details("devices", block(metrics, "devices")) +
                              details("environment", block(metrics, "environment")) +
                              details("latents", block(metrics, "latents")));
  return html::page(prompt.empty() ? "flotilla run" : excerpt(prompt, 60), body);
}

}  // namespace flotilla::app
