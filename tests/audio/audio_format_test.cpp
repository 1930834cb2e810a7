// Counts and rates of sound.
#include "audio/audio_format.h"

#include <gtest/gtest.h>

namespace flotilla::audio {
namespace {

nlohmann::json small_config() {
  return nlohmann::json::parse(R"({
    "model": {"params": {"sampling_rate": 16000, "ddconfig": {"mel_bins": 64, "z_channels": 8}}},
    "preprocessing": {"stft": {"hop_length": 160, "causal": true},
                      "mel": {"n_mel_channels": 32}}})");
}

AudioFormat read(const nlohmann::json& json) {
  return AudioFormat::from_json(loader::ConfigReader(json, "test"));
}

TEST(AudioFormatTest, TellsHowLatentsLieInTime) {
  nlohmann::json config = small_config();
  config["preprocessing"]["stft"]["hop_length"] = 320;
  const diffusion::AudioTiming timing = read(config).timing();
  EXPECT_EQ(timing.sample_rate, 16000);
  EXPECT_EQ(timing.hop_length, 320);
  EXPECT_EQ(timing.downsample, 4);
  EXPECT_TRUE(timing.causal);
}

TEST(AudioFormatTest, CountsMelFrames) {
  EXPECT_EQ(num_mel_frames(1), 1);
  EXPECT_EQ(num_mel_frames(126), 501);
}

TEST(AudioFormatTest, DescribesTokens) {
  const AudioFormat format = read(small_config());
  EXPECT_EQ(format.latent_bins(), 16);
  EXPECT_EQ(format.token_channels(), 128);
}

TEST(AudioFormatTest, LooksForMelBinsInThreePlaces) {
  nlohmann::json config = small_config();
  config["variables"]["mel_bins"] = 16;
  EXPECT_EQ(read(config).mel_bins, 64);
  config["model"]["params"]["ddconfig"].erase("mel_bins");
  EXPECT_EQ(read(config).mel_bins, 32);
  config["preprocessing"].erase("mel");
  EXPECT_EQ(read(config).mel_bins, 16);
  config.erase("variables");
  EXPECT_THROW(read(config), Error);
}

TEST(AudioFormatTest, RefusesImpossibleValues) {
  const std::vector<std::pair<std::string, nlohmann::json>> bad = {
      {"/model/params/sampling_rate", 0},        {"/model/params/sampling_rate", "16 kHz"},
      {"/model/params/ddconfig/z_channels", -8}, {"/model/params/ddconfig/mel_bins", 62},
      {"/preprocessing/stft/hop_length", 0},     {"/preprocessing/stft/causal", false},
      {"/model/params/ddconfig", nullptr},
  };
  for (const auto& [pointer, value] : bad) {
    nlohmann::json config = small_config();
    config[nlohmann::json::json_pointer(pointer)] = value;
    EXPECT_THROW(read(config), Error) << pointer << " = " << value;
  }
}

}  // namespace
}  // namespace flotilla::audio
