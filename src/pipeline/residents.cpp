#include "pipeline/residents.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "gpu/device.h"
#include "io/metrics.h"

namespace flotilla::pipeline {
namespace {

// Enough for any sweep over models; each is some hundred bytes.
constexpr size_t kMostAudits = 256;
// Of the memory, for what the forecast does not know.
constexpr double kUsableShare = 0.95;

// A model in the words of the log and in those of the forecast: the phase that is made for it, and
// its parts there.
struct KeptModel {
  Kept kind;
  std::string_view name;
  std::string_view phase;
  std::vector<std::string_view> parts;
};

const std::vector<KeptModel>& kept_models() {
  static const std::vector<KeptModel> models = {
      {Kept::enhancer, "the prompt enhancer", "enhance", {"weights of the enhancer"}},
      {Kept::image_encoder, "the video encoder", "encode_images", {"weights of the video encoder"}},
      {Kept::upsampler, "the upsampler", "upsample", {"weights of the upsampler"}},
      {Kept::sound_decoder,
       "the audio decoder and the vocoder",
       "decode_audio",
       {"weights of the audio decoder and the vocoder"}},
      {Kept::video_decoder, "the video decoder", "decode_video", {"weights of the video decoder"}},
      {Kept::text_encoder, "the text encoder", "text", {"weights of the text encoder"}},
      {Kept::transformer,
       "the transformer",
       "load_transformer",
       {"weights of the transformer", "clean rows of this rank's share",
        "factors of LoRAs for this rank's share"}},
  };
  return models;
}

bool has_word(const std::vector<std::string_view>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// On the memory that the models lie in.
const std::vector<MemoryPart>& parts_of(const PhaseMemory& phase, bool on_gpu) {
  return on_gpu ? phase.device : phase.host;
}

bool holds(const PhaseMemory& phase, const KeptModel& model, bool on_gpu) {
  const auto& parts = parts_of(phase, on_gpu);
  return std::any_of(parts.begin(), parts.end(),
                     [&](const MemoryPart& part) { return has_word(model.parts, part.what); });
}

}  // namespace

Residents::Residents(Span span) : span_(span), process_bytes_(io::held_host_bytes()) {}

void Residents::begin(const config::Job& job, const ModelFiles& files, const Plan& plan,
                      bool previews) {
  if (span_ == Span::job) {
    prompts_ = text::PromptCache();
    return;
  }
  on_gpu_ = plan.device.is_cuda();
  forecast_ = make_forecast(job, files, plan,
                            {.process_bytes = process_bytes_,
                             .ranks_on_host = plan.world_size,
                             .prompt_tokens = text::kPromptTokens,
                             .previews = previews});
}

const text::Tokenizer& Residents::tokenizer(const std::filesystem::path& folder,
                                            const std::string& version) {
  if (!tokenizer_ || tokenizer_key_ != version) {
    tokenizer_ = std::make_unique<text::Tokenizer>(folder);
    tokenizer_key_ = version;
  }
  return *tokenizer_;
}

const gpu::AttentionProbe& Residents::try_attention(config::Attention choice, const Plan& plan) {
  // Few heads will do, of the size that the video self-attention of all LTX-2 models has.
  constexpr int64_t kHeads = 4, kHeadDim = 128;
  const auto key = std::tuple(choice, plan.device, plan.dtype);
  if (!attention_ || attention_of_ != key)
    attention_ = gpu::probe_attention(plan.device, plan.dtype, kHeads, kHeadDim);
  attention_of_ = key;
  return *attention_;
}

void Residents::note_audit(const std::string& key) {
  if (audited_.size() >= kMostAudits) audited_.clear();
  audited_.insert(key);
}

bool Residents::has(Kept kind, const std::string& key, const Ranks& ranks) {
  const Slot& at = slot(kind);
  if (!ranks.any(!at.is_filled || at.key != key)) return true;
  slot(kind) = {};
  return false;
}

void Residents::put(Kept kind, const std::string& key, std::shared_ptr<void> model) {
  // Within a job: the enhancer is the text encoder too, perhaps, and the video decoder makes
  // previews before it has its own turn.
  if (span_ == Span::job && kind != Kept::enhancer && kind != Kept::video_decoder) return;
  slot(kind) = {true, key, std::move(model), bytes_of(kind)};
}

void Residents::done_with(Kept kind) {
  if (span_ == Span::job) slot(kind) = {};
}

int64_t Residents::bytes_of(Kept kind) const {
  if (!forecast_) return 0;
  const KeptModel& model = kept_models()[static_cast<size_t>(kind)];
  int64_t bytes = 0;
  for (const MemoryPart& part : parts_of(forecast_->phase(model.phase), on_gpu_))
    if (has_word(model.parts, part.what)) bytes += part.bytes;
  return bytes;
}

std::vector<std::string> Residents::names() const {
  constexpr std::string_view kArticle = "the ";
  std::vector<std::string> names;
  for (const KeptModel& model : kept_models())
    if (keeps(model.kind)) names.emplace_back(model.name.substr(kArticle.size()));
  return names;
}

int64_t Residents::shortfall(const PhaseMemory& phase, at::Device device,
                             const Ranks& ranks) const {
  int64_t kept = 0;
  int64_t others = 0;
  for (const KeptModel& model : kept_models()) {
    const Slot& at = slots_[static_cast<size_t>(model.kind)];
    kept += at.bytes;
    if (!holds(phase, model, on_gpu_)) others += at.bytes;
  }
  int64_t need = others;
  for (const MemoryPart& part : parts_of(phase, on_gpu_)) need += part.bytes;
  // What is free, and what is ours already.
  const int64_t room =
      on_gpu_ ? gpu::free_memory_bytes(device) + kept
              : gpu::free_memory_bytes(device) / ranks.world_size() + io::held_host_bytes();
  return need - static_cast<int64_t>(kUsableShare * static_cast<double>(room));
}

void Residents::make_room(std::string_view phase, at::Device device, const Ranks& ranks) {
  if (!forecast_) return;
  const PhaseMemory& memory = forecast_->phase(phase);
  int64_t missing = shortfall(memory, device, ranks);
  if (ranks.world() != nullptr) missing = ranks.world()->all_max(missing);
  for (const KeptModel& model : kept_models()) {
    Slot& at = slot(model.kind);
    if (missing <= 0) return;
    // One that the job does not know (of another world) has no bytes and frees none.
    if (!at.is_filled || holds(memory, model, on_gpu_)) continue;
    log::info("memory", "{} ({}) is let go: {} needs the room", model.name,
              human_bytes(static_cast<double>(at.bytes)), phase);
    missing -= at.bytes;
    at = {};
  }
}

}  // namespace flotilla::pipeline
