// Sweep files, with the job in the file itself or in one beside it.
#include <string>
#include <string_view>

#include "config/sweep.h"
#include "fuzz/fuzz_target.h"
#include "fuzz/yaml_inputs.h"

namespace flotilla::fuzz {
namespace {

const std::string kSweep =
    "job:\n  models: {checkpoint: m.safetensors, spatial_upsampler: u.safetensors,\n"
    "    text_encoder: gemma}\n  prompt: a fox\n  output: {path: x.y4m, latents: x.h5}\n"
    "output: {folder: clips, name: \"{index:03}_{seed}_{video.width}\"}\n"
    "grid:\n  prompt: [a fox, a cat]\n"
    "zip:\n  video.width: [512, 768]\n  video.height: [256, 512]\n"
    "points:\n  - {seed: 7, models.loras: [{path: snow.safetensors, strength: 0.8}]}\n"
    "exclude:\n  - {prompt: a cat, video.width: 768}\n";
const std::string kSweepOfFile =
    "schema_version: 1\njob: demo.yaml\ngrid: {seed: [1, 2]}\noutput: {folder: clips}\n";

}  // namespace

std::vector<Bytes> good_inputs() { return {bytes_of(kSweep), bytes_of(kSweepOfFile)}; }

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  return fuzz::outcome_of([&] {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    config::load_sweep_text(text, "fuzz", FLOTILLA_SOURCE_DIR "/configs");
  });
}
