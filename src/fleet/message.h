// What passes between a program and its fleet: a JSON object and tensors by name. Tensors pass as
// their bytes, so what arrives is what was sent, whatever the dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace flotilla::fleet {

struct Message {
  Message() = default;
  Message(nlohmann::json json) : body(std::move(json)) {}  // a body alone is a message

  nlohmann::json body = nlohmann::json::object();
  // Any device and layout; they arrive on the CPU, contiguous. Dtypes: see dtype_name().
  std::map<std::string, at::Tensor> tensors;
};

// "float32", "bfloat16", ...; "" for one that does not pass (quantised, complex).
std::string dtype_name(at::ScalarType dtype);

// What a tensor will need before there is memory for it.
struct TensorEntry {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Float;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// The part of a message in front of its tensors' bytes: body and entries, as text.
std::string pack_head(const Message& message);
struct MessageHead {
  nlohmann::json body;
  std::vector<TensorEntry> entries;
};
// Errors (ErrorKind::communication): no such text, an unknown dtype, a size that is negative or
// too large, or entries whose bytes do not add up to `tensor_bytes`.
MessageHead unpack_head(const std::string& text, int64_t tensor_bytes);

// get<int64_t>() turns any number into some integer. Errors (ErrorKind::communication): not an
// integer, or one that does not fit.
int64_t integer_of(const nlohmann::json& value);

// Errors (ErrorKind::config): a text in `body` is not UTF-8, so it would arrive as another one.
void require_utf8(const nlohmann::json& body);

// A copy of its own of each tensor, on the CPU and contiguous. Errors (ErrorKind::config): an
// undefined tensor, or one of a dtype that does not pass.
Message owned_copy(const Message& message);

}  // namespace flotilla::fleet
