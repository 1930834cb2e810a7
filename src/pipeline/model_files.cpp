#include "pipeline/model_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>

#include "audio/audio_format.h"
#include "audio/vocoder.h"
#include "base/error.h"
#include "loader/file_time.h"
#include "pipeline/precision.h"
#include "text/gemma_folder.h"
#include "text/prompt_encoder.h"
#include "text/prompt_enhancer.h"
#include "transformer/transformer.h"
#include "upsampler/latent_upsampler.h"
#include "vae/decoder.h"
#include "vae/encoder.h"

namespace flotilla::pipeline {
namespace {

// One end of the way of a latent between two models.
struct Port {
  std::string_view name;
  const CheckpointPtr& file;
  int64_t channels;
};

void check_fit(const Port& one, const Port& other) {
  if (one.channels == other.channels) return;
  fail(ErrorKind::input,
       fmt::format("{} of \"{}\" has {} channels, {} of \"{}\" has {}; the files are of different "
                   "models",
                   one.name, one.file->path().string(), one.channels, other.name,
                   other.file->path().string(), other.channels));
}

void check_video_fit(const ModelFiles& files, const transformer::TransformerConfig& model,
                     int64_t vae_channels) {
  const Port latent{"the latent of the video VAE", files.video_vae(), vae_channels};
  check_fit(latent,
            {"the video input of the transformer", files.transformer(), model.video.in_channels});
  check_fit(latent,
            {"the video output of the transformer", files.transformer(), model.video.out_channels});
}

// The transformer computes with sound tokens also where the job wants no sound.
void check_audio_fit(const ModelFiles& files, const transformer::TransformerConfig& model) {
  const loader::ConfigReader reader(files.audio_vae()->config(),
                                    files.audio_vae()->path().string() + ": config");
  const auto format = audio::AudioFormat::from_json(reader.object("audio_vae"));
  const Port token{"a token (channels x frequency bins) of the audio VAE", files.audio_vae(),
                   format.token_channels()};
  check_fit(token,
            {"the audio input of the transformer", files.transformer(), model.audio.in_channels});
  check_fit(token,
            {"the audio output of the transformer", files.transformer(), model.audio.out_channels});
}

// Both stages of the pipelines are a factor of two apart.
void check_upsampler(const ModelFiles& files, int64_t vae_channels) {
  const auto upsampler =
      upsampler::LatentUpsampler::from_checkpoint(files.upsampler(), at::kFloat, at::kMeta);
  check_fit({"the latent of the video VAE", files.video_vae(), vae_channels},
            {"the upsampler", files.upsampler(), upsampler.config().channels});
  const auto ratio = upsampler.config().ratio;
  if (ratio.up != 2 * ratio.down) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" enlarges by {}/{}; this pipeline needs the x2 upsampler",
                     files.upsampler()->path().string(), ratio.up, ratio.down));
  }
}

void audit_enhancer(const ModelFiles& files) {
  const text::PromptEnhancer enhancer(
      files.enhancer(), std::make_shared<text::Gemma>(files.enhancer(), at::kFloat, at::kMeta,
                                                      std::nullopt, files.enhancer_weights()));
}

// Of the small files of a text encoder's folder.
std::string folder_version(const std::filesystem::path& folder) {
  std::string text;
  for (const char* name : {"config.json", "tokenizer.model"}) {
    struct stat status = {};
    if (::stat((folder / name).c_str(), &status) == 0)
      text += fmt::format("{}/{};", status.st_size, loader::modified_ns(status));
  }
  return text;
}

}  // namespace

ModelFiles::ModelFiles(const config::Models& models, const ModelFilesOptions& options)
    : text_encoder_(models.text_encoder),
      enhancer_(options.enhancer.empty() ? models.text_encoder : options.enhancer) {
  CheckpointPool own;
  CheckpointPool& pool = options.pool != nullptr ? *options.pool : own;
  const auto open = [&](const std::filesystem::path& path) {
    Opened& slot = opened_[real_path(path)];
    if (!slot.file) {
      slot.file = pool.open(path, options.ranks);
      slot.bytes_before = slot.file->bytes_read();
    }
    return slot.file;
  };
  const auto open_lora = [&](const config::Lora& lora) {
    open(lora.path);
    return loader::LoraWithStrength{pool.open_lora(lora.path, options.ranks), lora.strength};
  };
  const auto open_text = [&](const std::filesystem::path& folder) -> CheckpointPtr {
    if (folder.empty()) return nullptr;
    text::check_gemma_folder(folder);
    return open(folder);
  };
  const bool monolith = !models.checkpoint.empty();
  transformer_ = open(monolith ? models.checkpoint : models.transformer);
  video_vae_ = open(monolith ? models.checkpoint : models.video_vae);
  audio_vae_ = open(monolith ? models.checkpoint : models.audio_vae);
  upsampler_ = open(models.spatial_upsampler);
  for (const config::Lora& lora : models.loras) loras_.push_back(open_lora(lora));
  stage_2_loras_ = loras_;
  if (!models.distilled_lora.path.empty())
    stage_2_loras_.push_back(open_lora(models.distilled_lora));
  text_weights_ = open_text(text_encoder_);
  enhancer_weights_ = open_text(enhancer_);
}

std::string ModelFiles::digest() const {
  std::string text = fmt::format("{}-{}-{}-{}", transformer_->digest(), video_vae_->digest(),
                                 audio_vae_->digest(), upsampler_->digest());
  for (const auto& lora : stage_2_loras_) text.append("-").append(lora.file->checkpoint().digest());
  return text;
}

std::string ModelFiles::text_version() const {
  return fmt::format("{}={}{}", real_path(text_encoder_).string(), text_weights_->identity(),
                     folder_version(text_encoder_));
}

std::string ModelFiles::identity() const {
  std::string text;
  for (const auto& [path, opened] : opened_)
    text += fmt::format("{}={}\n", path.string(), opened.file->identity());
  return text + folder_version(text_encoder_) + folder_version(enhancer_);
}

int64_t ModelFiles::bytes_read() const {
  int64_t bytes = 0;
  for (const auto& [path, opened] : opened_)
    bytes += opened.file->bytes_read() - opened.bytes_before;
  return bytes;
}

int64_t ModelFiles::header_bytes_read() const {
  int64_t bytes = 0;
  for (const auto& [path, opened] : opened_) bytes += opened.file->header_bytes_read();
  return bytes;
}

void audit_models(const ModelFiles& files, const config::Job& job) {
  const transformer::Transformer transformer(files.transformer(), storage_policy(job.precision),
                                             at::kMeta);
  (void)transformer.lora_set(files.stage_2_loras());
  const text::PromptEncoder text(files.transformer(), files.text_encoder(), at::kFloat, at::kMeta,
                                 files.text_weights());
  if (job.text.enhance) audit_enhancer(files);
  const auto decoder = vae::VideoDecoder::from_checkpoint(files.video_vae(), at::kFloat, at::kMeta);
  const int64_t vae_channels = decoder.config().latent_channels;
  check_video_fit(files, transformer.config(), vae_channels);
  check_audio_fit(files, transformer.config());
  if (!job.images.empty())
    vae::VideoEncoder::from_checkpoint(files.video_vae(), at::kFloat, at::kMeta);
  if (job.output.audio) {
    const auto audio =
        audio::AudioDecoder::from_checkpoint(files.audio_vae(), at::kFloat, at::kMeta);
    audio::check_fits(audio.config(),
                      audio::Vocoder::from_checkpoint(files.audio_vae(), at::kMeta).config());
  }
  check_upsampler(files, vae_channels);
}

}  // namespace flotilla::pipeline
