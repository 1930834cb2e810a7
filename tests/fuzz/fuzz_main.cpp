// The driver of a fuzzer, for compilers that bring none: inputs from mutator.h until a number or a
// time is reached, or the files that are named. The first input that ends in anything but a result
// or an Error is written to a file, whichever way the process goes: an exception, a signal, a
// report of a sanitizer, too much memory, too much time. Leaks are reported at the end.
#include <fcntl.h>
#include <fmt/format.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/mutator.h"

// One allocation, and all of them: no file of 64 KiB may make a reader take more. Most of an
// input's time goes into malloc() and free(); stacks of two calls and a quarantine that holds a few
// inputs make them cheap (ASAN_OPTIONS=malloc_context_size=30 for more, with an input that was
// found).
extern "C" const char* __asan_default_options() {
  return "max_allocation_size_mb=1024:hard_rss_limit_mb=2560:quarantine_size_mb=4:"
         "thread_local_quarantine_size_kb=256:malloc_context_size=2:max_malloc_fill_size=0:"
         "handle_abort=1:detect_stack_use_after_return=0";
}
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }

namespace flotilla::fuzz {
namespace {

constexpr unsigned kMaxSecondsPerInput = 60;

struct Options {
  uint64_t inputs = std::numeric_limits<uint64_t>::max();
  double seconds = std::numeric_limits<double>::infinity();
  uint64_t seed = 1;
  std::vector<std::string> files;
};

// The input under way, for handlers.
struct Current {
  const Bytes* input = nullptr;
  uint64_t number = 0;
  char file[256] = {};
};
Current current;

// Only calls that are allowed in a signal's handler.
void write_current_input() {
  if (current.input == nullptr) return;
  const int fd = ::open(current.file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const bool written = fd >= 0 && ::write(fd, current.input->data(), current.input->size()) >= 0;
  char text[400];
  const int count = std::snprintf(text, sizeof(text), "fuzz: input %llu went wrong; %s %s\n",
                                  static_cast<unsigned long long>(current.number),
                                  written ? "it is in" : "cannot write", current.file);
  (void)!::write(STDERR_FILENO, text, static_cast<size_t>(count));
}

void on_alarm(int) {
  write_current_input();
  _exit(3);
}

int run_one(const Bytes& input) {
  try {
    current.input = &input;
    ::alarm(kMaxSecondsPerInput);
    const int result = LLVMFuzzerTestOneInput(input.data(), input.size());
    ::alarm(0);
    current.input = nullptr;
    return result;
  } catch (const std::exception& error) {
    fmt::print(stderr, "fuzz: {}\n", error.what());
  } catch (...) {
    fmt::print(stderr, "fuzz: an exception that is no std::exception\n");
  }
  write_current_input();
  _exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--")) {
      options.files.emplace_back(word);
    } else if (i + 1 == argc) {
      throw std::invalid_argument(fmt::format("{} needs a value", word));
    } else if (word == "--inputs") {
      options.inputs = std::stoull(argv[++i]);
    } else if (word == "--seconds") {
      options.seconds = std::stod(argv[++i]);
    } else if (word == "--seed") {
      options.seed = std::stoull(argv[++i]);
    } else {
      throw std::invalid_argument(fmt::format("unknown option {}", word));
    }
  }
  return options;
}

int run_files(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw std::runtime_error(fmt::format("\"{}\" cannot be read", file));
    const Bytes input{std::istreambuf_iterator<char>(in), {}};
    std::snprintf(current.file, sizeof(current.file), "%s.again", file.c_str());
    fmt::print("{}: {}\n", file, run_one(input) == 0 ? "read" : last_refusal);
  }
  return 0;
}

// Without these a fuzzer would pass that never gets behind the first check of its reader.
void check_good_inputs(const std::vector<Bytes>& good) {
  if (good.empty()) throw std::runtime_error("no good inputs");
  for (size_t i = 0; i < good.size(); ++i) {
    if (run_one(good[i]) != 0)
      throw std::runtime_error(fmt::format("good input {}: {}", i, last_refusal));
  }
}

int run_mutations(const Options& options, const std::string& name) {
  using Clock = std::chrono::steady_clock;
  const auto file = fmt::format("{}-{}.crash", name, options.seed);
  std::snprintf(current.file, sizeof(current.file), "%s", file.c_str());
  const std::vector<Bytes> good = good_inputs();
  check_good_inputs(good);
  Mutator mutator(good, words(), options.seed);
  uint64_t read = 0;
  double longest = 0;
  const auto start = Clock::now();
  const auto since = [](Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  for (; current.number < options.inputs && since(start) < options.seconds; ++current.number) {
    const Bytes input = mutator.next();
    const auto begin = Clock::now();
    if (run_one(input) == 0) {
      ++read;
      mutator.keep(input);
    }
    longest = std::max(longest, since(begin));
  }
  const double seconds = since(start);
  const auto count = static_cast<double>(current.number);
  fmt::print(
      "{}: {} inputs, seed {}, {:.1f} s, {:.0f} inputs/s, {:.1f} % read, longest {:.0f} ms\n", name,
      current.number, options.seed, seconds, count / seconds,
      100.0 * static_cast<double>(read) / count, longest * 1e3);
  std::fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace flotilla::fuzz

int main(int argc, char** argv) {
  using namespace flotilla;
  try {
    log::configure({.level = log::Level::off});
    __sanitizer_set_death_callback(fuzz::write_current_input);
    std::signal(SIGALRM, fuzz::on_alarm);
    const fuzz::Options options = fuzz::parse(argc, argv);
    if (!options.files.empty()) return fuzz::run_files(options.files);
    return fuzz::run_mutations(options, std::filesystem::path(argv[0]).filename().string());
  } catch (const std::exception& error) {
    fmt::print(stderr, "fuzz: {}\n", error.what());
    return 1;
  }
}
