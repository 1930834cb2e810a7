#include "fuzz/yaml_inputs.h"

#include <algorithm>
#include <fstream>

namespace flotilla::fuzz {

const std::string kGuidedJob =
    "pipeline: ti2vid_two_stages\n"
    "models: {checkpoint: m.safetensors, spatial_upsampler: u.safetensors, text_encoder: gemma,\n"
    "  distilled_lora: {path: lora.safetensors}}\n"
    "prompt: |\n  a fox\n  in the snow\n# not a value\nnegative_prompt: 'blur'\nseed: 10\n"
    "video: {width: 128, height: 192, num_frames: 9, frame_rate: \"24000/1001\"}\n"
    "images:\n  - {path: a.png, frame: 0}\n  - path: b.png\n    frame: 8\n"
    "stage_1:\n  sigmas: [1.0, 0.5, 0]\n  guidance: {video: {cfg: 2, stg_blocks: [1, 2]}}\n"
    "decoder:\n  tiling: {spatial: {size: 512, overlap: 64}}\n"
    "output: {path: \"o.mp4\", audio: true}\n";

Bytes bytes_of(std::string_view text) { return Bytes(text.begin(), text.end()); }

Bytes config_file(const std::string& name) {
  std::ifstream in(FLOTILLA_SOURCE_DIR "/configs/" + name);
  Bytes bytes;
  for (std::string line; std::getline(in, line);) {
    line.resize(std::min(line.size(), line.find('#')));  // no value there has one
    line.resize(line.find_last_not_of(' ') + 1);
    if (line.empty()) continue;
    bytes.insert(bytes.end(), line.begin(), line.end());
    bytes.push_back('\n');
  }
  return bytes;
}

std::vector<std::string> words() {
  return {"\n",         ": ",         "- ",     "[",     "]",        "{",     "}",
          "\"",         "'",          "&a ",    "*a",    "!!int ",   "|\n",   ">\n",
          "#",          "---\n",      "...\n",  "\t",    "  ",       "<<: ",  "? ",
          "~",          "null",       "\\",     "\xff",  ",",        "@",     "\xef\xbb\xbf",
          "\r\n",       "%TAG ! x\n", "`",      "auto",  "${A}",     "\\x00", "\\uD800",
          "{index:99}", "{seed}",     "grid: ", "zip: ", "points: ", "true",  "../"};
}

// Text has neither lengths nor checksums.
void repair(Bytes&, Random&) {}

}  // namespace flotilla::fuzz
