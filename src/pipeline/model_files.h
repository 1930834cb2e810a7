// The files of a job's models, each opened once whichever stages use it. Opening reads headers
// only; the audit checks configuration, names and shapes of all of them, so that a wrong file is
// refused before the first weight is read.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "loader/checkpoint.h"
#include "loader/lora.h"
#include "pipeline/checkpoint_pool.h"
#include "pipeline/ranks.h"

namespace flotilla::pipeline {

struct ModelFilesOptions {
  Ranks ranks = {};                     // that open the same files
  CheckpointPool* pool = nullptr;       // of the process; null: none that outlives the job
  std::filesystem::path enhancer = {};  // text.enhancer, where the job has one of its own
};

class ModelFiles {
 public:
  // Collective, see CheckpointPool. Errors (ErrorKind::input): a file that is missing or damaged;
  // see also LoraFile.
  explicit ModelFiles(const config::Models& models, const ModelFilesOptions& options = {});

  // With the text projection and the connectors.
  const CheckpointPtr& transformer() const { return transformer_; }
  const CheckpointPtr& video_vae() const { return video_vae_; }
  // With the vocoder.
  const CheckpointPtr& audio_vae() const { return audio_vae_; }
  const CheckpointPtr& upsampler() const { return upsampler_; }
  // Folders and their weights. The enhancer is the text encoder, unless the job names another one.
  const std::filesystem::path& text_encoder() const { return text_encoder_; }
  const CheckpointPtr& text_weights() const { return text_weights_; }
  const std::filesystem::path& enhancer() const { return enhancer_; }
  const CheckpointPtr& enhancer_weights() const { return enhancer_weights_; }
  // Of the whole run, in the order of the job.
  const std::vector<loader::LoraWithStrength>& loras() const { return loras_; }
  // The same and then the distilled LoRA, where the job has one.
  const std::vector<loader::LoraWithStrength>& stage_2_loras() const { return stage_2_loras_; }

  // "2.3.0"; "" when the file does not say.
  std::string model_version() const { return transformer_->model_version(); }
  // Of the text encoder's folder on this machine, as of now.
  std::string text_version() const;
  // Of all files together; identifies the models without reading weights.
  std::string digest() const;
  // Of the versions of all files on this machine: the same string, the same weights and tokenizers.
  std::string identity() const;
  // Weight bytes read from these files since this object was made.
  int64_t bytes_read() const;
  // Bytes of headers that this process read to open them, now or for an earlier job.
  int64_t header_bytes_read() const;

 private:
  struct Opened {
    CheckpointPtr file;
    int64_t bytes_before = 0;  // read by earlier jobs
  };
  std::map<std::filesystem::path, Opened> opened_;
  CheckpointPtr transformer_;
  CheckpointPtr video_vae_;
  CheckpointPtr audio_vae_;
  CheckpointPtr upsampler_;
  std::filesystem::path text_encoder_;
  CheckpointPtr text_weights_;
  std::filesystem::path enhancer_;
  CheckpointPtr enhancer_weights_;
  std::vector<loader::LoraWithStrength> loras_;
  std::vector<loader::LoraWithStrength> stage_2_loras_;
};

// Errors (ErrorKind::input): whatever the model classes refuse, and models that do not fit each
// other; each message names its files.
void audit_models(const ModelFiles& files, const config::Job& job);

}  // namespace flotilla::pipeline
