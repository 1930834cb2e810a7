#include "pipeline/forecast_parts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "audio/audio_vae.h"
#include "audio/vocoder.h"
#include "comm/exchange_layout.h"
#include "parallel/distributed_text_encoder.h"
#include "parallel/sequence_parallel.h"
#include "pipeline/precision.h"
#include "text/context_builder.h"
#include "text/gemma.h"
#include "text/tokenizer.h"
#include "transformer/transformer.h"
#include "upsampler/latent_upsampler.h"
#include "vae/config.h"
#include "vae/tile_plan.h"

namespace flotilla::pipeline {
namespace {

constexpr const char* kTransformerPrefix = "model.diffusion_model.";
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kByteChannels = 3;  // of a pixel, one byte each

// Widths of the stream that a block holds at once at its fullest, in the feed-forward: the tokens,
// the two inputs of cross-modal attention and that of the layer, and the hidden layer (four widths)
// before and after its activation.
constexpr int64_t kBlockWidths = 12;
// The context of a block, modulated, with its keys and values and their norms.
constexpr int64_t kContextWidths = 5;
// Of float32 angles while a table of positions is made: angles in both orders, their cosines and
// sines, padded and by head. Half a width each.
constexpr int64_t kRopeHalves = 6;
// Latents, noise, masks and velocities of a stage, float32.
constexpr int64_t kLatentCopies = 12;
// Feature maps at the upsampler's full size.
constexpr int64_t kUpsamplerMaps = 6;
// Feature maps of the video encoder at its first size: one frame, and two borders of three.
constexpr int64_t kEncoderMaps = 8;
// Signals at a vocoder's fullest level: the level's input, the sum, a block's state, and the
// activation at twice the rate.
constexpr int64_t kVocoderSignals = 12;
constexpr int64_t kSpectrogramMaps = 6;
// Float32 frames of the driver: pieces of the ranks, the blend, a weighted piece.
constexpr int64_t kBlendedBatches = 3;
// glibc gives blocks above this size back at once; of smaller ones it keeps between nothing and
// twice the largest that it has seen, by the order in which they are freed: the middle is counted.
// A working set has about four buffers of its largest size.
constexpr int64_t kLargestKeptBlock = int64_t{32} << 20;
constexpr int64_t kBuffersOfWork = 4;

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Weights of a file below prefixes, in the arena that the model lays out.
int64_t arena_bytes(const CheckpointPtr& file, std::vector<std::string> prefixes,
                    loader::StoragePolicy policy, std::vector<std::string> ignored = {}) {
  return loader::WeightArena(file, std::move(prefixes), policy, at::kMeta, std::move(ignored))
      .bytes();
}

// Video tokens of a stage with those that keyframes append.
int64_t stage_tokens(const ForecastSizes& sizes, const StagePlan& stage) {
  const auto appended = std::count_if(sizes.job.images.begin(), sizes.job.images.end(),
                                      [](const config::Image& image) { return image.frame != 0; });
  return stage.grid.size.num_tokens() + appended * stage.grid.size.tokens_per_frame();
}

// Tokens of the largest batch of tiles that one rank runs.
int64_t tile_batch_tokens(const parallel::TileGrid& grid, int64_t world_size) {
  std::map<std::pair<int64_t, int64_t>, int64_t> tokens;  // by rank and length
  int64_t most = 0;
  for (size_t i = 0; i < grid.tiles.size(); ++i) {
    const int64_t length = grid.tiles[i].num_tokens();
    int64_t& sum = tokens[{static_cast<int64_t>(i) % world_size, length}];
    most = std::max(most, sum += length);
  }
  return most;
}

int64_t group_size(const ForecastSizes& sizes, const StagePlan& stage) {
  return sizes.plan.world_size / stage.groups;
}

bool has_exchange(const ForecastSizes& sizes, const StagePlan& stage) {
  return stage.method == StageParallel::sequence && group_size(sizes, stage) > 1;
}

// Video tokens of one sample that a rank computes at once.
int64_t rank_tokens(const ForecastSizes& sizes, const StagePlan& stage) {
  if (stage.method == StageParallel::tiles)
    return tile_batch_tokens(*stage.tiles, sizes.plan.world_size);
  const int64_t tokens = stage_tokens(sizes, stage);
  return has_exchange(sizes, stage) ? ceil_div(tokens, group_size(sizes, stage)) : tokens;
}

// Passes of a step that one group of ranks computes, and how many of them in one batch.
int64_t own_passes(const StagePlan& stage) {
  return ceil_div(static_cast<int64_t>(stage.guidance.passes.size()), stage.groups);
}
int64_t batch_of(const StagePlan& stage) {
  return stage.guidance.order == PassOrder::batch ? own_passes(stage) : 1;
}

struct LoraShare {
  int64_t clean_bytes = 0;
  int64_t factor_bytes = 0;
  int64_t largest_elements = 0;
};

LoraShare lora_share(const ForecastSizes& sizes, const transformer::Transformer& model, int rank) {
  const auto& loras = sizes.files.stage_2_loras();
  const loader::LoraSet set = model.lora_set(loras);
  LoraShare result;
  const auto share = model.arena()->share(rank, static_cast<int>(sizes.plan.world_size));
  for (const loader::ArenaPiece& piece : share.pieces) {
    if (!set.changes(piece.name)) continue;
    result.clean_bytes += piece.arena_end - piece.arena_begin;
    std::string module = piece.name.substr(std::string_view(kTransformerPrefix).size());
    module.resize(module.size() - std::string_view(".weight").size());
    for (const auto& lora : loras) {
      const auto at = lora.file->modules().find(module);
      if (at == lora.file->modules().end() || lora.strength == 0.0) continue;
      const auto stored = lora.file->checkpoint().tensors().at(at->second.a).dtype;
      const auto element = static_cast<int64_t>(at::elementSize(stored));
      result.factor_bytes += at->second.rank * (at->second.in + piece.num_rows) * element;
      result.largest_elements = std::max(result.largest_elements, piece.num_rows * at->second.in);
    }
  }
  return result;
}

// Of the rank that has most of each.
LoraShare largest_lora_share(const ForecastSizes& sizes) {
  LoraShare most;
  if (sizes.files.stage_2_loras().empty()) return most;
  const transformer::Transformer model(sizes.files.transformer(),
                                       storage_policy(sizes.job.precision), at::kMeta);
  for (int rank = 0; rank < static_cast<int>(sizes.plan.world_size); ++rank) {
    const LoraShare share = lora_share(sizes, model, rank);
    most.clean_bytes = std::max(most.clean_bytes, share.clean_bytes);
    most.factor_bytes = std::max(most.factor_bytes, share.factor_bytes);
    most.largest_elements = std::max(most.largest_elements, share.largest_elements);
  }
  return most;
}

text::Gemma encoder_layout(const ForecastSizes& sizes,
                           std::optional<text::LayerRange> range = std::nullopt) {
  return text::Gemma(sizes.files.text_encoder(), sizes.plan.dtype, at::kMeta, range,
                     sizes.files.text_weights());
}

// Elements of the fullest level of a generator that reads `frames` frames.
int64_t generator_elements(const audio::GeneratorConfig& config, int64_t frames) {
  int64_t most = 0;
  for (int64_t level = 0; level < config.num_levels(); ++level) {
    frames *= config.upsample_rates[static_cast<size_t>(level)];
    most = std::max(most, config.channels(level + 1) * frames);
  }
  return most;
}

vae::DecoderConfig decoder_config(const ForecastSizes& sizes) {
  return vae::DecoderConfig::from_json(vae::locate_vae(*sizes.files.video_vae()).config);
}

// Float32 bytes of the longest run of whole frames that the driver hands on at once.
int64_t frame_run_bytes(const ForecastSizes& sizes) {
  const auto& pieces = sizes.plan.decode.pieces;
  int64_t frames = 0;
  for (const auto& span : pieces.frames) frames = std::max(frames, span.output.size());
  return frames * pieces.height() * pieces.width() * kByteChannels * kFloatBytes;
}

}  // namespace

ForecastSizes::ForecastSizes(const config::Job& job_, const ModelFiles& files_, const Plan& plan_,
                             const ForecastFacts& facts_)
    : job(job_),
      files(files_),
      plan(plan_),
      facts(facts_),
      model(transformer::TransformerConfig::from_checkpoint(*files_.transformer())),
      element_bytes(static_cast<int64_t>(at::elementSize(plan_.dtype))) {}

int64_t text_weight_bytes(const ForecastSizes& sizes) {
  const text::Gemma whole = encoder_layout(sizes);
  const text::ContextBuilder contexts(sizes.files.transformer(), whole.config(),
                                      sizes.files.text_encoder().string(), sizes.plan.dtype,
                                      at::kMeta);
  const int world = static_cast<int>(sizes.plan.world_size);
  if (sizes.job.text.parallel == config::TextParallel::replicate || world == 1)
    return whole.weight_bytes() + contexts.weight_bytes();
  int64_t most = 0;
  for (const int rank : {0, world - 1}) {  // the embedding; the projection and the connectors
    const auto range = parallel::layers_of_rank(whole.config().num_layers(), rank, world);
    const int64_t layers = range.size() > 0 ? encoder_layout(sizes, range).weight_bytes() : 0;
    most = std::max(most, layers + (rank == world - 1 ? contexts.weight_bytes() : 0));
  }
  return most;
}

int64_t enhancer_weight_bytes(const ForecastSizes& sizes) {
  return text::Gemma(sizes.files.enhancer(), sizes.plan.dtype, at::kMeta, std::nullopt,
                     sizes.files.enhancer_weights())
      .weight_bytes();
}

int64_t image_encoder_weight_bytes(const ForecastSizes& sizes) {
  const std::string prefix = vae::locate_vae(*sizes.files.video_vae()).prefix;
  return arena_bytes(sizes.files.video_vae(),
                     {prefix + "encoder.", prefix + "per_channel_statistics."}, sizes.plan.dtype);
}

int64_t upsampler_weight_bytes(const ForecastSizes& sizes) {
  return arena_bytes(sizes.files.upsampler(), {""}, sizes.plan.dtype);
}

int64_t audio_weight_bytes(const ForecastSizes& sizes) {
  // The vocoder computes in float32, always.
  return arena_bytes(sizes.files.audio_vae(),
                     {"audio_vae.decoder.", "audio_vae.per_channel_statistics."},
                     sizes.plan.dtype) +
         arena_bytes(sizes.files.audio_vae(), {"vocoder."}, at::kFloat,
                     {"mel_stft.stft_fn.inverse_basis"});
}

int64_t decoder_weight_bytes(const ForecastSizes& sizes) {
  const std::string prefix = vae::locate_vae(*sizes.files.video_vae()).prefix;
  return arena_bytes(sizes.files.video_vae(),
                     {prefix + "decoder.", prefix + "per_channel_statistics."}, sizes.plan.dtype);
}

int64_t lora_factor_bytes(const ForecastSizes& sizes) {
  return largest_lora_share(sizes).factor_bytes;
}

int64_t clean_share_bytes(const ForecastSizes& sizes) {
  return sizes.job.models.fixed_loras ? 0 : largest_lora_share(sizes).clean_bytes;
}

int64_t fuse_work_bytes(const ForecastSizes& sizes) {
  constexpr int64_t kCopies = 3;  // of a layer in float32: product, sum, result
  return kCopies * largest_lora_share(sizes).largest_elements * kFloatBytes;
}

int64_t text_work_bytes(const ForecastSizes& sizes) {
  const text::GemmaConfig gemma = encoder_layout(sizes).config();
  const int64_t states =
      sizes.facts.prompt_tokens * gemma.hidden_size * gemma.num_states() * sizes.element_bytes;
  const int64_t heads = (gemma.num_heads + gemma.num_kv_heads) * gemma.head_dim;
  const int64_t layer = sizes.facts.prompt_tokens * sizes.element_bytes *
                        (4 * gemma.hidden_size + 4 * heads + 3 * gemma.intermediate_size);
  const int64_t widths = sizes.model.video.context_dim + sizes.model.audio.context_dim;
  const int64_t connectors = kBlockWidths * text::kPromptTokens * widths * sizes.element_bytes;
  return states + std::max(layer, connectors);
}

int64_t image_work_bytes(const ForecastSizes& sizes) {
  const auto config =
      vae::EncoderConfig::from_json(vae::locate_vae(*sizes.files.video_vae()).config);
  const int64_t cells =
      sizes.job.video.height / config.patch_size * (sizes.job.video.width / config.patch_size);
  return kEncoderMaps * config.latent_channels * cells * sizes.element_bytes;
}

int64_t stage_state_bytes(const ForecastSizes& sizes, const StagePlan& stage) {
  const auto& model = sizes.model;
  const int64_t widths = model.video.dim() + model.audio.dim();
  const int64_t prompts = stage.guidance.needs_negative_prompt() ? 2 : 1;
  const int64_t contexts =
      prompts * text::kPromptTokens * (model.video.context_dim + model.audio.context_dim);
  const int64_t positions = rank_tokens(sizes, stage) * widths;  // sine and cosine, half each
  const int64_t latents = kLatentCopies * stage_tokens(sizes, stage) * model.video.in_channels;
  return (contexts + positions) * sizes.element_bytes + latents * kFloatBytes;
}

int64_t stage_work_bytes(const ForecastSizes& sizes, const StagePlan& stage) {
  const auto& model = sizes.model;
  const int64_t batch = batch_of(stage);
  const int64_t tiles = stage.method == StageParallel::tiles
                            ? ceil_div(stage.tiles->counts.num_tiles(), sizes.plan.world_size)
                            : 1;
  const int64_t video = rank_tokens(sizes, stage) * model.video.dim();
  const int64_t audio = tiles * sizes.plan.audio.num_tokens() * model.audio.dim();
  const int64_t contexts = tiles * text::kPromptTokens * model.video.context_dim;
  int64_t block = batch * (kBlockWidths * (video + audio) + kContextWidths * contexts);
  if (storage_policy(sizes.job.precision).eight_bit == loader::EightBit::cast)
    block += 4 * model.video.dim() * model.video.dim();  // the layer at work, widened
  // Positions are those of the whole clip before a rank takes its own, except for tiles.
  const int64_t placed =
      stage.method == StageParallel::tiles ? rank_tokens(sizes, stage) : stage_tokens(sizes, stage);
  const int64_t positions = kRopeHalves * placed * model.video.dim() / 2 * kFloatBytes;
  return std::max(block * sizes.element_bytes, positions);
}

int64_t preview_work_bytes(const ForecastSizes& sizes, const StagePlan& stage) {
  diffusion::VideoLatentSize picture = stage.grid.size;
  picture.frames = 1;
  return vae::forecast_decode_bytes(decoder_config(sizes), picture, sizes.element_bytes);
}

int64_t exchange_buffer_bytes(const ForecastSizes& sizes, const StagePlan& stage) {
  const int64_t ranks = group_size(sizes, stage);
  if (stage.method == StageParallel::tiles) {
    int64_t tokens = 0;
    for (const auto& tile : stage.tiles->tiles) tokens += tile.num_tokens();
    return batch_of(stage) * tokens * sizes.model.video.out_channels * sizes.element_bytes;
  }
  if (!has_exchange(sizes, stage)) return 0;
  parallel::SequenceSizes exchange;
  // GPUs reserve room for sp.max_tokens; hosts take pages as they are written.
  exchange.max_tokens = sizes.on_gpu() ? sizes.job.sp.max_tokens : stage_tokens(sizes, stage);
  exchange.max_batch =
      sizes.on_gpu() ? static_cast<int64_t>(stage.guidance.passes.size()) : batch_of(stage);
  exchange.audio_tokens = sizes.plan.audio.num_tokens();
  exchange.dtype = sizes.plan.dtype;
  exchange.text_tokens = shared_text_tokens(sizes.job);
  const auto video = parallel::video_exchange_options(sizes.model, exchange);
  const int64_t slot =
      std::max(video.max_batch * ceil_div(video.max_tokens, ranks) * video.token_bytes,
               video.max_gather_bytes) +
      parallel::text_exchange_options(sizes.model, exchange).max_gather_bytes;
  // Two slots; a rank of a host also has the pages that it wrote for the others.
  return sizes.on_gpu() ? 2 * slot : 2 * slot + 2 * slot * (ranks - 1) / ranks;
}

int64_t upsample_work_bytes(const ForecastSizes& sizes) {
  const auto model =
      upsampler::LatentUpsampler::from_checkpoint(sizes.files.upsampler(), at::kFloat, at::kMeta);
  return kUpsamplerMaps * model.config().mid_channels * sizes.plan.stage_2.grid.size.num_tokens() *
         sizes.element_bytes;
}

int64_t audio_work_bytes(const ForecastSizes& sizes) {
  const auto& file = sizes.files.audio_vae();
  const auto decoder = audio::AudioDecoder::from_checkpoint(file, at::kFloat, at::kMeta);
  const auto vocoder = audio::Vocoder::from_checkpoint(file, at::kMeta);
  const int64_t frames = audio::num_mel_frames(sizes.plan.audio.frames);
  const int64_t maps = kSpectrogramMaps * decoder.config().channels(0) * frames *
                       decoder.format().mel_bins * sizes.element_bytes;
  const auto& config = vocoder.config();
  int64_t elements = generator_elements(config.generator, frames);
  if (config.bandwidth) {
    const int64_t samples = frames * config.generator.samples_per_frame();
    elements = std::max(elements, generator_elements(config.bandwidth->generator,
                                                     samples / config.bandwidth->hop_length));
  }
  return std::max(maps, kVocoderSignals * elements * kFloatBytes);
}

int64_t decode_work_bytes(const ForecastSizes& sizes) {
  const vae::DecoderConfig config = decoder_config(sizes);
  int64_t most = 0;
  for (const vae::TilePlan& tile : sizes.plan.decode.tiles)
    most = std::max(most, vae::forecast_decode_bytes(config, tile, sizes.element_bytes));
  return most;
}

// A driver with one tile has decoded it before the pieces of the others come.
int64_t blend_bytes(const ForecastSizes& sizes) {
  const int64_t tiles = sizes.plan.decode.grid.num_tiles();
  if (tiles == 1) return 0;
  const int64_t blended = kBlendedBatches * frame_run_bytes(sizes);
  return tiles > sizes.plan.world_size ? blended
                                       : std::max<int64_t>(0, blended - decode_work_bytes(sizes));
}

int64_t frame_bytes(const ForecastSizes& sizes) {
  constexpr int64_t kRunsInQueue = 2;
  const io::VideoFormat& format = sizes.plan.format;
  const int64_t clip = format.num_frames * format.height * format.width * kByteChannels;
  return kRunsInQueue * frame_run_bytes(sizes) / kFloatBytes +
         (sizes.job.output.save_frames ? clip : 0);
}

int64_t kept_by_malloc(int64_t work_bytes) {
  return std::min(kLargestKeptBlock, work_bytes / kBuffersOfWork);
}

namespace {

StageExchange tile_exchange(const ForecastSizes& sizes, const StagePlan& stage,
                            StageExchange exchange) {
  if (sizes.plan.world_size == 1) return exchange;
  const int64_t audio = stage.tiles->counts.num_tiles() * sizes.plan.audio.num_tokens() *
                        sizes.model.audio.out_channels * batch_of(stage);
  exchange.method = fmt::format("TDP, one sum over {} ranks", sizes.plan.world_size);
  exchange.largest_call_bytes = exchange_buffer_bytes(sizes, stage) + audio * sizes.element_bytes;
  exchange.step_bytes = exchange.largest_call_bytes * own_passes(stage) / batch_of(stage);
  return exchange;
}

}  // namespace

StageExchange stage_exchange(const ForecastSizes& sizes, const StagePlan& stage) {
  StageExchange exchange{.stage = stage.name};
  if (stage.method == StageParallel::tiles) {
    exchange = tile_exchange(sizes, stage, exchange);
  } else if (has_exchange(sizes, stage)) {
    const int64_t ranks = group_size(sizes, stage);
    const comm::TokenShards shards{stage_tokens(sizes, stage), ranks};
    const int64_t video = sizes.model.video.dim() * sizes.element_bytes;  // of a token
    const int64_t audio = sizes.model.audio.dim() * sizes.element_bytes;
    const int64_t own = shards.count(0);
    const int64_t others = shards.tokens - own;
    const int64_t qkv = own * (3 * video / ranks) * (ranks - 1);
    const int64_t back = others * (video / ranks);
    const int64_t cross_kv = own * (2 * audio / ranks) * (ranks - 1);
    const int64_t gathered = sizes.plan.audio.num_tokens() * (audio / ranks) * (ranks - 1);
    const int64_t text =
        shared_text_tokens(sizes.job) * (2 * (video + audio) / ranks) * (ranks - 1);
    exchange.method = fmt::format("SP over {} ranks", ranks);
    exchange.largest_call_bytes = batch_of(stage) * std::max({qkv, back, cross_kv, gathered, text});
    exchange.step_bytes =
        own_passes(stage) * sizes.model.num_layers * (qkv + back + cross_kv + gathered + text);
  }
  exchange.stage_bytes = exchange.step_bytes * stage.num_steps();
  return exchange;
}

}  // namespace flotilla::pipeline
