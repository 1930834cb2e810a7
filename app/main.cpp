// The program: finds the command, turns errors into one message and an exit code.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/command.h"
#include "app/failure.h"
#include "app/launcher.h"
#include "app/process.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "fleet/lifeline.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Command kCommands[] = {
    {"run", "generate the clip of a job file", &run},
    {"sweep", "generate the clips of a sweep file, with everything loaded once", &sweep},
    {"serve", "keep ranks and loaded models for jobs that are sent", &serve},
    {"submit", "send a job to a server, and show its progress", &submit},
    {"status", "tell what a server does", &status},
    {"cancel", "stop the job of a server", &cancel},
    {"decode", "make the clip again from a latents file", &decode},
    {"inspect", "tell what a file is, and what is in it", &inspect},
    {"report", "make one HTML page of a run or of a sweep", &report},
    {"devices", "list what this machine has, and what a job would use", &devices},
    {"bench", "measure the phases of a job, or the exchange between ranks", &bench},
    {"selftest", "compare one rank with all ranks, in fast and in exact mode", &selftest},
};

void print_usage() {
  fmt::print(
      "flotilla: video with sound from text and images, with the LTX-2 models\n\n"
      "usage: flotilla <command> [options]\n"
      "       flotilla --help | --version\n\n"
      "commands (flotilla <command> --help tells more):\n");
  for (const auto& command : kCommands) fmt::print("  {:<10} {}\n", command.name, command.summary);
  fmt::print(
      "\nA first clip:  flotilla run configs/demo.yaml\n"
      "More ranks never make a model fit: each holds all weights. What helps is a smaller clip, "
      "decoder tiling,\n"
      "or lower precision.\n");
}

void print_version() {
  fmt::print("flotilla {} ({})\n", kVersion, kCommit);
  fmt::print("build      {}, {}\n", kBuildType, kCompiler);
  fmt::print("LibTorch   {}\n", kTorchVersion);
  fmt::print("CUDA       {}\n", kCudaBuild);
  fmt::print("MPI        {}\n", kMpiVersion);
  fmt::print("HDF5       {}\n", kHdf5Version);
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty()) {
    print_usage();
    return exit_code(ErrorKind::usage);
  }
  const std::string& name = arguments.front();
  // Texts come from one rank only, also under a launcher.
  const bool speaks = launched_ranks().rank == 0;
  if (name == "--help" || name == "-h" || name == "help") {
    if (speaks) print_usage();
    return 0;
  }
  if (name == "--version") {
    if (speaks) print_version();
    return 0;
  }
  if (name == "worker") return worker({arguments.begin() + 1, arguments.end()});
  std::vector<std::string> names;
  for (const auto& command : kCommands) {
    if (name == command.name) return command.main({arguments.begin() + 1, arguments.end()});
    names.emplace_back(command.name);
  }
  const std::string near = nearest_word(name, names);
  fail(ErrorKind::usage,
       fmt::format("unknown command \"{}\"{}; commands: {}", excerpt(name),
                   near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near),
                   fmt::join(names, ", ")));
}

// What is wrong with the command line or the job is wrong on all ranks: one of them says it.
bool is_alike(ErrorKind kind) { return kind == ErrorKind::usage || kind == ErrorKind::config; }

int report_error(ErrorKind kind, const std::string& text) {
  if (is_alike(kind) && launched_ranks().rank != 0) return exit_code(kind);
  if (kind == ErrorKind::stopped) {
    log::warn("run", "{}", text);  // as the user wished
  } else {
    log::error(to_string(kind), "{}", text);
  }
  log::info("run", "ended after {}, exit code {} ({})", human_duration(log::elapsed_s()),
            exit_code(kind), to_string(kind));
  return exit_code(kind);
}

int guarded(const Arguments& arguments) {
  try {
    const int code = dispatch(arguments);
    flush_results();
    return code;
  } catch (...) {
    const Failure failure = current_failure();
    return failure.speaks ? report_error(failure.kind, failure.text) : exit_code(failure.kind);
  }
}

}  // namespace

// Of a rank that flotilla run --ranks started.
fleet::LifelineOptions lifeline_options() {
  const char* socket = host().variable(fleet::kControllerVariable);
  return {socket == nullptr ? "" : socket, host().variable, leave_signal};
}

}  // namespace flotilla::app

int main(int argc, char** argv) {
  flotilla::app::set_up_process();
  const c10::InferenceMode no_gradients;
  flotilla::fleet::Lifeline lifeline(flotilla::app::lifeline_options());
  const int code = flotilla::app::guarded({argv + 1, argv + argc});
  lifeline.close(code);
  return code;
}
