#include "fleet/message.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::fleet {
namespace {

using nlohmann::json;

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};
constexpr std::array<DtypeName, 12> kDtypes = {{{at::kFloat, "float32"},
                                                {at::kDouble, "float64"},
                                                {at::kHalf, "float16"},
                                                {at::kBFloat16, "bfloat16"},
                                                {at::kFloat8_e4m3fn, "float8_e4m3fn"},
                                                {at::kFloat8_e5m2, "float8_e5m2"},
                                                {at::kByte, "uint8"},
                                                {at::kChar, "int8"},
                                                {at::kShort, "int16"},
                                                {at::kInt, "int32"},
                                                {at::kLong, "int64"},
                                                {at::kBool, "bool"}}};

[[noreturn]] void fail_head(const std::string& what) {
  fail(ErrorKind::communication, fmt::format("a message of a fleet: {}", what));
}

at::ScalarType dtype_of(const std::string& name) {
  for (const auto& entry : kDtypes) {
    if (name == entry.name) return entry.dtype;
  }
  fail_head(fmt::format("unknown dtype \"{}\"", excerpt(name)));
}

// Nothing: negative, or beyond int64.
std::optional<int64_t> product(std::optional<int64_t> a, int64_t b) {
  int64_t result = 0;
  if (!a || b < 0 || __builtin_mul_overflow(*a, b, &result)) return std::nullopt;
  return result;
}

TensorEntry read_entry(const json& entry) {
  TensorEntry read;
  read.name = entry.at("name").get<std::string>();
  read.dtype = dtype_of(entry.at("dtype").get<std::string>());
  for (const json& size : entry.at("shape")) read.shape.push_back(integer_of(size));
  std::optional<int64_t> bytes = static_cast<int64_t>(c10::elementSize(read.dtype));
  for (const int64_t size : read.shape) bytes = product(bytes, size);
  if (!bytes) {
    fail_head(fmt::format("tensor \"{}\" has an impossible shape {}", excerpt(read.name),
                          shape_text(read.shape)));
  }
  read.bytes = *bytes;
  return read;
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& entry : kDtypes) {
    if (dtype == entry.dtype) return entry.name;
  }
  return "";
}

int64_t integer_of(const nlohmann::json& value) {
  if (!value.is_number_integer()) fail_head("an integer is expected");
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fail_head("a number is too large");
  return value.get<int64_t>();
}

std::string pack_head(const Message& message) {
  json head = {{"body", message.body}, {"tensors", json::array()}};
  for (const auto& [name, tensor] : message.tensors) {
    head["tensors"].push_back({{"name", name},
                               {"dtype", dtype_name(tensor.scalar_type())},
                               {"shape", tensor.sizes().vec()}});
  }
  // Texts of others (file names, messages of exceptions) need not be UTF-8.
  return head.dump(-1, ' ', false, json::error_handler_t::replace);
}

MessageHead unpack_head(const std::string& text, int64_t tensor_bytes) {
  MessageHead head;
  try {
    json parsed = json::parse(text);
    for (const json& entry : parsed.at("tensors")) head.entries.push_back(read_entry(entry));
    head.body = std::move(parsed.at("body"));
  } catch (const json::exception& error) {
    fail_head(error.what());
  }
  int64_t left = tensor_bytes;
  for (const TensorEntry& entry : head.entries) {
    if (entry.bytes > left) fail_head("its tensors are larger than was announced");
    left -= entry.bytes;
  }
  if (left != 0) fail_head("its tensors are smaller than was announced");
  return head;
}

void require_utf8(const json& body) {
  try {
    (void)body.dump();
  } catch (const json::exception&) {
    fail(ErrorKind::config, "a job has text that is not UTF-8");
  }
}

Message owned_copy(const Message& message) {
  Message copy(message.body);
  for (const auto& [name, tensor] : message.tensors) {
    if (!tensor.defined() || dtype_name(tensor.scalar_type()).empty() ||
        tensor.layout() != at::kStrided) {
      fail(ErrorKind::config,
           fmt::format("tensor \"{}\" of a message: {}", excerpt(name),
                       tensor.defined() ? "its dtype or layout does not pass" : "undefined"));
    }
    at::Tensor own =
        at::empty(tensor.sizes(),
                  tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
    own.copy_(tensor);
    copy.tensors.emplace(name, std::move(own));
  }
  return copy;
}

}  // namespace flotilla::fleet
