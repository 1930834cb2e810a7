// What a server is asked, in pieces of any size: lines of JSON from its socket, and the same bytes
// as a list of jobs.
#include "app/serve_request.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "fuzz/fuzz_target.h"

namespace flotilla::fuzz {
namespace {

using app::ServeRequest;

Bytes bytes_of(std::string_view text) { return Bytes(text.begin(), text.end()); }

// What both ways of asking have in common: the number of requests, and answers to what is none.
class Requests {
 public:
  template <typename Read>
  void count(Read&& read) {
    try {
      const std::optional<ServeRequest> request = std::forward<Read>(read)();
      if (!request) return;
      check_request(*request);
      ++count_;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      check_internal(error.kind() == ErrorKind::usage, "a wrong request is an error of its caller");
      check_internal(is_valid_utf8(error.what()), "an answer is text");
      refusal_ = error.what();
    }
  }
  bool none() const { return count_ == 0; }
  const std::string& refusal() const { return refusal_; }

 private:
  static void check_request(const ServeRequest& request) {
    check_internal(std::filesystem::path(request.base_folder).is_absolute(),
                   "the folder of a job is absolute");
    check_internal(!request.job || *request.job >= 1, "jobs count from 1");
  }

  size_t count_ = 0;
  std::string refusal_ = "no request";
};

}  // namespace

std::vector<Bytes> good_inputs() {
  const std::string submit =
      R"({"op": "submit", "job_yaml": "prompt: a f\u00f6x\nseed: 10\n", "base_folder": "/data"})"
      "\n";
  return {bytes_of(submit),
          bytes_of("{\"op\": \"status\"}\r\n{\"op\":\"cancel\"}\n" + submit +
                   "\n{\"op\": \"cancel\", \"job\": 3}\n{\"op\": \"shutdown\"}"),
          bytes_of("# two jobs\nprompt: a fox\nseed: 10\n---\n\n" + submit +
                   "prompt: a cat\nvideo: {width: 512}\n...\r\n{\"op\": \"status\"}\n---\n---\n"
                   "prompt: a dog")};
}

std::vector<std::string> words() {
  return {"\n",
          "\r\n",
          "\n\n",
          "---\n",
          "...\n",
          "# ",
          "{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"",
          "\\",
          "[[[[",
          "{\"a\":",
          "\"op\":",
          "\"submit\"",
          "\"status\"",
          "\"cancel\"",
          "\"shutdown\"",
          "\"job\":",
          "\"job\": 1",
          "\"job_yaml\":",
          "\"/data\"",
          "null",
          "true",
          "1e999",
          "-1",
          "1.0",
          "\"\\ud800\"",
          "\\u0000",
          "\xff",
          "\xef\xbb\xbf",
          "18446744073709551615",
          "\"base_folder\":"};
}

// Lines have neither lengths nor checksums.
void repair(Bytes&, Random&) {}

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  return fuzz::outcome_of([&] {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const size_t step = size == 0 ? 1 : 1 + size_t{data[size - 1]} * 16;
    app::LineReader reader;
    app::JobListReader list("/jobs");
    fuzz::Requests requests;
    std::string seen;
    const auto take = [&](const std::string& line) {
      requests.count([&] { return std::optional(app::parse_request(line)); });
      requests.count([&] { return list.add(line); });
      seen += line;
    };
    for (size_t at = 0; at < size; at += step) {
      reader.add(bytes.substr(at, step));
      while (const auto line = reader.next()) {
        take(*line);
        seen += '\n';
      }
    }
    take(reader.take_rest());
    requests.count([&] { return list.finish(); });
    check_internal(seen == bytes, "lines hold what came, in its order");
    if (requests.none()) fail(ErrorKind::usage, requests.refusal());
  });
}
