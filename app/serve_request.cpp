#include "app/serve_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::app {
namespace {

using nlohmann::json;
using Op = ServeRequest::Op;

constexpr std::array<std::pair<const char*, Op>, 4> kOps = {{{"submit", Op::submit},
                                                             {"status", Op::status},
                                                             {"cancel", Op::cancel},
                                                             {"shutdown", Op::shutdown}}};

[[noreturn]] void refuse(const std::string& text) { fail(ErrorKind::usage, text); }

json parse_object(std::string_view line) {
  std::set<std::string> keys;  // of the object itself; the parser keeps the last of two alike
  const auto note_key = [&](int depth, json::parse_event_t event, const json& parsed) {
    if (event != json::parse_event_t::key || depth != 1) return true;
    const auto& key = parsed.get_ref<const std::string&>();
    if (!keys.insert(key).second) refuse(fmt::format("\"{}\" twice in a request", excerpt(key)));
    return true;
  };
  json object = json::parse(line, note_key, /*allow_exceptions=*/false);
  if (object.is_discarded())
    refuse(fmt::format("a request is a JSON object in one line, not \"{}\"", excerpt(line)));
  if (!object.is_object())
    refuse(fmt::format("a request is a JSON object, not a {}", object.type_name()));
  return object;
}

Op op_of(const json& object) {
  const auto found = object.find("op");
  if (found == object.end() || !found->is_string())
    refuse("a request needs \"op\": submit, status, cancel or shutdown");
  const auto& name = found->get_ref<const std::string&>();
  for (const auto& [known, op] : kOps)
    if (name == known) return op;
  refuse(fmt::format("unknown op \"{}\": there are submit, status, cancel and shutdown",
                     excerpt(name)));
}

void check_keys(const json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (key == "op" || std::find(known.begin(), known.end(), key) != known.end()) continue;
    refuse(fmt::format("unknown key \"{}\" of a request {}", excerpt(key),
                       object["op"].get_ref<const std::string&>()));
  }
}

std::string text_at(const json& object, const char* key) {
  const json& value = object.at(key);
  if (!value.is_string()) refuse(fmt::format("{} is a {}, not a text", key, value.type_name()));
  return value.get<std::string>();
}

// A whole number from 1. Errors: `rule`.
int64_t count_at(const json& object, const char* key, const char* rule) {
  const json& value = object.at(key);
  if (!value.is_number_integer() || value.get<int64_t>() < 1) refuse(rule);
  return value.get<int64_t>();
}

void read_submit(const json& object, ServeRequest& request) {
  check_keys(object, {"job_yaml", "base_folder", "preview_every"});
  if (!object.contains("job_yaml")) refuse("submit needs \"job_yaml\", the text of a job file");
  request.job_yaml = text_at(object, "job_yaml");
  if (object.contains("preview_every")) {
    request.preview_every =
        count_at(object, "preview_every",
                 "\"preview_every\" of submit is a whole number of steps, 1 or more (2: a picture "
                 "after every second step); leave it away for no pictures");
  }
  if (!object.contains("base_folder")) return;
  request.base_folder = text_at(object, "base_folder");
  if (!std::filesystem::path(request.base_folder).is_absolute())
    refuse(fmt::format("base_folder \"{}\" must be absolute", excerpt(request.base_folder)));
}

void read_cancel(const json& object, ServeRequest& request) {
  check_keys(object, {"job"});
  if (!object.contains("job")) return;
  request.job = count_at(object, "job", "\"job\" of cancel is the number of a job, from 1");
}

bool ends_document(std::string_view line) {
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
  return line == "---" || line == "...";
}

bool is_blank(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t\r");
  return first == std::string_view::npos || line[first] == '#';
}

}  // namespace

ServeRequest parse_request(std::string_view line) {
  const json object = parse_object(line);
  ServeRequest request;
  request.op = op_of(object);
  switch (request.op) {
    case Op::submit:
      read_submit(object, request);
      break;
    case Op::cancel:
      read_cancel(object, request);
      break;
    case Op::status:
    case Op::shutdown:
      check_keys(object, {});
      break;
  }
  return request;
}

std::optional<std::string> LineReader::next() {
  const size_t end = bytes_.find('\n', std::max(begin_, scanned_));
  if (end == std::string::npos) {
    bytes_.erase(0, begin_);
    begin_ = 0;
    scanned_ = bytes_.size();
    return std::nullopt;
  }
  std::string line = bytes_.substr(begin_, end - begin_);
  begin_ = end + 1;
  return line;
}

std::string LineReader::take_rest() {
  std::string rest = bytes_.substr(begin_);
  *this = LineReader();
  return rest;
}

std::optional<ServeRequest> JobListReader::add(const std::string& line) {
  if (!has_content_ && line.starts_with('{')) {
    document_.clear();
    return parse_request(line);
  }
  if (ends_document(line)) return finish();
  if (document_.size() + line.size() > kMostRequestBytes) {
    document_.clear();
    refuse(fmt::format("a job of more than {}: is a line \"---\" missing?",
                       human_bytes(static_cast<double>(kMostRequestBytes))));
  }
  has_content_ = has_content_ || !is_blank(line);
  document_ += line + '\n';
  return std::nullopt;
}

std::optional<ServeRequest> JobListReader::finish() {
  std::string document = std::exchange(document_, "");
  if (!std::exchange(has_content_, false)) return std::nullopt;
  ServeRequest request;
  request.op = Op::submit;
  request.job_yaml = std::move(document);
  request.base_folder = base_folder_;
  return request;
}

}  // namespace flotilla::app
