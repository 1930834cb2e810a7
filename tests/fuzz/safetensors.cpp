// Headers of safetensors files. Of the bytes behind the header only their number counts.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "fuzz/fuzz_target.h"
#include "fuzz/scratch_file.h"
#include "loader/safetensors.h"

namespace flotilla::fuzz {
namespace {

constexpr size_t kPrefixBytes = 8;
constexpr size_t kDataBytes = 64;  // of each good input

Bytes file_of(std::string_view header) {
  Bytes bytes(kPrefixBytes + header.size() + kDataBytes);
  for (size_t i = 0; i < kPrefixBytes; ++i) bytes[i] = header.size() >> (8 * i) & 0xff;
  std::copy(header.begin(), header.end(), bytes.begin() + kPrefixBytes);
  return bytes;
}

}  // namespace

std::vector<Bytes> good_inputs() {
  return {
      file_of(R"({"__metadata__":{"format":"pt","config":"{\"a\": [1, 2]}"},)"
              R"("model.weight":{"dtype":"BF16","shape":[4,6],"data_offsets":[0,48]},)"
              R"("model.bias":{"dtype":"F32","shape":[4],"data_offsets":[48,64]}})"),
      file_of(R"({"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
              R"("b":{"dtype":"F8_E4M3","shape":[2,3,1],"data_offsets":[8,14]},)"
              R"("c":{"dtype":"I16","shape":[0,7],"data_offsets":[14,14]},)"
              R"("d":{"dtype":"U8","shape":[2],"data_offsets":[14,16]},)"
              R"("e":{"dtype":"I64","shape":[6],"data_offsets":[16,64]}}  )"),
  };
}

std::vector<std::string> words() {
  std::vector<std::string> words = {"{",
                                    "}",
                                    "[",
                                    "]",
                                    ",",
                                    ":",
                                    "\"",
                                    "\\u0000",
                                    "\\",
                                    "\xff",
                                    "null",
                                    "true",
                                    "1e999",
                                    "-1",
                                    "\"\"",
                                    "__metadata__",
                                    "[[[[",
                                    "{\"a\":",
                                    "\"dtype\":",
                                    "\"shape\":",
                                    "\"data_offsets\":",
                                    "version https://git-lfs"};
  for (const char* dtype : {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL",
                            "F8_E4M3", "F8_E5M2", "C64"})
    words.push_back(fmt::format("\"{}\"", dtype));
  return words;
}

// The prefix says where the last brace is, and the data behind it have their size again.
void repair(Bytes& input, Random& random) {
  if (input.size() < kPrefixBytes || !chance(random, 80)) return;
  const auto brace = std::find(input.rbegin(), input.rend() - kPrefixBytes, '}');
  const auto length = static_cast<size_t>(input.rend() - kPrefixBytes - brace);
  for (size_t i = 0; i < kPrefixBytes; ++i) input[i] = length >> (8 * i) & 0xff;
  if (chance(random, 80)) input.resize(kPrefixBytes + length + kDataBytes);
}

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  const fuzz::ScratchFile file({data, size});
  return fuzz::outcome_of([&] {
    const auto header = loader::read_safetensors_header(file.path());
    for (const auto& [name, tensor] : header.tensors) {
      check_internal(tensor.begin >= header.header_bytes && tensor.end <= header.file_bytes &&
                         tensor.numel() * static_cast<int64_t>(c10::elementSize(tensor.dtype)) ==
                             tensor.bytes(),
                     "a tensor lies in its file");
    }
  });
}
