// Behaviour of decoder and vocoders that no golden number shows, and what they refuse: values of
// the configuration, tensors of the file, shapes of the input.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "audio/vocoder.h"
#include "loader/sparse_checkpoint.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace flotilla::audio {
namespace {

using test::all_close;
using test::open_tiny;
using test::same_bytes;

using TensorMap = std::map<std::string, loader::TensorInfo>;

// The sound models of a tiny checkpoint without their weights, to be changed and read again.
struct Draft {
  explicit Draft(const std::string& tiny) {
    const auto original = open_tiny(tiny);
    config = original->config();
    for (const auto& [name, info] : original->tensors()) {
      if (name.starts_with("audio_vae.") || name.starts_with("vocoder."))
        tensors.emplace(name, info);
    }
  }
  std::shared_ptr<const loader::Checkpoint> open() const {
    const auto path = folder / "draft.safetensors";
    loader::write_sparse_checkpoint(path, tensors, {{"config", config.dump()}});
    return loader::Checkpoint::open(path);
  }
  nlohmann::json& at(const std::string& pointer) {
    return config[nlohmann::json::json_pointer(pointer)];
  }

  test::TempDir folder;
  nlohmann::json config;
  TensorMap tensors;
};

void audit_decoder(const Draft& draft) {
  AudioDecoder::from_checkpoint(draft.open(), at::kFloat, at::kMeta);
}
void audit_vocoder(const Draft& draft) { Vocoder::from_checkpoint(draft.open(), at::kMeta); }

// The message of the input error that `body` throws; a failed expectation when it does not.
template <typename Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

struct BadValue {
  std::string pointer;
  nlohmann::json value;
};

TEST(AudioDecoderTest, RefusesConfigurationsThatItDoesNotImplement) {
  const std::string ddconfig = "/audio_vae/model/params/ddconfig/";
  const std::vector<BadValue> bad = {
      {ddconfig + "norm_type", "group"},      {ddconfig + "causality_axis", "width"},
      {ddconfig + "causality_axis", nullptr}, {ddconfig + "mid_block_add_attention", true},
      {ddconfig + "attn_resolutions", {64}},  {ddconfig + "ch_mult", {1, 1}},
      {ddconfig + "ch_mult", {1, 0, 1}},      {ddconfig + "num_res_blocks", -1},
      {ddconfig + "num_res_blocks", 1000000}, {ddconfig + "resamp_with_conv", false},
      {ddconfig + "tanh_out", true},          {ddconfig + "out_ch", 1},
  };
  for (const auto& [pointer, value] : bad) {
    Draft draft("audio-vae-small.safetensors");
    draft.at(ddconfig + "resolution") = 256;
    draft.at(pointer) = value;
    const std::string key = pointer.substr(pointer.rfind('/') + 1);
    const std::string text = refusal([&] { audit_decoder(draft); });
    // Attention is refused by the resolution that would have it.
    expect_contains(text, key == "attn_resolutions" ? "attention at resolution 64" : key);
  }
}

TEST(AudioDecoderTest, TakesAbsentMiddleAttentionForAttention) {
  Draft draft("audio-vae-small.safetensors");
  draft.at("/audio_vae/model/params/ddconfig").erase("mid_block_add_attention");
  expect_contains(refusal([&] { audit_decoder(draft); }), "mid_block_add_attention");
}

TEST(AudioDecoderTest, NamesWrongTensors) {
  Draft draft("audio-vae-small.safetensors");
  audit_decoder(draft);
  draft.tensors.erase("audio_vae.decoder.conv_in.conv.bias");
  draft.tensors.at("audio_vae.per_channel_statistics.mean-of-means").shape = {3};
  draft.tensors.emplace("audio_vae.decoder.mid.attn_1.q.bias", loader::TensorInfo{at::kFloat, {4}});
  const std::string text = refusal([&] { audit_decoder(draft); });
  expect_contains(text, "audio_vae.decoder.conv_in.conv.bias");
  expect_contains(text, "audio_vae.per_channel_statistics.mean-of-means is [3]");
  expect_contains(text, "audio_vae.decoder.mid.attn_1.q.bias");
}

TEST(AudioDecoderTest, LeavesEncoderAndTrainingStatisticsAlone) {
  Draft draft("audio-vae-small.safetensors");
  draft.tensors.emplace("audio_vae.encoder.conv_in.conv.bias", loader::TensorInfo{at::kFloat, {4}});
  draft.tensors.emplace("audio_vae.per_channel_statistics.mean-of-stds",
                        loader::TensorInfo{at::kFloat, {4}});
  EXPECT_NO_THROW(audit_decoder(draft));
}

class AudioDecoderShapeTest : public ::testing::Test {
 protected:
  at::Tensor random_latent(int64_t batch, int64_t frames) const {
    at::manual_seed(7);
    const AudioFormat& format = decoder_.format();
    return at::randn({batch, format.latent_channels, frames, format.latent_bins()});
  }

