#include "app/inspect_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "audio/audio_vae.h"
#include "audio/vocoder.h"
#include "base/error.h"
#include "loader/lora.h"
#include "pipeline/precision.h"
#include "text/context_builder.h"
#include "text/gemma.h"
#include "text/gemma_folder.h"
#include "text/prompt_encoder.h"
#include "transformer/transformer.h"
#include "upsampler/latent_upsampler.h"
#include "vae/decoder.h"
#include "vae/encoder.h"

namespace flotilla::app {
namespace {

using CheckpointPtr = std::shared_ptr<const loader::Checkpoint>;
using Tensors = std::map<std::string, loader::TensorInfo>;

Report describe(const transformer::StreamConfig& stream) {
  return {{"heads", stream.heads},
          {"head_dim", stream.head_dim},
          {"dim", stream.dim()},
          {"in_channels", stream.in_channels},
          {"context_dim", stream.context_dim}};
}

Report audit_transformer(const CheckpointPtr& file) {
  const auto precision = pipeline::choose_precision(config::Precision::bf16, *file);
  const transformer::Transformer model(file, pipeline::storage_policy(precision), at::kMeta);
  const auto& config = model.config();
  return {{"layers", config.num_layers},
          {"video", describe(config.video)},
          {"audio", describe(config.audio)},
          {"gated_attention", config.gated_attention}};
}

// Whether it fits a text encoder shows with that encoder only.
Report audit_text(const CheckpointPtr& file) {
  text::check_generation(*file);
  const loader::ConfigReader reader(file->config(), file->path().string() + ": config");
  const auto object = reader.object("transformer");
  Report report;
  for (const auto kind : {text::ConnectorKind::video, text::ConnectorKind::audio}) {
    const auto config = text::ConnectorConfig::from_json(object, kind);
    report[kind == text::ConnectorKind::video ? "video" : "audio"] = {
        {"layers", config.num_layers}, {"heads", config.num_heads}, {"dim", config.width()}};
  }
  return report;
}

Report audit_video_encoder(const CheckpointPtr& file) {
  const auto model = vae::VideoEncoder::from_checkpoint(file, at::kFloat, at::kMeta);
  return {{"latent_channels", model.config().latent_channels},
          {"blocks", model.config().blocks.size()}};
}

Report audit_video_decoder(const CheckpointPtr& file) {
  const auto model = vae::VideoDecoder::from_checkpoint(file, at::kFloat, at::kMeta);
  return {{"latent_channels", model.config().latent_channels},
          {"blocks", model.config().blocks.size()}};
}

Report audit_audio_vae(const CheckpointPtr& file) {
  const auto model = audio::AudioDecoder::from_checkpoint(file, at::kFloat, at::kMeta);
  return {{"latent_channels", model.format().latent_channels},
          {"mel_bins", model.format().mel_bins},
          {"sample_rate", model.format().sample_rate}};
}

Report audit_vocoder(const CheckpointPtr& file) {
  const auto model = audio::Vocoder::from_checkpoint(file, at::kMeta);
  return {{"sample_rate", model.config().sample_rate()},
          {"bandwidth_extension", model.config().bandwidth.has_value()}};
}

Report audit_upsampler(const CheckpointPtr& file) {
  const auto model = upsampler::LatentUpsampler::from_checkpoint(file, at::kFloat, at::kMeta);
  const auto& config = model.config();
  return {{"scale", static_cast<double>(config.ratio.up) / static_cast<double>(config.ratio.down)},
          {"channels", config.channels},
          {"mid_channels", config.mid_channels}};
}

// A tensor belongs to the first part one of whose prefixes it has.
struct Part {
  const char* name;
  std::vector<std::string_view> prefixes;
  Report (*audit)(const CheckpointPtr&);  // the configuration in brief
};

const std::vector<Part>& parts() {
  static const std::vector<Part> table = {
      {"text",
       {"text_embedding_projection.", "model.diffusion_model.video_embeddings_connector.",
        "model.diffusion_model.audio_embeddings_connector."},
       &audit_text},
      {"transformer", {"model.diffusion_model."}, &audit_transformer},
      {"video_encoder", {"vae.encoder.", "encoder."}, &audit_video_encoder},
      {"video_decoder",
       {"vae.decoder.", "decoder.", "vae.per_channel_statistics.", "per_channel_statistics."},
       &audit_video_decoder},
      {"audio_vae", {"audio_vae."}, &audit_audio_vae},
      {"vocoder", {"vocoder."}, &audit_vocoder},
      {"upsampler",
       {"initial_conv.", "initial_norm.", "res_blocks.", "upsampler.", "post_upsample_res_blocks.",
        "final_conv."},
       &audit_upsampler},
  };
  return table;
}

const Part* part_of(std::string_view tensor) {
  for (const auto& part : parts()) {
    for (const auto prefix : part.prefixes) {
      if (tensor.starts_with(prefix)) return &part;
    }
  }
  return nullptr;
}

Report bytes_by_dtype(const Tensors& tensors) {
  std::map<std::string, int64_t> bytes;
  for (const auto& [name, info] : tensors)
    bytes[std::string(loader::dtype_name(info.dtype))] += info.bytes();
  return bytes;
}

// Beside the counts: what `audit` tells of the configuration, or why it refuses the part.
void add_audit(Report& report, const std::function<Report()>& audit) {
  try {
    report["config"] = audit();
    report["implemented"] = true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    report["implemented"] = false;
    report["problem"] = error.message();
  }
}

Report inspect_checkpoint(const CheckpointPtr& file) {
  (void)file->config();  // without one it is no checkpoint of ours
  std::map<const Part*, Tensors> held;
  for (const auto& [name, info] : file->tensors()) held[part_of(name)].emplace(name, info);
  Report report = {{"kind", "checkpoint"},
                   {"model_version", file->model_version()},
                   {"digest", file->digest()},
                   {"file_bytes", file->file_bytes()},
                   {"tensors", file->tensors().size()},
                   {"bytes_by_dtype", bytes_by_dtype(file->tensors())}};
  for (const auto& part : parts()) {
    const auto at = held.find(&part);
    if (at == held.end()) continue;
    Report& entry = report["parts"][part.name];
    entry = {{"tensors", at->second.size()}, {"bytes_by_dtype", bytes_by_dtype(at->second)}};
    add_audit(entry, [&] { return part.audit(file); });
  }
  if (held.size() == held.count(nullptr)) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" holds no part of an LTX-2 model that this program knows",
                     file->path().string()));
  }
  report["other_tensors"] = held[nullptr].size();
  return report;
}

