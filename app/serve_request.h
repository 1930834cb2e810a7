// What a server is asked: a JSON object a line over its socket, or a list of jobs (--jobs), which
// may also be YAML documents. Strict, and safe for whatever arrives. Format:
// docs/commands/serve.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla::app {

// Of a line or a document.
inline constexpr size_t kMostRequestBytes = size_t{1} << 20;

struct ServeRequest {
  enum class Op { submit, status, cancel, shutdown };
  Op op = Op::status;
  // Of submit: a job as YAML, and the absolute folder that its relative paths count from.
  std::string job_yaml;
  std::string base_folder = "/";
  int64_t preview_every = 0;   // steps; 0: no previews
  std::optional<int64_t> job;  // of cancel: only the job of this number
};

// Errors (ErrorKind::usage): what is wrong with it.
ServeRequest parse_request(std::string_view line);

// Cuts a stream of bytes into lines; holds no more than one request of them.
class LineReader {
 public:
  void add(std::string_view bytes) { bytes_ += bytes; }
  // The next whole line, without its end; nothing: none is whole yet.
  std::optional<std::string> next();
  // What came after the last whole line.
  std::string take_rest();
  // The line that has begun is longer than any request.
  bool is_too_long() const { return bytes_.size() - begin_ > kMostRequestBytes; }

 private:
  std::string bytes_;
  size_t begin_ = 0;    // of what is left
  size_t scanned_ = 0;  // up to here there is no end of a line
};

// The lines of a list of jobs as requests: a line that begins with "{" is a request, others are
// YAML documents, a job each, between lines "---".
class JobListReader {
 public:
  // `base_folder`: of jobs in YAML.
  explicit JobListReader(std::string base_folder) : base_folder_(std::move(base_folder)) {}

  // The request that this line completes. Errors: those of parse_request(); a document that is
  // longer than kMostRequestBytes.
  std::optional<ServeRequest> add(const std::string& line);
  // The last document.
  std::optional<ServeRequest> finish();

 private:
  std::string base_folder_;
  std::string document_;
  bool has_content_ = false;  // more than empty lines and comments
};

}  // namespace flotilla::app
