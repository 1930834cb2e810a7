// The files of a job's models, each opened once per process whichever stages use it. Opening reads
// headers only; the audit checks configuration, names and shapes of all of them, so that a wrong
// file is refused before the first weight is read.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "loader/checkpoint.h"
#include "loader/lora.h"

namespace flotilla::pipeline {

using CheckpointPtr = std::shared_ptr<const loader::Checkpoint>;

class ModelFiles {
 public:
  // Errors (ErrorKind::input): a file that is missing or damaged; see also LoraFile.
  explicit ModelFiles(const config::Models& models);

  // With the text projection and the connectors.
  const CheckpointPtr& transformer() const { return transformer_; }
  const CheckpointPtr& video_vae() const { return video_vae_; }
  // With the vocoder.
  const CheckpointPtr& audio_vae() const { return audio_vae_; }
  const CheckpointPtr& upsampler() const { return upsampler_; }
  const std::filesystem::path& text_encoder() const { return text_encoder_; }
  // Of the whole run, in the order of the job.
  const std::vector<loader::LoraWithStrength>& loras() const { return loras_; }
  // The same and then the distilled LoRA, where the job has one.
  const std::vector<loader::LoraWithStrength>& stage_2_loras() const { return stage_2_loras_; }

  // "2.3.0"; "" when the file does not say.
  std::string model_version() const { return transformer_->model_version(); }
  // Of all files together; identifies the models without reading weights.
  std::string digest() const;
  // Weight bytes read so far from these files.
  int64_t bytes_read() const;

 private:
  CheckpointPtr open(const std::filesystem::path& path);
  loader::LoraWithStrength open_lora(const config::Lora& lora);

  std::map<std::filesystem::path, CheckpointPtr> opened_;
  CheckpointPtr transformer_;
  CheckpointPtr video_vae_;
  CheckpointPtr audio_vae_;
  CheckpointPtr upsampler_;
  std::filesystem::path text_encoder_;
  std::vector<loader::LoraWithStrength> loras_;
  std::vector<loader::LoraWithStrength> stage_2_loras_;
};

// Errors (ErrorKind::input): whatever the model classes refuse, and models that do not fit each
// other; each message names its files.
void audit_models(const ModelFiles& files, const config::Job& job);

}  // namespace flotilla::pipeline
