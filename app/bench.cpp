// flotilla bench: finds the benchmark by its name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "app/command.h"
#include "app/launcher.h"
#include "base/error.h"
#include "base/text.h"

namespace flotilla::app {
namespace {

constexpr Command kBenchmarks[] = {
    {"pipeline", "seconds per phase of a job", &bench_pipeline},
    {"step", "one denoise forward of a model of real size", &bench_step},
    {"vae", "the decode of a clip by a video VAE of real size", &bench_vae},
    {"text", "a prompt through text encoder, features and connectors", &bench_text},
    {"audio", "from audio latents to sound", &bench_audio},
    {"load", "the weights of a job from its files", &bench_load},
    {"lora", "the LoRAs of a job in and out again", &bench_lora},
    {"comm", "the exchange between ranks and the collectives", &bench_comm},
};

void print_usage() {
  fmt::print(
      "usage: flotilla bench <benchmark> [options]\n\n"
      "benchmarks (flotilla bench <benchmark> --help tells more):\n");
  for (const auto& benchmark : kBenchmarks)
    fmt::print("  {:<10} {}\n", benchmark.name, benchmark.summary);
}

}  // namespace

int bench(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  if (name == "--help" || name == "-h") {
    if (launched_ranks().rank == 0) print_usage();
    return 0;
  }
  std::vector<std::string> names;
  for (const auto& benchmark : kBenchmarks) {
    if (name == benchmark.name) return benchmark.main(arguments);
    names.emplace_back(benchmark.name);
  }
  const std::string near = nearest_word(name, names);
  fail(ErrorKind::usage,
       fmt::format("bench knows {}, not \"{}\"{}; the name comes first", fmt::join(names, ", "),
                   excerpt(name), near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
}

}  // namespace flotilla::app
