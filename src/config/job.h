// A job: one request for a clip, as plain structs with their defaults. Every member is named like
// its YAML key; keys.h binds the two, docs/configuration.md explains them, load.h makes a Job.
// Optional members without a value are `auto` (decided later) or simply not asked for; an empty
// path is a file that was not given. Loaded jobs hold absolute paths only.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/enums.h"
#include "config/rational.h"

namespace flotilla::config {

struct Lora {
  std::filesystem::path path;
  double strength = 1.0;
  bool operator==(const Lora&) const = default;
};

// Either `checkpoint` holds everything but the text encoder and the upsampler, or transformer (with
// the text projection), video VAE and audio VAE come from files of their own.
struct Models {
  std::filesystem::path checkpoint;
  std::filesystem::path transformer;
  std::filesystem::path video_vae;
  std::filesystem::path audio_vae;
  std::filesystem::path spatial_upsampler;
  std::filesystem::path text_encoder;
  Lora distilled_lora;
  std::vector<Lora> loras;
  bool fixed_loras = false;
  bool operator==(const Models&) const = default;
};

// The finished clip: pixels, frames, frames a second.
struct Video {
  int64_t width = 1536;
  int64_t height = 1024;
  int64_t num_frames = 121;
  Rational frame_rate{24};
  bool operator==(const Video&) const = default;
};

// Frame 0 replaces the first latent, a later one appends a keyframe, a negative one a reference.
struct Image {
  std::filesystem::path path;
  int64_t frame = 0;
  double strength = 1.0;
  std::optional<int64_t> crf;  // H.264 quality of the round trip; without: what the model expects
  bool operator==(const Image&) const = default;
};

struct ModalityGuidance {
  double cfg = 1.0;
  double stg = 1.0;
  double modality = 3.0;
  double rescale = 0.7;
  int64_t skip_step = 0;
  std::optional<std::vector<int64_t>> stg_blocks;  // without: those of the model's generation
  bool operator==(const ModalityGuidance&) const = default;
};

struct Guidance {
  ModalityGuidance video{.cfg = 3.0};
  ModalityGuidance audio{.cfg = 7.0};
  bool operator==(const Guidance&) const = default;
};

using Sigmas = std::vector<double>;
using TileGrid = std::array<int64_t, 3>;  // frames, rows, columns

struct Stage1 {
  // Without: that of the model's generation. In a loaded job with sigmas: sigmas->size() - 1.
  std::optional<int64_t> steps;
  std::optional<Sigmas> sigmas;
  Stage1Parallel parallel = Stage1Parallel::sp;
  std::optional<int64_t> guidance_groups;
  Guidance guidance;
  bool operator==(const Stage1&) const = default;
};

struct DenoiseTiles {
  std::optional<TileGrid> grid;
  int64_t overlap = 5;  // latent cells
  double max_first_sigma = 0.7;
  bool normalize_positions = true;
  bool operator==(const DenoiseTiles&) const = default;
};

struct Stage2 {
  std::optional<Sigmas> sigmas;
  Stage2Parallel parallel = Stage2Parallel::automatic;
  DenoiseTiles tiles;
  bool operator==(const Stage2&) const = default;
};

struct SequenceParallel {
  int64_t max_tokens = 32768;
  Transport transport = Transport::automatic;
  std::optional<double> exchange_timeout_seconds;
  bool operator==(const SequenceParallel&) const = default;
};

struct Text {
  TextParallel parallel = TextParallel::shard;
  bool strict_length = false;
  bool enhance = false;
  std::filesystem::path enhancer;
  bool operator==(const Text&) const = default;
};

// Overlap of neighbouring tiles in latent cells; one number in YAML means the same on every axis.
struct TileOverlap {
  std::array<int64_t, 3> cells = {4, 4, 4};  // frames, rows, columns
  bool operator==(const TileOverlap&) const = default;
};

struct DecoderTiles {
  std::optional<TileGrid> grid;
  TileOverlap overlap;
  bool operator==(const DecoderTiles&) const = default;
};

// Pixels for space, frames for time; without a size the axis is not cut.
struct AxisTiling {
  std::optional<int64_t> size;
  int64_t overlap = 0;
  bool operator==(const AxisTiling&) const = default;
};

struct Tiling {
  TilingMode mode = TilingMode::automatic;
  AxisTiling spatial;   // used when mode is manual
  AxisTiling temporal;  // the same
  bool operator==(const Tiling&) const = default;
};

struct Decoder {
  DecoderTiles tiles;
  Tiling tiling;
  bool operator==(const Decoder&) const = default;
};

struct Checkpoint {
  std::filesystem::path path;
  int64_t every_steps = 0;
  Resume resume = Resume::never;
  bool operator==(const Checkpoint&) const = default;
};

struct Limits {
  std::optional<double> max_hours;
  std::filesystem::path stop_file;
  bool operator==(const Limits&) const = default;
};

struct Output {
  std::filesystem::path path = "out.mp4";
  std::filesystem::path latents;
  std::filesystem::path metrics;
  std::filesystem::path contact_sheet;
  bool save_frames = false;
  bool audio = true;
  bool overwrite = false;
  bool operator==(const Output&) const = default;
};

struct Job {
  int64_t schema_version = 1;
  Pipeline pipeline = Pipeline::distilled;
  Models models;
  std::string prompt;
  std::string negative_prompt;
  std::optional<uint64_t> seed;
  NoiseDevice noise_device = NoiseDevice::cpu;
  Video video;
  std::vector<Image> images;
  Stage1 stage_1;
  Stage2 stage_2;
  SequenceParallel sp;
  Text text;
  Decoder decoder;
  Device device = Device::automatic;
  Precision precision = Precision::automatic;
  Attention attention = Attention::automatic;
  Graphs graphs = Graphs::automatic;
  Offload offload = Offload::none;
  bool allow_shared_device = false;
  Reproducible reproducible = Reproducible::run;
  Checkpoint checkpoint;
  Limits limits;
  std::optional<int64_t> threads;
  Output output;
  bool operator==(const Job&) const = default;
};

}  // namespace flotilla::config
