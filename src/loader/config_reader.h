// Reads model configurations (JSON in checkpoint metadata) strictly: a value of the wrong type, or
// one that this program does not implement, is an error that names it. Unknown entries are told by
// the model's own code only where they would change the result.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::loader {

class ConfigReader {
 public:
  // `where` names the source in messages, e.g. "ltx.safetensors: config.transformer". `object` must
  // outlive the reader. Errors (ErrorKind::input): not a JSON object.
  ConfigReader(const nlohmann::json& object, std::string where);

  bool has(const std::string& key) const;
  // A nested object. Errors: absent or not an object.
  ConfigReader object(const std::string& key) const;
  const nlohmann::json& raw(const std::string& key) const { return object_->at(key); }
  const nlohmann::json& json() const { return *object_; }
  const std::string& where() const { return where_; }

  // The value of `key`; the overload with a default takes an absent or null entry for it.
  template <typename T>
  T get(const std::string& key) const;
  template <typename T>
  T get(const std::string& key, T otherwise) const {
    return has(key) ? get<T>(key) : std::move(otherwise);
  }
  // Refuses every value of `key` but those listed; absent counts as fine. `T` must be comparable.
  template <typename T>
  void require(const std::string& key, std::initializer_list<T> implemented) const;

  [[noreturn]] void fail_value(const std::string& key, const std::string& rule) const;

 private:
  const nlohmann::json* object_;
  std::string where_;
};

template <typename T>
T ConfigReader::get(const std::string& key) const {
  if (!has(key)) fail(ErrorKind::input, fmt::format("{}: \"{}\" is missing", where_, key));
  const auto& value = object_->at(key);
  bool fits = true;
  if constexpr (std::is_same_v<T, bool>) {
    fits = value.is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    fits = value.is_number_integer();
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = value.is_number();
  } else if constexpr (std::is_same_v<T, std::string>) {
    fits = value.is_string();
  }
  if (!fits) fail_value(key, "has the wrong type");
  try {
    return value.template get<T>();
  } catch (const nlohmann::json::exception&) {
    fail_value(key, "has the wrong type");
  }
}

template <typename T>
void ConfigReader::require(const std::string& key, std::initializer_list<T> implemented) const {
  if (!has(key)) return;
  const T value = get<T>(key);
  for (const T& known : implemented) {
    if (value == known) return;
  }
  fail_value(key, fmt::format("is not implemented; implemented: {}",
                              nlohmann::json(std::vector<T>(implemented)).dump()));
}

}  // namespace flotilla::loader
