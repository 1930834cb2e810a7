#include "vae/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace flotilla::vae {
namespace {

using loader::ConfigReader;

enum class Side { encoder, decoder };

constexpr const char* kClassName = "CausalVideoAutoencoder";

// How a block name is built. `multiplier` is the default of the reference for the key of that name.
struct BlockName {
  Side side;
  const char* name;
  BlockKind kind;
  std::array<int64_t, 3> stride;
  int64_t multiplier;
  bool reads_multiplier;
};

constexpr BlockName kBlockNames[] = {
    {Side::encoder, "res_x", BlockKind::residual, {1, 1, 1}, 1, false},
    {Side::encoder, "res_x_y", BlockKind::residual_widen, {1, 1, 1}, 2, true},
    {Side::encoder, "compress_time", BlockKind::strided, {2, 1, 1}, 1, false},
    {Side::encoder, "compress_space", BlockKind::strided, {1, 2, 2}, 1, false},
    {Side::encoder, "compress_all", BlockKind::strided, {2, 2, 2}, 1, false},
    {Side::encoder, "compress_all_x_y", BlockKind::strided, {2, 2, 2}, 2, true},
    {Side::encoder, "compress_time_res", BlockKind::fold, {2, 1, 1}, 2, true},
    {Side::encoder, "compress_space_res", BlockKind::fold, {1, 2, 2}, 2, true},
    {Side::encoder, "compress_all_res", BlockKind::fold, {2, 2, 2}, 2, true},
    {Side::decoder, "res_x", BlockKind::residual, {1, 1, 1}, 1, false},
    {Side::decoder, "res_x_y", BlockKind::residual_widen, {1, 1, 1}, 2, true},
    {Side::decoder, "compress_time", BlockKind::unfold, {2, 1, 1}, 1, true},
    {Side::decoder, "compress_space", BlockKind::unfold, {1, 2, 2}, 1, true},
    {Side::decoder, "compress_all", BlockKind::unfold, {2, 2, 2}, 1, true},
};

const BlockName& find_block(Side side, const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (const BlockName& candidate : kBlockNames) {
    if (candidate.side != side) continue;
    if (name == candidate.name) return candidate;
    known.emplace_back(candidate.name);
  }
  fail(ErrorKind::input, fmt::format("{}: block \"{}\" is not implemented; implemented: {}", where,
                                     name, fmt::join(known, ", ")));
}

// Far above any real model, and small enough that nothing is built for minutes from a bad number.
constexpr int64_t kMaxSize = 1 << 16;

void check_size(const ConfigReader& reader, const std::string& key, int64_t value) {
  if (value < 1 || value > kMaxSize)
    reader.fail_value(key, fmt::format("must be 1 to {}", kMaxSize));
}

void read_block_options(const BlockName& known, const ConfigReader& options, BlockConfig& block) {
  if (block.kind == BlockKind::residual) {
    block.num_layers = options.get<int64_t>("num_layers");
    check_size(options, "num_layers", block.num_layers);
  }
  if (known.reads_multiplier) {
    block.multiplier = options.get<int64_t>("multiplier", known.multiplier);
    if (options.has("multiplier")) check_size(options, "multiplier", block.multiplier);
  }
  if (known.side == Side::decoder) options.require<bool>("inject_noise", {false});
  // The reference looks at "residual" in compress_all only.
  if (block.kind == BlockKind::unfold && block.name == "compress_all") {
    block.skip = options.get<bool>("residual", false);
  }
}

// One entry: ["res_x", 4] or ["res_x", {"num_layers": 4}].
BlockConfig read_block(const nlohmann::json& entry, Side side, const std::string& where) {
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string()) {
    fail(ErrorKind::input, fmt::format("{}: expected [name, options]", where));
  }
  BlockConfig block;
  block.name = entry[0].get<std::string>();
  const BlockName& known = find_block(side, block.name, where);
  block.kind = known.kind;
  block.stride = known.stride;
  const bool is_count = entry[1].is_number_integer();
  const nlohmann::json options = is_count ? nlohmann::json{{"num_layers", entry[1]}} : entry[1];
  read_block_options(known, ConfigReader(options, fmt::format("{} ({})", where, block.name)),
                     block);
  return block;
}

std::vector<BlockConfig> read_blocks(const ConfigReader& reader, const std::string& key,
                                     Side side) {
  const std::string where = reader.where() + "." + key;
  if (!reader.has(key)) fail(ErrorKind::input, where + " is missing");
  if (!reader.raw(key).is_array()) reader.fail_value(key, "is not a list");
  std::vector<BlockConfig> blocks;
  for (const auto& entry : reader.raw(key)) {
    blocks.push_back(read_block(entry, side, fmt::format("{}[{}]", where, blocks.size())));
  }
  return blocks;
}

SpatialPadding read_padding(const ConfigReader& reader, const std::string& key) {
  reader.require<std::string>(key, {"zeros", "reflect"});
  return reader.get<std::string>(key) == "zeros" ? SpatialPadding::zeros : SpatialPadding::reflect;
}

int64_t read_size(const ConfigReader& reader, const std::string& key, int64_t otherwise) {
  const int64_t value = reader.get<int64_t>(key, otherwise);
  if (reader.has(key)) check_size(reader, key, value);
  return value;
}

// Switches of the model family that change the result and are not implemented.
void require_common(const ConfigReader& reader) {
  reader.require<int64_t>("dims", {3});
  reader.require<std::string>("norm_layer", {"pixel_norm"});
  reader.require<bool>("use_quant_conv", {false});
  reader.require<bool>("normalize_latent_channels", {false});
}

