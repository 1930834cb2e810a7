#include "loader/config_reader.h"

namespace flotilla::loader {

ConfigReader::ConfigReader(const nlohmann::json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) fail(ErrorKind::input, fmt::format("{} is not a JSON object", where_));
}

bool ConfigReader::has(const std::string& key) const {
  const auto at = object_->find(key);
  return at != object_->end() && !at->is_null();
}

ConfigReader ConfigReader::object(const std::string& key) const {
  if (!has(key)) fail(ErrorKind::input, fmt::format("{}: \"{}\" is missing", where_, key));
  return ConfigReader(object_->at(key), where_ + "." + key);
}

void ConfigReader::fail_value(const std::string& key, const std::string& rule) const {
  // An absent value can be at fault too, through its default.
  const std::string found = object_->contains(key) ? excerpt(object_->at(key).dump()) : "(absent)";
  fail(ErrorKind::input, fmt::format("{}: \"{}\": {} {}", where_, key, found, rule));
}

}  // namespace flotilla::loader
