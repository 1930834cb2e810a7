#include "config/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "config/describe.h"
#include "config/keys.h"

namespace flotilla::config {
namespace {

// Keys that people bring along from other tools, and what to tell them.
constexpr auto kForeignKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"hdr", "HDR is not built"},
    {"auto_duration", "automatic duration is not built; give video.num_frames"},
    {"generated_keyframes", "generated keyframes are not built"},
    {"num_generated_keyframes", "generated keyframes are not built"},
    {"nvfp4", "NVFP4 weights are not built"},
    {"dtype", "it is called precision"},
    {"quantization", "it is called precision"},
    {"fps", "it is called video.frame_rate"},
    {"frames", "it is called video.num_frames"},
    {"num_inference_steps", "it is called stage_1.steps"},
    {"lora", "it is called models.loras"},
    {"image", "it is called images"},
    {"job", "this looks like a sweep; run it with flotilla sweep"},
    {"grid", "this looks like a sweep; run it with flotilla sweep"},
});

constexpr size_t kMaxElements = 64;  // images or LoRAs of one job

std::string unknown_key_text(const std::string& key, const std::vector<std::string>& siblings) {
  for (const auto& [foreign, reason] : kForeignKeys) {
    if (key == foreign) return fmt::format("unknown key; {}", reason);
  }
  if (auto hint = nearest_hint(key, siblings); !hint.empty()) return "unknown key" + hint;
  static const std::vector<KeyDoc> kAllKeys = describe_keys();
  for (const auto& doc : kAllKeys) {
    if (doc.key.ends_with("." + key)) {
      return fmt::format("unknown key here; did you mean \"{}\"?", doc.key);
    }
  }
  return fmt::format("unknown key; expected {}", alternatives(siblings));
}

// Visitor of the table of keys: one object for each map of the tree.
class Reader {
 public:
  Reader(const Node& map, std::string prefix, Origins& origins, Problems& problems)
      : map_(map), prefix_(std::move(prefix)), origins_(origins), problems_(problems) {}

  template <typename T>
  void key(const char* name, T& target, const Rule& rule) {
    if (const Node* node = take(name)) read(*node, name, target, rule);
  }

  template <typename T>
  void section(const char* name, T& target, const Rule&) {
    const Node* node = take(name);
    if (node == nullptr || node->kind == Node::Kind::null) return;
    if (check_kind(*node, Node::Kind::map, dotted(name), "a map")) {
      read_map(*node, dotted(name), target);
    }
  }

  template <typename T>
  void list(const char* name, std::vector<T>& target, const Rule&) {
    const Node* node = take(name);
    if (node == nullptr || node->kind == Node::Kind::null) return;
    if (!check_kind(*node, Node::Kind::sequence, dotted(name), "a list of maps")) return;
    if (node->items.size() > kMaxElements) {
      problems_.add(node->place, dotted(name),
                    fmt::format("found {} elements; at most {} are allowed", node->items.size(),
                                kMaxElements));
      return;
    }
    target.assign(node->items.size(), T{});
    for (size_t i = 0; i < target.size(); ++i) {
      const std::string key = fmt::format("{}[{}]", dotted(name), i);
      origins_.record(key, node->items[i].place);
      if (check_kind(node->items[i], Node::Kind::map, key, "a map")) {
        read_map(node->items[i], key, target[i]);
      }
    }
  }

  template <typename E, typename T>
  void mode_or_section(const char* name, E& mode, E manual, T& target, const Rule& rule) {
    const Node* node = take(name);
    if (node == nullptr) return;
    if (node->kind != Node::Kind::map) return read(*node, name, mode, rule);
    mode = manual;
    read_map(*node, dotted(name), target);
  }

  // Reports the keys that nobody took.
  void finish() {
    for (const auto& entry : map_.entries) {
      if (std::find(names_.begin(), names_.end(), entry.key) != names_.end()) continue;
      problems_.add(entry.key_place, dotted(excerpt(entry.key)),
                    unknown_key_text(entry.key, names_));
    }
  }

 private:
  std::string dotted(const std::string& name) const {
    return prefix_.empty() ? name : prefix_ + "." + name;
  }

  const Node* take(const char* name) {
    names_.emplace_back(name);
    for (const auto& entry : map_.entries) {
      if (entry.key != name) continue;
      origins_.record(dotted(name), entry.value.place);
      return &entry.value;
    }
    return nullptr;
  }

  template <typename T>
  void read(const Node& node, const char* name, T& target, const Rule& rule) {
    if (node.kind == Node::Kind::broken) return;
    if (auto complaint = read_value(node, rule, target)) {
      problems_.add(node.place, dotted(name), std::move(*complaint));
    }
  }

  bool check_kind(const Node& node, Node::Kind kind, const std::string& key,
                  std::string_view expected) {
    if (node.kind == kind) return true;
    if (node.kind != Node::Kind::broken) {
      problems_.add(node.place, key, fmt::format("{}; expected {}", found_text(node), expected));
    }
    return false;
  }

  template <typename T>
  void read_map(const Node& node, const std::string& key, T& target) {
    Reader inner(node, key, origins_, problems_);
    visit_keys(inner, target);
    inner.finish();
  }

  const Node& map_;
  std::string prefix_;
  Origins& origins_;
  Problems& problems_;
  std::vector<std::string> names_;
};

}  // namespace

Place Origins::place(std::string key) const {
  while (!key.empty()) {
    const auto found = places_.find(key);
    if (found != places_.end()) return found->second;
    const size_t cut = key.find_last_of(".[");
    key.resize(cut == std::string::npos ? 0 : cut);
  }
  return root_;
}

void read_job(const Node& tree, Job& job, Origins& origins, Problems& problems) {
  Reader reader(tree, "", origins, problems);
  visit_keys(reader, job);
  reader.finish();
}

}  // namespace flotilla::config