bool is_lora(const loader::Checkpoint& file) {
  return std::any_of(file.tensors().begin(), file.tensors().end(), [](const auto& tensor) {
    return tensor.first.find(".lora_") != std::string::npos;
  });
}

// Without an alpha a factor pair counts as if alpha were its rank.
Report inspect_lora(const CheckpointPtr& file) {
  const loader::LoraFile lora(file);
  std::map<std::string, int64_t> ranks;
  std::map<std::string, int64_t> alphas;
  std::set<std::string> prefixes;
  for (const auto& [name, module] : lora.modules()) {
    ++ranks[std::to_string(module.rank)];
    ++alphas[fmt::format("{:g}", module.scale * static_cast<double>(module.rank))];
    prefixes.insert(module.a.substr(0, module.a.find(name)));
  }
  return {{"kind", "lora"},
          {"digest", file->digest()},
          {"file_bytes", file->file_bytes()},
          {"tensors", file->tensors().size()},
          {"bytes_by_dtype", bytes_by_dtype(file->tensors())},
          {"prefixes", prefixes},
          {"modules", lora.modules().size()},
          {"modules_by_rank", ranks},
          {"modules_by_alpha", alphas}};
}

}  // namespace

Report inspect_weights(const std::filesystem::path& path) {
  const CheckpointPtr file = loader::Checkpoint::open(path);
  return is_lora(*file) ? inspect_lora(file) : inspect_checkpoint(file);
}

Report inspect_text_encoder(const std::filesystem::path& folder) {
  text::check_gemma_folder(folder);
  const auto json = text::read_gemma_json(folder);
  const CheckpointPtr file = loader::Checkpoint::open(folder);
  Report report = {{"kind", "text_encoder"},
                   {"model_type", json.value("model_type", "")},
                   {"file_bytes", file->file_bytes()},
                   {"tensors", file->tensors().size()},
                   {"bytes_by_dtype", bytes_by_dtype(file->tensors())}};
  add_audit(report, [&]() -> Report {
    const text::Gemma gemma(folder, at::kFloat, at::kMeta);
    const auto& config = gemma.config();
    text::check_vocabulary(text::Tokenizer(folder), config, folder);
    return {{"layers", config.num_layers()},
            {"dim", config.hidden_size},
            {"heads", config.num_heads},
            {"kv_heads", config.num_kv_heads},
            {"head_dim", config.head_dim},
            {"vocabulary", config.vocab_size},
            {"sliding_window", config.sliding_window}};
  });
  return report;
}

Report list_tensors(const loader::Checkpoint& file) {
  Report list = Report::array();
  for (const auto& [name, info] : file.tensors()) {
    list.push_back({{"name", name},
                    {"dtype", loader::dtype_name(info.dtype)},
                    {"shape", info.shape},
                    {"bytes", info.bytes()}});
  }
  return list;
}

}  // namespace flotilla::app
