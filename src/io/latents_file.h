// The HDF5 file of a run's latents and contexts, and of checkpoints: the schema of
// docs/checkpoint.md. All tensors are whole and in one layout for every world size, so that 8 ranks
// can write and 2 can read.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace flotilla::io {

// Schema of this build; a file of another version is refused.
inline constexpr int64_t kLatentsFormatVersion = 1;

// Names of the datasets.
namespace latents {
inline constexpr const char* kVideoContext = "text/video_context";  // [batch, tokens, channels]
inline constexpr const char* kAudioContext = "text/audio_context";  // [batch, tokens, channels]
// Of the negative prompt, where guidance reads one; the same axes.
inline constexpr const char* kNegativeVideoContext = "text/negative_video_context";
inline constexpr const char* kNegativeAudioContext = "text/negative_audio_context";
inline constexpr const char* kInitialVideo =
    "stage_1/initial_video";  // [batch, tokens, channels], noised
inline constexpr const char* kInitialAudio =
    "stage_1/initial_audio";  // [batch, tokens, channels], noised
inline constexpr const char* kStage1Video = "stage_1/video_latent";     // [B, C, F, H, W]
inline constexpr const char* kStage1Audio = "stage_1/audio_latent";     // [B, C, T, mel]
inline constexpr const char* kUpscaledVideo = "upscaled/video_latent";  // [B, C, F, H, W]
inline constexpr const char* kStage2Video = "stage_2/video_latent";     // [B, C, F, H, W]
inline constexpr const char* kStage2Audio = "stage_2/audio_latent";     // [B, C, T, mel]
inline constexpr const char* kDecodedVideo = "decoded/video";           // uint8 [F, H, W, 3]
inline constexpr const char* kDecodedAudio = "decoded/audio";           // [channels, samples]
inline constexpr const char* kResumeGroup = "resume/";               // any tensors of a checkpoint
inline constexpr const char* kResumeGenerator = "resume/generator";  // every checkpoint has it
}  // namespace latents

struct LatentsFile {
  // Root attributes; "created" is the time of writing (ISO 8601, UTC) and is filled in by
  // write_latents().
  std::string flotilla_version;
  std::string job_yaml;  // resolved
  // What text.enhance made the job's prompt from; nothing when it did not.
  std::optional<std::string> original_prompt;
  std::string checkpoint_digest;  // of header and size
  int64_t seed = 0;
  int64_t world = 1;
  // How often the batch job was put back into the queue; nothing outside of one.
  std::optional<int64_t> restart_count;
  std::string created;
  int64_t sample_rate = 0;  // of decoded/audio; 0 without it

  // Dataset name -> tensor; float32, but uint8 for decoded/video and where resume/ wants bytes.
  std::map<std::string, at::Tensor> tensors;
  // Attributes of /resume: integers (stage, step, ...) and texts.
  std::map<std::string, int64_t> resume_integers;
  std::map<std::string, std::string> resume_texts;

  bool has(const std::string& name) const { return tensors.count(name) != 0; }
};

// Whole or not at all; `keep_previous` as in H5PendingFile::commit(). A name outside of the schema,
// or a tensor with another number of axes, is a broken invariant. Errors: ErrorKind::output.
void write_latents(const std::filesystem::path& path, const LatentsFile& file, bool overwrite,
                   bool keep_previous = false);

// Reads the datasets of the schema that are there (all, or only those in `names`), their number of
// axes and element type checked. Errors (ErrorKind::input): damaged, another format_version, wrong
// schema, or one of `names` is missing.
LatentsFile read_latents(const std::filesystem::path& path,
                         const std::vector<std::string>& names = {});

}  // namespace flotilla::io
