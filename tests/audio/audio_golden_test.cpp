// Audio decoder and vocoders against numbers made with the LTX-2 Python reference, commit 400fd31:
// whole models, and their stages one by one, each fed with the reference's own input.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "audio/vocoder.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::audio {
namespace {

using test::all_close;
using test::Golden;
using test::open_tiny;

// Log-mel values near the floor of the logarithm magnify the last bits of a sum.
constexpr double kAtolBandwidth = 1e-3;
constexpr double kAtol = 2e-5;

struct DecoderCase {
  std::string golden;
  std::string checkpoint;
  double atol;
};
// So that a failing case shows its name rather than its bytes.
void PrintTo(const DecoderCase& one, std::ostream* out) { *out << one.golden; }

class AudioDecoderGoldenTest : public ::testing::TestWithParam<DecoderCase> {
 protected:
  Golden golden_{GetParam().golden};
  AudioDecoder decoder_ =
      AudioDecoder::from_checkpoint(open_tiny(GetParam().checkpoint), at::kFloat, at::kCPU);
  double atol_ = GetParam().atol;
};

TEST_P(AudioDecoderGoldenTest, UndoesStatistics) {
  EXPECT_TRUE(all_close(decoder_.denormalize(golden_["latent"]), golden_["denormalized"], atol_));
}

TEST_P(AudioDecoderGoldenTest, ConvolvesCausally) {
  EXPECT_TRUE(
      all_close(decoder_.conv_in(golden_["denormalized"]), golden_["after_conv_in"], atol_));
}

TEST_P(AudioDecoderGoldenTest, DecodesToMel) {
  const at::Tensor mel = decoder_.decode(golden_["latent"]);
  EXPECT_TRUE(all_close(mel, golden_["mel"], atol_));
  EXPECT_EQ(mel.size(2), num_mel_frames(golden_["latent"].size(2)));
}

TEST_P(AudioDecoderGoldenTest, DecodesOneLatentFrame) {
  EXPECT_TRUE(all_close(decoder_.decode(golden_["latent1"]), golden_["mel1"], atol_));
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, AudioDecoderGoldenTest,
    ::testing::Values(DecoderCase{"audio_audio_vae_small", "audio-vae-small.safetensors", kAtol},
                      DecoderCase{"audio_ltx23_dev", "ltx23-dev.safetensors", kAtolBandwidth}));

class BandwidthVocoderGoldenTest : public ::testing::Test {
 protected:
  const BandwidthConfig& config() const { return *vocoder_.config().bandwidth; }
  const BandwidthWeights& weights() const { return *vocoder_.weights().bandwidth; }

  Golden golden_{"audio_ltx23_dev"};
  Vocoder vocoder_ = Vocoder::from_checkpoint(open_tiny("ltx23-dev.safetensors"), at::kCPU);
};

TEST_F(BandwidthVocoderGoldenTest, FiltersAroundTheActivation) {
  const auto& snake = vocoder_.weights().generator.blocks.front().front().before_dilated.front();
  EXPECT_TRUE(
      all_close(apply_snake(golden_["amp_act.x"], snake), golden_["amp_act.y"], kAtolBandwidth));
}

TEST_F(BandwidthVocoderGoldenTest, GeneratesTheLowBand) {
  EXPECT_TRUE(all_close(vocoder_.generate(golden_["mel"]), golden_["waveform16k"], kAtolBandwidth));
}

TEST_F(BandwidthVocoderGoldenTest, MeasuresTheLowBand) {
  const at::Tensor padded = pad_to_hops(config(), golden_["waveform16k"]);
  EXPECT_TRUE(all_close(log_mel(config(), weights(), padded), golden_["bwe.mel"], kAtolBandwidth));
}

TEST_F(BandwidthVocoderGoldenTest, GeneratesTheResidual) {
  const at::Tensor residual =
      run_generator(config().generator, weights().generator, golden_["bwe.mel"]);
  EXPECT_TRUE(all_close(residual, golden_["bwe.residual"], kAtolBandwidth));
}

TEST_F(BandwidthVocoderGoldenTest, ComputesTheResamplingFilter) {
  const at::Tensor expected = golden_["resampler.filter"];
  EXPECT_TRUE(all_close(make_resample_filter(config().ratio()).view_as(expected), expected,
                        kAtolBandwidth));
}

TEST_F(BandwidthVocoderGoldenTest, ResamplesTheLowBand) {
  const at::Tensor padded = pad_to_hops(config(), golden_["waveform16k"]);
  EXPECT_TRUE(
      all_close(resample(config(), weights(), padded), golden_["bwe.skip"], kAtolBandwidth));
}

TEST_F(BandwidthVocoderGoldenTest, SynthesizesBothBands) {
  for (const std::string prefix : {"", "odd."}) {
    const at::Tensor mel = golden_[prefix + "mel"];
    const Waveform sound = vocoder_.synthesize(mel);
    EXPECT_TRUE(all_close(sound.samples, golden_[prefix + "waveform48k"], kAtolBandwidth))
        << prefix;
    EXPECT_EQ(sound.samples.size(2), vocoder_.config().num_samples(mel.size(2)));
    EXPECT_EQ(sound.sample_rate, config().output_sample_rate);
  }
}

TEST_F(BandwidthVocoderGoldenTest, DecodesLatentsToSound) {
  const auto decoder =
      AudioDecoder::from_checkpoint(open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU);
  check_fits(decoder.config(), vocoder_.config());
  const Waveform sound = decode_audio(decoder, vocoder_, golden_["latent"]);
  EXPECT_TRUE(all_close(sound.samples, golden_["waveform48k"], kAtolBandwidth));
}

TEST(HifiGanVocoderGoldenTest, Synthesizes) {
  const Golden golden("audio_vocoder_ltx20");
  const auto vocoder = Vocoder::from_checkpoint(open_tiny("ltx20-dev.safetensors"), at::kCPU);
  const Waveform sound = vocoder.synthesize(golden["mel"]);
  EXPECT_TRUE(all_close(sound.samples, golden["waveform24k"], kAtol));
  EXPECT_EQ(sound.samples.size(2), vocoder.config().num_samples(golden["mel"].size(2)));
  EXPECT_EQ(sound.sample_rate, vocoder.config().generator_sample_rate);
}

}  // namespace
}  // namespace flotilla::audio
