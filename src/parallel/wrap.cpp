#include "parallel/wrap.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "config/enums.h"
#include "diffusion/patchify.h"
#include "parallel/tiled_velocity_model.h"

namespace flotilla::parallel {
namespace {

void check_not_wrapped(std::string_view part, std::string_view wrapper, std::string_view wanted,
                       bool is_loaded) {
  if (!wrapper.empty()) {
    fail(
        ErrorKind::usage,
        fmt::format("the {} is wrapped already ({}); it cannot be wrapped again ({}): make another "
                    "one of the same setup()",
                    part, wrapper, wanted));
  }
  if (is_loaded) {
    fail(ErrorKind::usage,
         fmt::format("the {} is loaded; wrap it ({}) before load()", part, wanted));
  }
}

void check_loaded(std::string_view part, bool is_loaded) {
  if (!is_loaded) fail(ErrorKind::usage, fmt::format("the {} is not loaded: load() first", part));
}

loader::LoadArena load_arena(comm::RankContext* ranks) {
  if (ranks == nullptr) return loader::load_alone;
  return [ranks](loader::WeightArena& arena) { load_shared(arena, ranks->world()); };
}

// An agreement point where there are several ranks.
template <typename Body>
auto agreed(comm::RankContext* ranks, Body&& body) {
  return ranks != nullptr ? comm::agreed(ranks->world(), std::forward<Body>(body)) : body();
}

}  // namespace

DiffusionModel::DiffusionModel(Setup setup) : setup_(std::move(setup)) {}

void DiffusionModel::wrap(std::string wrapper, comm::RankContext& ranks) {
  check_not_wrapped("diffusion model", wrapper_, wrapper, is_ready_);
  wrapper_ = std::move(wrapper);
  ranks_ = &ranks;
}

void DiffusionModel::load() {
  if (is_ready_) fail(ErrorKind::usage, "the diffusion model is loaded already");
  if (!loaded_) {
    loaded_ = agreed(ranks_, [&] {
      transformer::Transformer model(setup_.checkpoint, setup_.precision, setup_.device,
                                     load_arena(ranks_));
      SharedWeights weights(model.arena(), ranks_ != nullptr ? &ranks_->world() : nullptr);
      return std::make_shared<Loaded>(std::move(model), std::move(weights));
    });
  }
  is_ready_ = true;
  set_loras(setup_.loras);
}

void DiffusionModel::set_loras(const std::vector<loader::LoraWithStrength>& loras) {
  check_loaded("diffusion model", is_ready_);
  const auto set = agreed(ranks_, [&] { return loaded_->model.lora_set(loras); });
  loaded_->weights.set_loras(set);
  loaded_->weights.release_factors();
  setup_.loras = loras;
}

DiffusionModel DiffusionModel::with_same_weights() const {
  check_loaded("diffusion model", is_ready_);
  DiffusionModel other(setup_);
  other.loaded_ = loaded_;
  return other;
}

const transformer::VelocityModel& DiffusionModel::begin(
    const transformer::TokenPositions& positions) {
  check_loaded("diffusion model", is_ready_);
  stage_.reset();
  graphs_.reset();
  if (setup_.device.is_cuda()) graphs_ = std::make_unique<transformer::BlockGraphs>();
  stage_ = make_stage(positions);
  return *stage_;
}

std::unique_ptr<transformer::VelocityModel> DiffusionModel::make_stage(
    const transformer::TokenPositions& positions) {
  const at::ScalarType dtype = setup_.precision.dtype;
  if (tiles_) {
    TileOwner owner;
    if (!is_alone()) {
      comm::Communicator& world = ranks_->transformer();
      owner = {ranks_->rank(), ranks_->world_size(),
               [&world](at::Tensor& sum) { world.all_reduce_sum(sum); }};
    }
    return std::make_unique<TiledVelocityModel>(loaded_->model, *tiles_, positions, dtype, owner,
                                                tile_positions_, graphs_.get());
  }
  if (!sequence_ || is_alone()) {
    return std::make_unique<transformer::LocalVelocityModel>(loaded_->model, positions, dtype,
                                                             graphs_.get());
  }
  if (!exchange_)
    exchange_ = make_sequence_exchange(ranks_->transformer(), loaded_->model.config(), *sequence_);
  return std::make_unique<SequenceParallelVelocityModel>(
      loaded_->model, positions, dtype, ranks_->transformer(), *exchange_, graphs_.get());
}

void DiffusionModel::end() {
  stage_.reset();
  graphs_.reset();
  if (exchange_) exchange_->close();
  exchange_.reset();
}

DiffusionModel sequence_parallel(DiffusionModel model, comm::RankContext& ranks,
                                 const SequenceSizes& sizes) {
  model.wrap("sequence parallelism", ranks);
  model.sequence_ = sizes;
  model.sequence_->dtype = model.setup_.precision.dtype;
  model.sequence_->device = model.setup_.device;
  return model;
}

DiffusionModel tiled(DiffusionModel model, comm::RankContext& ranks, const TileGrid& grid,
                     TilePositions positions) {
  model.wrap("tiles", ranks);
  model.tiles_ = grid;
  model.tile_positions_ = positions;
  return model;
}

TextEncoder::TextEncoder(Setup setup) : setup_(std::move(setup)) {}

void TextEncoder::load(int64_t num_prompts) {
  comm::Communicator* ranks = ranks_ != nullptr ? &ranks_->text() : nullptr;
  encoder_ = agreed(ranks_, [&] {
    tokenizer_.emplace(setup_.folder);
    return std::make_unique<DistributedTextEncoder>(
        ranks, TextEncoderSetup{.checkpoint = setup_.checkpoint,
                                .folder = setup_.folder,
                                .dtype = setup_.dtype,
                                .device = setup_.device,
                                .split = split_,
                                .num_prompts = num_prompts});
  });
  encoder_->load();
}

std::vector<text::TextContext> TextEncoder::encode(const std::vector<std::string>& prompts) const {
  check_loaded("text encoder", encoder_ != nullptr);
  const auto tokens = agreed(ranks_, [&] {
    std::vector<text::TokenizedPrompt> made;
    for (const auto& prompt : prompts) made.push_back(tokenizer_->encode(prompt));
    return made;
  });
  return encoder_->encode(tokens);
}

TextEncoder distributed(TextEncoder encoder, comm::RankContext& ranks, config::TextParallel split) {
  const std::string_view wanted = config::to_string(split);
  check_not_wrapped("text encoder", encoder.wrapper_, wanted, encoder.encoder_ != nullptr);
  encoder.wrapper_ = wanted;
  encoder.ranks_ = &ranks;
  encoder.split_ = split;
  return encoder;
}

ClipDecoder::ClipDecoder(Setup setup) : setup_(std::move(setup)) {}

void ClipDecoder::load() {
  decoder_.emplace(agreed(ranks_, [&] {
    return vae::VideoDecoder::from_checkpoint(setup_.checkpoint, setup_.dtype, setup_.device,
                                              load_arena(ranks_));
  }));
}

void ClipDecoder::decode(const at::Tensor& latent, const vae::FrameBatchCallback& on_frames,
                         const vae::TileCallback& on_tile) const {
  check_loaded("decoder", decoder_.has_value());
  decoder_->check_latent(latent);
  const diffusion::VideoLatentSize size = diffusion::size_of_video(latent);
  const int world_size = ranks_ != nullptr ? ranks_->world_size() : 1;
  DecoderGrid grid;
  if (grid_) {
    grid = *grid_;
  } else {
    grid.counts = automatic_decoder_counts(size, grid.overlap, world_size);
  }
  const DecodePlan plan = plan_decode(plan_decoder_grid(grid, size, decoder_->scale()),
                                      setup_.tiling, decoder_->scale(), world_size);
  const DistributedDecoder tiles(plan, ranks_ != nullptr ? &ranks_->decoder() : nullptr);
  tiles.decode(tiles.has_tiles() ? &*decoder_ : nullptr, latent, on_frames, on_tile);
}

ClipDecoder distributed(ClipDecoder decoder, comm::RankContext& ranks,
                        std::optional<DecoderGrid> grid) {
  check_not_wrapped("decoder", decoder.wrapper_, "tiles", decoder.decoder_.has_value());
  decoder.wrapper_ = "tiles";
  decoder.ranks_ = &ranks;
  decoder.grid_ = grid;
  return decoder;
}

}  // namespace flotilla::parallel
