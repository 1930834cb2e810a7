#include "config/writer.h"

#include <fmt/format.h>

#include <utility>

#include "config/keys.h"

namespace flotilla::config {
namespace {

// Visitor of the table of keys.
class Writer {
 public:
  Writer(std::string& out, Pipeline pipeline, int indent)
      : out_(out), pipeline_(pipeline), indent_(indent) {}

  template <typename T>
  void key(const char* name, const T& value, const Rule& rule) {
    if (!is_used(rule)) return;
    const std::string text = value_text(value, rule);
    line(fmt::format("{}:{}{}", name, text.empty() ? "" : " ", text));
  }

  template <typename T>
  void section(const char* name, T& target, const Rule& rule) {
    if (!is_used(rule)) return;
    line(fmt::format("{}:", name));
    Writer inner(out_, pipeline_, indent_ + 2);
    visit_keys(inner, target);
  }

  template <typename T>
  void list(const char* name, std::vector<T>& targets, const Rule& rule) {
    if (!is_used(rule)) return;
    line(fmt::format("{}:{}", name, targets.empty() ? " []" : ""));
    for (T& target : targets) {
      const size_t start = out_.size();
      Writer inner(out_, pipeline_, indent_ + 4);
      visit_keys(inner, target);
      out_[start + static_cast<size_t>(indent_) + 2] = '-';  // in front of the element's first key
    }
  }

  template <typename E, typename T>
  void mode_or_section(const char* name, E mode, E manual, T& target, const Rule& rule) {
    if (mode == manual) {
      section(name, target, rule);
    } else {
      key(name, mode, rule);
    }
  }

 private:
  bool is_used(const Rule& rule) const { return !rule.only || rule.only == pipeline_; }
  void line(const std::string& text) {
    out_ += std::string(static_cast<size_t>(indent_), ' ') + text + '\n';
  }

  std::string& out_;
  Pipeline pipeline_;
  int indent_;
};

// Visitor of the table of keys.
class Flattener {
 public:
  using Values = std::vector<std::pair<std::string, std::string>>;
  Flattener(Values& out, Pipeline pipeline, std::string prefix)
      : out_(out), pipeline_(pipeline), prefix_(std::move(prefix)) {}

  template <typename T>
  void key(const char* name, const T& value, const Rule& rule) {
    if (is_used(rule)) out_.emplace_back(prefix_ + name, value_text(value, rule));
  }

  template <typename T>
  void section(const char* name, T& target, const Rule& rule) {
    if (is_used(rule)) flatten(prefix_ + name + ".", target);
  }

  template <typename T>
  void list(const char* name, std::vector<T>& targets, const Rule& rule) {
    if (!is_used(rule)) return;
    for (size_t i = 0; i < targets.size(); ++i)
      flatten(fmt::format("{}{}[{}].", prefix_, name, i), targets[i]);
  }

  template <typename E, typename T>
  void mode_or_section(const char* name, E mode, E manual, T& target, const Rule& rule) {
    if (mode == manual) {
      section(name, target, rule);
    } else {
      key(name, mode, rule);
    }
  }

 private:
  bool is_used(const Rule& rule) const { return !rule.only || rule.only == pipeline_; }
  template <typename T>
  void flatten(std::string prefix, T& target) {
    Flattener inner(out_, pipeline_, std::move(prefix));
    visit_keys(inner, target);
  }

  Values& out_;
  Pipeline pipeline_;
  std::string prefix_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> dotted_values(const Job& job) {
  Job copy = job;  // as in to_yaml()
  Flattener::Values values;
  Flattener flattener(values, job.pipeline, "");
  visit_keys(flattener, copy);
  return values;
}

std::string to_yaml(const Job& job) {
  Job copy = job;  // the table of keys is made for members that can change
  std::string out;
  Writer writer(out, job.pipeline, 0);
  visit_keys(writer, copy);
  return out;
}

}  // namespace flotilla::config
