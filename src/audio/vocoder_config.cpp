#include "audio/vocoder_config.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "audio/config_values.h"

namespace flotilla::audio {
namespace {

using loader::ConfigReader;

constexpr int64_t kMaxSamplesPerFrame = 1 << 16;
constexpr size_t kDilations = 3;  // pairs of convolutions in a residual block

// A value that the reference demands too: it has no default.
template <typename T>
void expect(const ConfigReader& reader, const std::string& key, T value) {
  reader.get<T>(key);
  reader.require<T>(key, {value});
}

void read_upsampling(const ConfigReader& reader, GeneratorConfig& config) {
  config.upsample_rates = read_sizes(reader, "upsample_rates", {6, 5, 2, 2, 2});
  config.upsample_kernels = read_sizes(reader, "upsample_kernel_sizes", {16, 15, 8, 4, 4});
  bool fits = config.upsample_rates.size() == config.upsample_kernels.size();
  // Only then does a transposed convolution return exactly rate * length samples.
  for (size_t i = 0; fits && i < config.upsample_rates.size(); ++i) {
    const int64_t excess = config.upsample_kernels[i] - config.upsample_rates[i];
    fits = excess >= 0 && excess % 2 == 0;
  }
  if (!fits) {
    fail(ErrorKind::input,
         fmt::format("{}: \"upsample_kernel_sizes\" must have one entry for each of "
                     "\"upsample_rates\", larger by an even number",
                     reader.where()));
  }
  int64_t product = 1;
  for (const int64_t rate : config.upsample_rates) {
    product *= rate;
    if (product > kMaxSamplesPerFrame) {
      reader.fail_value("upsample_rates",
                        fmt::format("must multiply to at most {}", kMaxSamplesPerFrame));
    }
  }
  config.initial_channels = read_size(reader, "upsample_initial_channel", 1024);
  if (config.channels(config.num_levels()) < 1) {
    reader.fail_value("upsample_initial_channel",
                      fmt::format("cannot be halved {} times", config.num_levels()));
  }
}

void read_blocks(const ConfigReader& reader, GeneratorConfig& config) {
  config.block_kernels = read_sizes(reader, "resblock_kernel_sizes", {3, 7, 11});
  for (const int64_t kernel : config.block_kernels) {
    if (kernel % 2 == 0) reader.fail_value("resblock_kernel_sizes", "must be odd");
  }
  const std::string key = "resblock_dilation_sizes";
  if (reader.has(key)) {
    for (const auto& list : reader.raw(key)) {
      config.block_dilations.push_back(parse_sizes(reader, key, list));
    }
  } else {
    config.block_dilations.assign(3, {1, 3, 5});
  }
  const auto complete = [](const std::vector<int64_t>& list) { return list.size() == kDilations; };
  if (config.block_dilations.size() != config.block_kernels.size() ||
      !std::all_of(config.block_dilations.begin(), config.block_dilations.end(), complete)) {
    fail(ErrorKind::input, fmt::format("{}: \"{}\" must have {} dilations for each of "
                                       "\"resblock_kernel_sizes\"",
                                       reader.where(), key, kDilations));
  }
}

GeneratorConfig read_generator(const ConfigReader& reader, GeneratorFamily family) {
  GeneratorConfig config;
  config.family = family;
  expect<bool>(reader, "stereo", true);
  if (family == GeneratorFamily::amp) {
    expect<std::string>(reader, "resblock", "AMP1");
    expect<std::string>(reader, "activation", "snakebeta");
    reader.require<bool>("snake_logscale", {true});
  } else {
    expect<std::string>(reader, "resblock", "1");
  }
  read_upsampling(reader, config);
  read_blocks(reader, config);
  config.final_bias = reader.get<bool>("use_bias_at_final", true);
  const bool tanh = reader.get<bool>("use_tanh_at_final", true);
  config.final_activation = tanh ? FinalActivation::tanh : FinalActivation::clamp;
  return config;
}

BandwidthConfig read_bandwidth(const ConfigReader& reader) {
  BandwidthConfig config;
  // The residual is added before anything is clipped, whatever the generator's own entries say.
  reader.require<bool>("apply_final_activation", {false});
  config.generator = read_generator(reader, GeneratorFamily::amp);
  config.generator.final_activation = FinalActivation::none;
  config.input_sample_rate = read_size(reader, "input_sampling_rate");
  config.output_sample_rate = read_size(reader, "output_sampling_rate");
  config.fft_size = read_size(reader, "n_fft");
  config.hop_length = read_size(reader, "hop_length");
  expect<int64_t>(reader, "num_mels", kVocoderMelBins);

  if (config.output_sample_rate % config.input_sample_rate != 0) {
    reader.fail_value("output_sampling_rate",
                      fmt::format("must be a multiple of {}", config.input_sample_rate));
  }
  if (config.fft_size < config.hop_length) {
    reader.fail_value("n_fft",
                      fmt::format("must not be smaller than the hop of {}", config.hop_length));
  }
  reader.require<int64_t>("win_size", {config.fft_size});
  // Otherwise residual and skip would have different lengths.
  if (config.generator.samples_per_frame() != config.hop_length * config.ratio()) {
    reader.fail_value(
        "upsample_rates",
        fmt::format("must multiply to {} ({} samples a hop, rate x{})",
                    config.hop_length * config.ratio(), config.hop_length, config.ratio()));
  }
  return config;
}

}  // namespace

int64_t GeneratorConfig::samples_per_frame() const {
  return std::accumulate(upsample_rates.begin(), upsample_rates.end(), int64_t{1},
                         std::multiplies<>());
}

VocoderConfig VocoderConfig::from_json(const ConfigReader& vocoder) {
  VocoderConfig config;
  if (!vocoder.has("bwe")) {
    config.generator = read_generator(vocoder, GeneratorFamily::hifi_gan);
    config.generator_sample_rate = read_size(vocoder, "output_sampling_rate", 24000);
    vocoder.require<bool>("apply_final_activation", {true});
    return config;
  }
  const ConfigReader generator = vocoder.object("vocoder");
  config.generator = read_generator(generator, GeneratorFamily::amp);
  generator.require<bool>("apply_final_activation", {true});
  config.bandwidth = read_bandwidth(vocoder.object("bwe"));
  config.generator_sample_rate = config.bandwidth->input_sample_rate;
  return config;
}

int64_t VocoderConfig::sample_rate() const {
  return bandwidth ? bandwidth->output_sample_rate : generator_sample_rate;
}

int64_t VocoderConfig::num_samples(int64_t mel_frames) const {
  const int64_t low_rate = mel_frames * generator.samples_per_frame();
  return bandwidth ? low_rate * bandwidth->ratio() : low_rate;
}

}  // namespace flotilla::audio
