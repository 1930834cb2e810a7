// HDF5 files of latents and checkpoints, as this program writes them.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/fuzz_target.h"
#include "fuzz/scratch_file.h"
#include "io/latents_file.h"

namespace flotilla::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr size_t kEndOfFile = 40;  // where the head of the file says how long it is, in 8 bytes

Bytes bytes_of(const io::LatentsFile& file) {
  const fs::path path = fs::temp_directory_path() / fmt::format("fuzz-latents-{}.h5", ::getpid());
  io::write_latents(path, file, /*overwrite=*/true);
  std::ifstream in(path, std::ios::binary);
  const Bytes bytes{std::istreambuf_iterator<char>(in), {}};
  fs::remove(path);
  return bytes;
}

io::LatentsFile described() {
  io::LatentsFile file;
  file.flotilla_version = "0.1.0";
  file.job_yaml = "prompt: a fox\nseed: 10\n";
  file.checkpoint_digest = "0123456789abcdef";
  file.seed = 10;
  return file;
}

}  // namespace

std::vector<Bytes> good_inputs() {
  io::LatentsFile run = described();
  run.tensors[io::latents::kStage1Video] = at::arange(24, at::kFloat).reshape({1, 2, 1, 3, 4});
  run.tensors[io::latents::kDecodedVideo] = at::arange(24).to(at::kByte).reshape({1, 2, 4, 3});
  run.tensors[io::latents::kDecodedAudio] = at::arange(10, at::kFloat).reshape({2, 5});
  run.sample_rate = 24000;
  io::LatentsFile stopped = described();
  stopped.original_prompt = "a fox";
  stopped.restart_count = 2;
  stopped.tensors[io::latents::kResumeGenerator] = at::arange(16).to(at::kByte);
  stopped.resume_integers = {{"stage", 1}, {"step", 3}};
  stopped.resume_texts = {{"phase", "stage_1"}};
  return {bytes_of(described()), bytes_of(run), bytes_of(stopped)};
}

std::vector<std::string> words() {
  return {"OHDR",
          "SNOD",
          "TREE",
          "HEAP",
          "GCOL",
          "OCHK",
          "FADB",
          "FRHP",
          "BTHD",
          "EAHD",
          "\x89HDF\r\n\x1a\n",
          std::string(8, '\xff'),
          std::string(8, '\0'),
          "stage_1",
          "video_latent",
          "resume",
          "decoded",
          "audio",
          "format_version",
          "job_yaml",
          "dims"};
}

// The library opens no file that is shorter than its head says.
void repair(Bytes& input, Random& random) {
  if (input.size() < kEndOfFile + 8 || !chance(random, 85)) return;
  for (size_t i = 0; i < 8; ++i)
    input[kEndOfFile + i] = static_cast<uint8_t>(input.size() >> (8 * i));
}

}  // namespace flotilla::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flotilla;
  const fuzz::ScratchFile file({data, size});
  return fuzz::outcome_of([&] { io::read_latents(file.path()); });
}
