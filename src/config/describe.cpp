#include "config/describe.h"

#include <utility>

#include "config/keys.h"

namespace flotilla::config {
namespace {

template <typename T>
bool is_empty_value(const T& value) {
  if constexpr (requires { value.empty(); }) {
    return value.empty();
  } else {
    return false;
  }
}

// Visitor of the table of keys.
class Describer {
 public:
  Describer(std::vector<KeyDoc>& docs, std::string prefix, std::optional<Pipeline> only)
      : docs_(docs), prefix_(std::move(prefix)), only_(only) {}

  template <typename T>
  void key(const std::string& name, const T& value, const Rule& rule) {
    std::string text = value_text(value, rule);
    if (rule.required && is_empty_value(value)) {
      text = "required";
    } else if (text.empty()) {
      text = "empty";
    }
    add(name, type_text(value, rule), std::move(text), rule);
  }

  template <typename T>
  void section(const std::string& name, T& target, const Rule& rule) {
    describe(dotted(name), target, rule);
  }

  template <typename T>
  void list(const std::string& name, const std::vector<T>&, const Rule& rule) {
    add(name, "list of maps", "[]", rule);
    T element{};
    describe(dotted(name) + "[]", element, rule);
  }

  template <typename E, typename T>
  void mode_or_section(const std::string& name, E mode, E, T& target, const Rule& rule) {
    add(name, type_text(mode, rule) + "; or a map", value_text(mode, rule), rule);
    describe(dotted(name), target, rule);
  }

 private:
  std::string dotted(const std::string& name) const {
    return prefix_.empty() ? name : prefix_ + "." + name;
  }
  std::optional<Pipeline> pipeline_of(const Rule& rule) const {
    return rule.only ? rule.only : only_;
  }

  void add(const std::string& name, std::string type, std::string text, const Rule& rule) {
    std::string meaning(rule.doc);
    if (const auto only = pipeline_of(rule)) {
      meaning += " (" + std::string(to_string(*only)) + " only)";
    }
    const std::string full = dotted(name);
    const size_t end = full.find_first_of(".[");
    const bool is_top = end == std::string::npos && type != "list of maps";
    docs_.push_back({is_top ? "job" : full.substr(0, end), full, std::move(type), std::move(text),
                     std::move(meaning)});
  }

  template <typename T>
  void describe(const std::string& prefix, T& target, const Rule& rule) {
    Describer inner(docs_, prefix, pipeline_of(rule));
    visit_keys(inner, target);
  }

  std::vector<KeyDoc>& docs_;
  std::string prefix_;
  std::optional<Pipeline> only_;
};

}  // namespace

std::vector<KeyDoc> describe_keys() {
  std::vector<KeyDoc> docs;
  Job defaults;
  Describer describer(docs, "", std::nullopt);
  visit_keys(describer, defaults);
  return docs;
}

}  // namespace flotilla::config
