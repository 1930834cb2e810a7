#include "config/usage.h"

#include <fmt/format.h>

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
class UsageChecker {
 public:
  UsageChecker(Pipeline pipeline, std::string prefix, const Origins& origins, Problems& problems)
      : pipeline_(pipeline), prefix_(std::move(prefix)), origins_(origins), problems_(problems) {}

  template <typename T>
  void key(const char* name, const T& value, const Rule& rule) {
    const std::string key = dotted(name);
    if (!check_used(key, rule)) return;
    const bool is_missing = rule.required && is_empty_value(value) && !origins_.given(key);
    if (is_missing && !problems_.concerns(key)) {
      problems_.add(origins_.place(key), key,
                    fmt::format("is missing; expected {} ({})", type_text(value, rule), rule.doc));
    }
  }

  template <typename T>
  void section(const char* name, T& target, const Rule& rule) {
    if (check_used(dotted(name), rule)) visit(dotted(name), target);
  }

  template <typename T>
  void list(const char* name, std::vector<T>& targets, const Rule& rule) {
    if (!check_used(dotted(name), rule)) return;
    for (size_t i = 0; i < targets.size(); ++i) {
      visit(fmt::format("{}[{}]", dotted(name), i), targets[i]);
    }
  }

  template <typename E, typename T>
  void mode_or_section(const char* name, E mode, E manual, T& target, const Rule& rule) {
    if (check_used(dotted(name), rule) && mode == manual) visit(dotted(name), target);
  }

 private:
  std::string dotted(const std::string& name) const {
    return prefix_.empty() ? name : prefix_ + "." + name;
  }

  template <typename T>
  void visit(const std::string& prefix, T& target) {
    UsageChecker inner(pipeline_, prefix, origins_, problems_);
    visit_keys(inner, target);
  }

  bool check_used(const std::string& key, const Rule& rule) {
    if (!rule.only || *rule.only == pipeline_) return true;
    if (origins_.given(key) && !problems_.concerns("pipeline")) {
      problems_.add(origins_.place(key), key,
                    fmt::format("has no effect with pipeline: {}; remove it, or choose "
                                "pipeline: {}",
                                to_string(pipeline_), to_string(*rule.only)));
    }
    return false;
  }

  Pipeline pipeline_;
  std::string prefix_;
  const Origins& origins_;
  Problems& problems_;
};

}  // namespace

void check_usage(const Job& job, const Origins& origins, Problems& problems) {
  Job copy = job;  // the table of keys is made for members that can change
  UsageChecker checker(job.pipeline, "", origins, problems);
  visit_keys(checker, copy);
}

}  // namespace flotilla::config
