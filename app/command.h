// The commands of the program: one file each, parse, prepare, run, report.
#pragma once

#include <string>
#include <vector>

namespace flotilla::app {

using Arguments = std::vector<std::string>;  // behind the command's name

// Each returns the exit code; errors leave as flotilla::Error.
int run(const Arguments& arguments);
int sweep(const Arguments& arguments);
int decode(const Arguments& arguments);
int bench(const Arguments& arguments);
int selftest(const Arguments& arguments);
int inspect(const Arguments& arguments);
int report(const Arguments& arguments);
int devices(const Arguments& arguments);
int serve(const Arguments& arguments);
int submit(const Arguments& arguments);
int status(const Arguments& arguments);
int cancel(const Arguments& arguments);
int worker(const Arguments& arguments);          // of a fleet; not for the command line
int bench_pipeline(const Arguments& arguments);  // bench's own; the name is still in front
int bench_comm(const Arguments& arguments);
int bench_step(const Arguments& arguments);
int bench_vae(const Arguments& arguments);
int bench_text(const Arguments& arguments);
int bench_audio(const Arguments& arguments);
int bench_load(const Arguments& arguments);
int bench_lora(const Arguments& arguments);

struct Command {
  const char* name;
  const char* summary;
  int (*main)(const Arguments&);
};

}  // namespace flotilla::app
