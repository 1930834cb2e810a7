// The parts of a pipeline for one device, and what spreads each of them over ranks; for programs
// that build a pipeline of their own (docs/examples/runner). A part says what it is made of, may be
// wrapped once, and then loads and works; its files, precision and LoRAs are those that it had.
//
//   DiffusionModel model = sequence_parallel(DiffusionModel(setup), ranks, sizes);
//   model.load();
//   const transformer::VelocityModel& stage = model.begin(positions);   // of a denoise stage
//
// Without a wrapper the same lines work on one device. What a wrapped part does is collective over
// the ranks. All wrappers refuse a part that is wrapped or loaded already (ErrorKind::usage).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_context.h"
#include "loader/lora.h"
#include "parallel/distributed_decoder.h"
#include "parallel/distributed_text_encoder.h"
#include "parallel/sequence_parallel.h"
#include "parallel/shared_weights.h"
#include "parallel/tile_grid.h"
#include "text/tokenizer.h"
#include "transformer/velocity_model.h"

namespace flotilla::parallel {

// What the denoise stages ask for velocities.
class DiffusionModel {
 public:
  struct Setup {
    std::shared_ptr<const loader::Checkpoint> checkpoint;
    loader::StoragePolicy precision = at::kFloat;
    at::Device device = at::kCPU;
    std::vector<loader::LoraWithStrength> loras;
  };
  explicit DiffusionModel(Setup setup);

  const Setup& setup() const { return setup_; }
  // "sequence parallelism", "tiles", or "" for one device.
  const std::string& wrapper() const { return wrapper_; }

  // Reads the weights, each rank a share, and fuses the LoRAs in. Once. Errors, agreed: those of
  // Transformer and SharedWeights.
  void load();
  // Instead of those that are fused in now. Not between begin() and end(). Errors: as above.
  void set_loras(const std::vector<loader::LoraWithStrength>& loras);
  const transformer::Transformer& transformer() const { return loaded_->model; }

  // For a stage that is spread in another way: a model without wrapper, which shares the weights of
  // this one, loaded before, and so its LoRAs. It is wrapped and loaded like any other; that reads
  // nothing.
  DiffusionModel with_same_weights() const;

  // The model for tokens at these positions, valid until the next begin() or end(). Errors: those
  // of the velocity models.
  const transformer::VelocityModel& begin(const transformer::TokenPositions& positions);
  // Of a pipeline, which may begin again; gives back what the ranks share.
  void end();

 private:
  friend DiffusionModel sequence_parallel(DiffusionModel, comm::RankContext&, const SequenceSizes&);
  friend DiffusionModel tiled(DiffusionModel, comm::RankContext&, const TileGrid&, TilePositions);
  void wrap(std::string wrapper, comm::RankContext& ranks);
  bool is_alone() const { return ranks_ == nullptr || ranks_->world_size() == 1; }
  std::unique_ptr<transformer::VelocityModel> make_stage(
      const transformer::TokenPositions& positions);

  Setup setup_;
  std::string wrapper_;
  comm::RankContext* ranks_ = nullptr;     // null: not wrapped
  std::optional<SequenceSizes> sequence_;  // one of these two where wrapped
  std::optional<TileGrid> tiles_;
  TilePositions tile_positions_ = TilePositions::normalized;
  struct Loaded {
    transformer::Transformer model;
    SharedWeights weights;
  };
  std::shared_ptr<Loaded> loaded_;
  bool is_ready_ = false;
  std::optional<SequenceExchange> exchange_;
  std::unique_ptr<transformer::BlockGraphs> graphs_;  // on GPUs
  std::unique_ptr<transformer::VelocityModel> stage_;
};

// `ranks` must outlive the result. dtype and device of `sizes` are those of the model.
DiffusionModel sequence_parallel(DiffusionModel model, comm::RankContext& ranks,
                                 const SequenceSizes& sizes);
// For clips of grid.size. A velocity of tiles is an approximation: see tile_grid.h.
DiffusionModel tiled(DiffusionModel model, comm::RankContext& ranks, const TileGrid& grid,
                     TilePositions positions = TilePositions::normalized);

// Prompts to contexts.
class TextEncoder {
 public:
  struct Setup {
    std::shared_ptr<const loader::Checkpoint> checkpoint;  // with projection and connectors
    std::filesystem::path folder;                          // Gemma's
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
  };
  explicit TextEncoder(Setup setup);

  const Setup& setup() const { return setup_; }
  // "shard", "replicate", or "" for one device.
  const std::string& wrapper() const { return wrapper_; }

  // For calls with this many prompts. Errors, agreed: those of DistributedTextEncoder.
  void load(int64_t num_prompts = 1);
  // As many prompts as load() was told, alike on all ranks. On every rank. Errors: those of
  // Tokenizer::encode(). A prompt that is too long is cut: see TokenizedPrompt::num_dropped.
  std::vector<text::TextContext> encode(const std::vector<std::string>& prompts) const;
  // Frees the weights; load() may follow.
  void release() { encoder_.reset(); }

 private:
  friend TextEncoder distributed(TextEncoder, comm::RankContext&, config::TextParallel);

  Setup setup_;
  std::string wrapper_;
  comm::RankContext* ranks_ = nullptr;
  config::TextParallel split_ = config::TextParallel::shard;
  std::optional<text::Tokenizer> tokenizer_;
  std::unique_ptr<DistributedTextEncoder> encoder_;
};

TextEncoder distributed(TextEncoder encoder, comm::RankContext& ranks, config::TextParallel split);

// Video latents to frames.
class ClipDecoder {
 public:
  struct Setup {
    std::shared_ptr<const loader::Checkpoint> checkpoint;
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
    diffusion::VideoTiling tiling;  // inside a rank
  };
  explicit ClipDecoder(Setup setup);

  const Setup& setup() const { return setup_; }
  // "tiles", or "" for one device.
  const std::string& wrapper() const { return wrapper_; }

  // Errors, agreed: those of VideoDecoder.
  void load();
  // As DistributedDecoder::decode(): on several ranks the frames come on the driver, in time order.
  // Errors (ErrorKind::config): sizes that cannot be tiled so.
  void decode(const at::Tensor& latent, const vae::FrameBatchCallback& on_frames,
              const vae::TileCallback& on_tile = {}) const;

 private:
  friend ClipDecoder distributed(ClipDecoder, comm::RankContext&, std::optional<DecoderGrid>);

  Setup setup_;
  std::string wrapper_;
  comm::RankContext* ranks_ = nullptr;
  std::optional<DecoderGrid> grid_;
  std::optional<vae::VideoDecoder> decoder_;
};

// `grid`: by default one tile a rank where the clip is large enough.
ClipDecoder distributed(ClipDecoder decoder, comm::RankContext& ranks,
                        std::optional<DecoderGrid> grid = std::nullopt);

}  // namespace flotilla::parallel