// means and log-variances share conv_out; only the means are used.
int64_t read_variance_channels(const ConfigReader& reader, int64_t latent_channels) {
  reader.require<std::string>("latent_log_var", {"uniform", "constant", "per_channel"});
  const bool per_channel =
      reader.get<std::string>("latent_log_var", std::string("uniform")) == "per_channel";
  return per_channel ? latent_channels : 1;
}

diffusion::ScaleFactors scale_of(const std::vector<BlockConfig>& blocks, int64_t patch_size) {
  diffusion::ScaleFactors scale{1, patch_size, patch_size};
  for (const BlockConfig& block : blocks) {
    scale.time *= block.stride[0];
    scale.height *= block.stride[1];
    scale.width *= block.stride[2];
  }
  return scale;
}

int64_t cells(const BlockConfig& block) {
  return block.stride[0] * block.stride[1] * block.stride[2];
}

// Channels behind `block`; refuses lists whose channels do not divide.
int64_t checked_channels(const BlockConfig& block, int64_t channels, const std::string& where) {
  const int64_t n = cells(block);
  bool divides = true;
  int64_t out = channels;
  if (block.kind == BlockKind::unfold) {
    out = channels / block.multiplier;
    const bool skip_divides = channels % n == 0 && n % block.multiplier == 0;
    divides = channels % block.multiplier == 0 && (!block.skip || skip_divides);
  } else if (block.kind == BlockKind::fold) {
    out = channels * block.multiplier;
    divides = out % n == 0 && (channels * n) % out == 0;
  } else {
    out = channels * block.multiplier;
  }
  if (!divides) {
    fail(ErrorKind::input,
         fmt::format("{}: block \"{}\" with multiplier {} does not divide {} channels", where,
                     block.name, block.multiplier, channels));
  }
  return out;
}

}  // namespace

EncoderConfig EncoderConfig::from_json(const ConfigReader& vae) {
  const bool nested = vae.has("encoder");
  const ConfigReader reader = nested ? vae.object("encoder") : vae;
  require_common(vae);
  require_common(reader);
  EncoderConfig config;
  // In a flat configuration in_channels is RGB too, but out_channels belongs to the decoder.
  config.pixel_channels = read_size(reader, "in_channels", 3);
  config.latent_channels = read_size(vae, "latent_channels", 128);
  if (nested) config.latent_channels = read_size(reader, "out_channels", config.latent_channels);
  config.patch_size = read_size(reader, "patch_size", 4);
  config.variance_channels = read_variance_channels(reader, config.latent_channels);
  if (reader.has("spatial_padding_mode")) {
    config.padding = read_padding(reader, "spatial_padding_mode");
  } else if (vae.has("encoder_spatial_padding_mode")) {
    config.padding = read_padding(vae, "encoder_spatial_padding_mode");
  }
  const bool short_name = nested && reader.has("blocks");
  config.blocks = read_blocks(reader, short_name ? "blocks" : "encoder_blocks", Side::encoder);
  int64_t channels = config.latent_channels;
  for (const BlockConfig& block : config.blocks) {
    channels = checked_channels(block, channels, reader.where());
  }
  return config;
}

diffusion::ScaleFactors EncoderConfig::scale() const { return scale_of(blocks, patch_size); }

DecoderConfig DecoderConfig::from_json(const ConfigReader& vae) {
  // Newer files hold a diffusion decoder under another class name.
  vae.require<std::string>("_class_name", {kClassName});
  require_common(vae);
  // Absent counts as true in the reference.
  if (vae.get<bool>("timestep_conditioning", true)) {
    vae.fail_value("timestep_conditioning", "means true, which is not implemented");
  }
  DecoderConfig config;
  config.pixel_channels = read_size(vae, "out_channels", 3);
  config.latent_channels = read_size(vae, "latent_channels", 128);
  config.patch_size = read_size(vae, "patch_size", 4);
  config.base_channels = read_size(vae, "decoder_base_channels", 128);
  config.causal = vae.get<bool>("causal_decoder", false);
  if (vae.has("spatial_padding_mode")) config.padding = read_padding(vae, "spatial_padding_mode");
  config.blocks = read_blocks(vae, "decoder_blocks", Side::decoder);
  std::reverse(config.blocks.begin(), config.blocks.end());
  int64_t channels = config.bottleneck_channels();
  for (const BlockConfig& block : config.blocks) {
    // residual_widen narrows here: the decoder runs the list backwards.
    channels = block.kind == BlockKind::residual_widen
                   ? channels / block.multiplier
                   : checked_channels(block, channels, vae.where());
  }
  return config;
}

diffusion::ScaleFactors DecoderConfig::scale() const { return scale_of(blocks, patch_size); }

int64_t DecoderConfig::bottleneck_channels() const {
  int64_t channels = base_channels;
  for (const BlockConfig& block : blocks) channels *= block.multiplier;
  return channels;
}

VaeLocation locate_vae(const loader::Checkpoint& checkpoint) {
  const bool in_monolith = checkpoint.has_prefix("vae.");
  if (!in_monolith && !checkpoint.has_prefix("decoder.") && !checkpoint.has_prefix("encoder.")) {
    fail(ErrorKind::input,
         fmt::format(
             "\"{}\" holds no video VAE (no tensor \"vae.*\", \"encoder.*\" or \"decoder.*\")",
             checkpoint.path().string()));
  }
  const std::string where = checkpoint.path().filename().string() + ": config";
  const ConfigReader top(checkpoint.config(), where);
  const bool on_top = !top.has("vae") && !in_monolith;
  return {in_monolith ? "vae." : "", on_top ? top : top.object("vae")};
}

}  // namespace flotilla::vae
