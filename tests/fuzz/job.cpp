// Job files: what is taken must also survive being printed.
#include <string>
#include <string_view>

#include "config/load.h"
#include "config/writer.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/yaml_inputs.h"

namespace flotilla::fuzz {

std::vector<Bytes> good_inputs() {
  return {bytes_of(kGuidedJob), config_file("demo.yaml"), config_file("demo_two_stages.yaml"),
          config_file("distilled.yaml"), config_file("two_stages.yaml")};
}

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  return fuzz::outcome_of([&] {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const config::Job job = config::load_job_text(text, "fuzz", "/jobs").job;
    const config::Job again = config::load_job_text(config::to_yaml(job), "printed", "/").job;
    check_internal(again == job, "a job is the same after printing");
  });
}
