#include "text/context_builder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "text/tokenizer.h"

namespace flotilla::text {
namespace {

using loader::Checkpoint;
using loader::ConfigReader;

constexpr const char* kProjection = "text_embedding_projection.";
constexpr const char* kVideoConnector = "model.diffusion_model.video_embeddings_connector.";
constexpr const char* kAudioConnector = "model.diffusion_model.audio_embeddings_connector.";

// A wrong text encoder shows here first: the projection reads all its layers side by side.
void check_projection(const Checkpoint& checkpoint, const FeatureExtractorConfig& config,
                      const std::string& gemma_name) {
  const std::string name = std::string(kProjection) + (config.version == FeatureVersion::v1
                                                           ? "aggregate_embed.weight"
                                                           : "video_aggregate_embed.weight");
  const auto at = checkpoint.tensors().find(name);
  // Missing and odd ones are left to the audit of all names.
  if (at == checkpoint.tensors().end() || at->second.shape.size() != 2) return;
  const int64_t expected = at->second.shape[1];
  if (expected == config.input_width()) return;
  fail(ErrorKind::input,
       fmt::format(
           "the text encoder \"{}\" does not fit the checkpoint \"{}\": hidden size {} times "
           "{} states (embedding and layers) is {}, but {} reads {}; give the Gemma folder "
           "that the checkpoint was trained with",
           gemma_name, checkpoint.path().string(), config.hidden_size, config.num_states,
           config.input_width(), name, expected));
}

void check_width(const Checkpoint& checkpoint, const char* which, int64_t features,
                 const ConnectorConfig& connector) {
  if (features == connector.width()) return;
  fail(ErrorKind::input,
       fmt::format("the {} connector of \"{}\" is {} wide ({} heads of {}), but the text features "
                   "are {}",
                   which, checkpoint.path().string(), connector.width(), connector.num_heads,
                   connector.head_dim, features));
}

}  // namespace

void check_generation(const Checkpoint& checkpoint) {
  if (checkpoint.metadata("gemma_source_checkpoint") == nullptr) return;
  fail(ErrorKind::input,
       fmt::format("\"{}\" names a \"gemma_source_checkpoint\" (model version {}), which is not "
                   "implemented; implemented: LTX-2.0 and LTX-2.3 with Gemma 3",
                   checkpoint.path().string(), checkpoint.model_version()));
}

ContextBuilder::ContextBuilder(std::shared_ptr<const Checkpoint> checkpoint,
                               const GemmaConfig& gemma, const std::string& gemma_name,
                               at::ScalarType dtype, at::Device device) {
  check_generation(*checkpoint);
  const std::string where = checkpoint->path().string() + ": config";
  const auto transformer = ConfigReader(checkpoint->config(), where).object("transformer");
  feature_config_ = FeatureExtractorConfig::from_json(transformer, gemma);
  video_config_ = ConnectorConfig::from_json(transformer, ConnectorKind::video);
  audio_config_ = ConnectorConfig::from_json(transformer, ConnectorKind::audio);
  check_projection(*checkpoint, feature_config_, gemma_name);
  check_width(*checkpoint, "video", feature_config_.video_width, video_config_);
  check_width(*checkpoint, "audio", feature_config_.audio_width, audio_config_);

  arena_ = std::make_unique<loader::WeightArena>(
      std::move(checkpoint),
      std::vector<std::string>{kProjection, kVideoConnector, kAudioConnector}, dtype, device);
  loader::WeightBinder binder(*arena_);
  feature_weights_ = bind_feature_extractor(feature_config_, binder.scope(kProjection));
  video_weights_ = bind_connector(video_config_, binder.scope(kVideoConnector));
  audio_weights_ = bind_connector(audio_config_, binder.scope(kAudioConnector));
  binder.finish();
}

const ConnectorConfig& ContextBuilder::connector_config(ConnectorKind kind) const {
  return kind == ConnectorKind::video ? video_config_ : audio_config_;
}

TextFeatures ContextBuilder::features(const GemmaStates& gemma) const {
  FLOTILLA_ASSERT(arena_->loaded());
  return extract_features(feature_config_, feature_weights_, gemma);
}

at::Tensor ContextBuilder::connect(ConnectorKind kind, const at::Tensor& features,
                                   const at::Tensor& mask, int64_t num_rows) const {
  FLOTILLA_ASSERT(arena_->loaded());
  const auto& weights = kind == ConnectorKind::video ? video_weights_ : audio_weights_;
  return run_connector(connector_config(kind), weights, features, mask, num_rows);
}

TextContext ContextBuilder::build(const GemmaStates& gemma) const { return build(features(gemma)); }

TextContext ContextBuilder::build(const FeatureRows& rows) const {
  FLOTILLA_ASSERT(arena_->loaded());
  return build(rows.project(feature_weights_));
}

TextContext ContextBuilder::build(const TextFeatures& features) const {
  return {connect(ConnectorKind::video, features.video, features.mask, kPromptTokens),
          connect(ConnectorKind::audio, features.audio, features.mask, kPromptTokens)};
}

}  // namespace flotilla::text
