#include "transformer/transformer.h"

#include <ATen/ATen.h>

#include "ops/linear.h"
#include "ops/norm.h"

namespace flotilla::transformer {
namespace {

constexpr const char* kPrefix = "model.diffusion_model.";

at::Tensor project_output(const StreamWeights& weights, const PreparedStream& prepared,
                          const at::Tensor& x, double eps) {
  const at::Tensor rows =
      weights.output_table.unsqueeze(0) + prepared.embedded_timestep.unsqueeze(1);  // [U, 2, dim]
  const at::Tensor shift = ops::expand_rows(rows.select(1, 0), prepared.inputs.row_of_token);
  const at::Tensor scale = ops::expand_rows(rows.select(1, 1), prepared.inputs.row_of_token);
  const at::Tensor normed = at::layer_norm(x, {x.size(-1)}, {}, {}, eps);
  return ops::linear(ops::modulate(normed, scale, shift), weights.output.weight,
                     weights.output.bias);
}

// Where the arena lies for a model that computes on `device`.
at::Device place_of_arena(WeightHome home, at::Device device) {
  if (device.is_meta() || home == WeightHome::file) return at::kMeta;
  return home == WeightHome::host ? at::Device(at::kCPU) : device;
}

}  // namespace

Transformer::Transformer(std::shared_ptr<const loader::Checkpoint> checkpoint,
                         loader::StoragePolicy policy, at::Device device,
                         const loader::LoadArena& load, WeightHome home)
    : Transformer(checkpoint, TransformerConfig::from_checkpoint(*checkpoint), policy, device, load,
                  home) {}

Transformer::Transformer(std::shared_ptr<const loader::Checkpoint> checkpoint,
                         TransformerConfig config, loader::StoragePolicy policy, at::Device device,
                         const loader::LoadArena& load, WeightHome home)
    : config_(std::move(config)),
      arena_(std::make_shared<loader::WeightArena>(
          std::move(checkpoint), std::vector<std::string>{kPrefix}, policy,
          place_of_arena(home, device), names_of_text_encoder())) {
  arena_->file_storage().check(kPrefix);
  const loader::WeightBinder binder(*arena_);
  weights_ = bind_transformer(config_, binder.scope(kPrefix));
  binder.finish();
  if (device.is_meta()) return;
  if (home == WeightHome::file) {
    arena_->set_loaded();  // as far as it ever is
  } else {
    load(*arena_);
  }
  if (home == WeightHome::device) return;
  feed_ = make_block_feed(arena_, home, device);
  weights_ = feed_->placed(std::move(weights_));
}

HeldWeights Transformer::held() const {
  return feed_ ? feed_->held() : HeldWeights{arena_->bytes(), 0};
}

void Transformer::refresh() {
  if (feed_) feed_->refresh();
}

loader::LoraSet Transformer::lora_set(std::span<const loader::LoraWithStrength> loras) const {
  return loader::LoraSet(*arena_, kPrefix, loras);
}

Velocity Transformer::forward(const Modality* video, const Modality* audio, const RopeTables& rope,
                              const Perturbations& perturbations,
                              const VideoTokenAttention& attention, BlockGraphs* graphs) const {
  PreparedStream video_stream;
  PreparedStream audio_stream;
  if (video != nullptr) {
    video_stream = prepare_video(config_, weights_, *video,
                                 audio != nullptr ? audio->sigma : at::Tensor(), rope);
  }
  if (audio != nullptr) {
    audio_stream = prepare_audio(config_, weights_, *audio,
                                 video != nullptr ? video->sigma : at::Tensor(), rope);
  }
  at::Tensor x_video = video_stream.x;
  at::Tensor x_audio = audio_stream.x;
  const BlockPass pass{config_,
                       weights_.blocks,
                       attention,
                       perturbations,
                       video != nullptr ? &video_stream.inputs : nullptr,
                       audio != nullptr ? &audio_stream.inputs : nullptr,
                       feed_.get()};
  if (graphs != nullptr) {
    graphs->run(pass, x_video, x_audio);
  } else {
    run_blocks(pass, x_video, x_audio);
  }
  Velocity velocity;
  if (video != nullptr)
    velocity.video = project_output(weights_.video, video_stream, x_video, config_.norm_eps);
  if (audio != nullptr)
    velocity.audio = project_output(weights_.audio, audio_stream, x_audio, config_.norm_eps);
  return velocity;
}

int64_t weight_bytes(std::shared_ptr<const loader::Checkpoint> checkpoint,
                     loader::StoragePolicy policy) {
  return held_weights(std::move(checkpoint), policy, WeightHome::device, false).device_bytes;
}

HeldWeights held_weights(std::shared_ptr<const loader::Checkpoint> checkpoint,
                         loader::StoragePolicy policy, WeightHome home, bool on_gpu) {
  const loader::WeightArena arena(std::move(checkpoint), {kPrefix}, policy, at::kMeta,
                                  names_of_text_encoder());
  return held_weights(arena, home, on_gpu);
}

}  // namespace flotilla::transformer