  AudioDecoder decoder_ =
      AudioDecoder::from_checkpoint(open_tiny("audio-vae-small.safetensors"), at::kFloat, at::kCPU);
};

TEST_F(AudioDecoderShapeTest, NeverLooksAhead) {
  const at::Tensor latent = random_latent(1, 6);
  at::Tensor changed = latent.clone();
  changed.select(2, 5).add_(1);
  const int64_t before = num_mel_frames(5);
  const at::Tensor mel = decoder_.decode(latent), mel_changed = decoder_.decode(changed);
  EXPECT_TRUE(all_close(mel_changed.narrow(2, 0, before), mel.narrow(2, 0, before), 1e-5));
  EXPECT_GT((mel_changed - mel).abs().max().item<float>(), 1e-2);
}

TEST_F(AudioDecoderShapeTest, KeepsBatchItemsApart) {
  const at::Tensor latent = random_latent(2, 3);
  EXPECT_TRUE(all_close(decoder_.decode(latent)[1], decoder_.decode(latent.slice(0, 1))[0], 1e-5));
}

TEST_F(AudioDecoderShapeTest, RefusesOtherLatents) {
  const at::Tensor latent = random_latent(1, 3);
  for (const at::Tensor& bad :
       {latent[0], latent.slice(3, 1), latent.slice(2, 0, 0), at::cat({latent, latent}, 1)}) {
    expect_contains(refusal([&] { decoder_.decode(bad); }), "an audio latent is [");
  }
}

TEST_F(AudioDecoderShapeTest, RunsInHalfPrecision) {
  const auto half = AudioDecoder::from_checkpoint(open_tiny("audio-vae-small.safetensors"),
                                                  at::kBFloat16, at::kCPU);
  const at::Tensor latent = random_latent(1, 4);
  const at::Tensor mel = half.decode(latent);
  EXPECT_EQ(mel.scalar_type(), at::kBFloat16);
  const at::Tensor expected = decoder_.decode(latent);
  // Eight bits of mantissa through twenty layers: a few percent of the spread.
  EXPECT_TRUE(all_close(mel.to(at::kFloat), expected, 0.1 * expected.std().item<double>(), 0.05));
}

TEST(VocoderTest, RefusesConfigurationsThatItDoesNotImplement) {
  const std::string main = "/vocoder/vocoder/", bwe = "/vocoder/bwe/";
  const std::vector<BadValue> bad = {
      {main + "resblock", "1"},
      {main + "resblock", nullptr},
      {main + "stereo", false},
      {main + "activation", "snake"},
      {main + "snake_logscale", false},
      {main + "upsample_rates", {5, 2}},
      {main + "upsample_rates", "5"},
      {main + "upsample_rates", std::vector<int64_t>(16, 60000)},
      {main + "upsample_kernel_sizes", {12, 4, 4, 4, 4, 4}},
      {main + "upsample_initial_channel", 1},
      {main + "resblock_kernel_sizes", {3, 6, 11}},
      {main + "resblock_dilation_sizes", {{1, 3}, {1, 3}, {1, 3}}},
      {main + "resblock_dilation_sizes", {{1, 3, 5}}},
      {main + "resblock_dilation_sizes", {{1, 3, 0}, {1, 3, 5}, {1, 3, 5}}},
      {main + "resblock_dilation_sizes", {{1, 3, 2.5}, {1, 3, 5}, {1, 3, 5}}},
      {main + "apply_final_activation", false},
      {bwe + "apply_final_activation", true},
      {bwe + "num_mels", 80},
      {bwe + "n_fft", 1},
      {bwe + "win_size", 3},
      {bwe + "hop_length", 7},
      {bwe + "input_sampling_rate", nullptr},
      {bwe + "output_sampling_rate", 44101},
  };
  for (const auto& [pointer, value] : bad) {
    Draft draft("ltx23-dev.safetensors");
    draft.at(pointer) = value;
    const std::string key = pointer.substr(pointer.rfind('/') + 1);
    const std::string text = refusal([&] { audit_vocoder(draft); });
    // A hop that does not go with the rates is told at the rates.
    expect_contains(text, key == "hop_length" ? "upsample_rates" : key);
  }
}

TEST(VocoderTest, NamesADefaultThatDoesNotFit) {
  Draft draft("ltx23-dev.safetensors");
  draft.at("/vocoder/bwe").erase("upsample_rates");
  draft.at("/vocoder/bwe").erase("upsample_kernel_sizes");
  draft.at("/vocoder/bwe/hop_length") = 7;
  const std::string text = refusal([&] { audit_vocoder(draft); });
  expect_contains(text, "\"upsample_rates\": (absent)");
}

TEST(VocoderTest, RefusesAmpBlocksInFlatConfiguration) {
  Draft draft("ltx20-dev.safetensors");
  audit_vocoder(draft);
  draft.at("/vocoder/resblock") = "AMP1";
  expect_contains(refusal([&] { audit_vocoder(draft); }), "resblock");
}

TEST(VocoderTest, NamesWrongTensors) {
  Draft draft("ltx23-dev.safetensors");
  draft.tensors.erase("vocoder.vocoder.act_post.act.beta");
  draft.tensors.at("vocoder.mel_stft.mel_basis").shape = {3, 3};
  draft.tensors.emplace("vocoder.vocoder.conv_post.bias", loader::TensorInfo{at::kFloat, {2}});
  const std::string text = refusal([&] { audit_vocoder(draft); });
  expect_contains(text, "vocoder.vocoder.act_post.act.beta");
  expect_contains(text, "vocoder.mel_stft.mel_basis is [3, 3]");
  expect_contains(text, "vocoder.vocoder.conv_post.bias");
}

TEST(VocoderTest, RefusesOtherSpectrograms) {
  const auto vocoder = Vocoder::from_checkpoint(open_tiny("ltx20-dev.safetensors"), at::kCPU);
  const int64_t bins = kVocoderMelBins;
  for (const at::Tensor& bad : {at::zeros({2, 5, bins}), at::zeros({1, 1, 5, bins}),
                                at::zeros({1, 2, 5, bins + 1}), at::zeros({1, 2, 0, bins})}) {
    expect_contains(refusal([&] { vocoder.synthesize(bad); }), "a mel spectrogram is [");
  }
}

TEST(VocoderTest, ComputesInFloatWhateverComesIn) {
  at::manual_seed(8);
  const auto vocoder = Vocoder::from_checkpoint(open_tiny("ltx23-dev.safetensors"), at::kCPU);
  const at::Tensor mel = at::randn({1, kChannels, 3, kVocoderMelBins}).to(at::kBFloat16);
  const at::Tensor sound = vocoder.synthesize(mel).samples;
  EXPECT_EQ(sound.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bytes(sound, vocoder.synthesize(mel.to(at::kFloat)).samples));
}

TEST(VocoderTest, KeepsBatchItemsApart) {
  at::manual_seed(9);
  const auto vocoder = Vocoder::from_checkpoint(open_tiny("ltx23-dev.safetensors"), at::kCPU);
  const at::Tensor mel = at::randn({2, kChannels, 3, kVocoderMelBins});
  const at::Tensor both = vocoder.synthesize(mel).samples;
  EXPECT_TRUE(all_close(both.slice(0, 1), vocoder.synthesize(mel.slice(0, 1)).samples, 1e-3));
}

// No shipped generator ends inside a hop, so this is the only look at the padding.
TEST(BandwidthTest, CutsOffWhatItAddedToFillAHop) {
  const auto vocoder = Vocoder::from_checkpoint(open_tiny("ltx23-dev.safetensors"), at::kCPU);
  const BandwidthConfig& config = *vocoder.config().bandwidth;
  const BandwidthWeights& weights = *vocoder.weights().bandwidth;
  at::manual_seed(10);
  const at::Tensor sound = at::randn({1, kChannels, 5 * config.hop_length - 13}) * 0.1;
  const at::Tensor filled = at::constant_pad_nd(sound, {0, 13});
  const at::Tensor expected = extend_bandwidth(config, weights, filled);
  const at::Tensor actual = extend_bandwidth(config, weights, sound);
  EXPECT_EQ(actual.size(2), config.ratio() * sound.size(2));
  EXPECT_TRUE(same_bytes(actual, expected.slice(2, 0, actual.size(2))));
}

TEST(CheckFitsTest, RefusesAVocoderOfAnotherSpeed) {
  const auto decoder =
      AudioDecoder::from_checkpoint(open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kMeta);
  for (const std::string file : {"ltx23-dev.safetensors", "ltx20-dev.safetensors"}) {
    VocoderConfig vocoder = Vocoder::from_checkpoint(open_tiny(file), at::kMeta).config();
    EXPECT_NO_THROW(check_fits(decoder.config(), vocoder));
    vocoder.generator_sample_rate *= 2;
    expect_contains(refusal([&] { check_fits(decoder.config(), vocoder); }), "wrong speed");
  }
}

TEST(CheckFitsTest, RefusesOtherMelBins) {
  AudioDecoderConfig decoder;
  decoder.format.mel_bins = 2 * kVocoderMelBins;
  expect_contains(refusal([&] { check_fits(decoder, VocoderConfig{}); }), "mel bins");
}

}  // namespace
}  // namespace flotilla::audio
