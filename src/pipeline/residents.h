// What a process keeps between its jobs, so that a later one of the same models starts at once:
// open files, what their audit found, what ffmpeg can do, encoded prompts, and loaded models with
// the LoRAs that are fused in. All ranks keep the same and decide alike. Memory decides what stays:
// before each phase of a job, models that the phase does not use are let go until it fits
// (docs/memory.md).
//
//   auto residents = std::make_shared<Residents>();
//   for (each job) {
//     auto prepared = prepare_job(loaded, host, outputs, ranks, {}, residents);
//     run_job(prepared, host, ranks);
//   }
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "config/job.h"
#include "gpu/attention_probe.h"
#include "io/ffmpeg.h"
#include "pipeline/checkpoint_pool.h"
#include "pipeline/forecast.h"
#include "pipeline/ranks.h"
#include "text/prompt_cache.h"
#include "text/tokenizer.h"

namespace flotilla::pipeline {

// Models, in the order in which they are let go: the largest and the most used ones last.
enum class Kept {
  enhancer,  // on the driver only
  image_encoder,
  upsampler,
  sound_decoder,
  video_decoder,
  text_encoder,
  transformer,
};
constexpr size_t kNumKept = 7;

// Belongs to one process and one set of ranks, and must not outlive these.
class Residents {
 public:
  enum class Span {
    job,      // nothing but what a stage leaves to the next one
    process,  // all that fits
  };
  explicit Residents(Span span = Span::process);

  // Before the first stage of each job: what the job's phases take. `previews`: see ForecastFacts.
  // Local.
  void begin(const config::Job& job, const ModelFiles& files, const Plan& plan,
             bool previews = false);

  CheckpointPool& files() { return files_; }
  io::FfmpegFinder& ffmpeg() { return ffmpeg_; }
  text::PromptCache& prompts() { return prompts_; }
  // Of a folder in this version. Errors: those of Tokenizer.
  const text::Tokenizer& tokenizer(const std::filesystem::path& folder, const std::string& version);
  // Models of this key (files and settings) were found to fit each other.
  bool was_audited(const std::string& key) const { return audited_.contains(key); }
  void note_audit(const std::string& key);
  // The attention kernel of this choice, tried on this rank at the first job that asks. Errors: see
  // gpu::probe_attention().
  const gpu::AttentionProbe& try_attention(config::Attention choice, const Plan& plan);
  // Of the job before; null before the first try.
  const gpu::AttentionProbe* attention() const { return attention_ ? &*attention_ : nullptr; }

  // The model that was kept under `key` on every one of `ranks`; else what `make` gives, which is
  // kept then, after what the place held before has been let go. Null where a rank needs none.
  // Collective over `ranks`; `make` has to agree on its errors.
  template <typename Model, typename Make>
  std::shared_ptr<Model> get(Kept kind, const std::string& key, const Ranks& ranks, Make&& make) {
    if (has(kind, key, ranks)) return std::static_pointer_cast<Model>(slot(kind).model);
    std::shared_ptr<Model> model = std::forward<Make>(make)();
    put(kind, key, model);
    return model;
  }
  // The same without making one: null where there is none.
  template <typename Model>
  std::shared_ptr<Model> find(Kept kind, const std::string& key, const Ranks& ranks) {
    return has(kind, key, ranks) ? std::static_pointer_cast<Model>(slot(kind).model) : nullptr;
  }
  // The same, and it is the caller's: for a model that may break while it is changed, and that is
  // put back when it is whole again.
  template <typename Model>
  std::shared_ptr<Model> take(Kept kind, const std::string& key, const Ranks& ranks) {
    auto model = find<Model>(kind, key, ranks);
    slot(kind) = {};
    return model;
  }
  void put(Kept kind, const std::string& key, std::shared_ptr<void> model);
  // The job has no more use for it: lets go of it where nothing outlives the job.
  void done_with(Kept kind);
  bool keeps(Kept kind) const { return slots_[static_cast<size_t>(kind)].is_filled; }
  // All that it keeps, in words: "transformer", "text encoder".
  std::vector<std::string> names() const;

  // Lets go of models that `phase` (of the forecast) does not use until it fits into the memory of
  // the device; says which. Collective.
  void make_room(std::string_view phase, at::Device device, const Ranks& ranks);

 private:
  struct Slot {
    bool is_filled = false;
    std::string key;
    std::shared_ptr<void> model;
    int64_t bytes = 0;  // on the rank that holds most
  };
  Slot& slot(Kept kind) { return slots_[static_cast<size_t>(kind)]; }
  // Lets go of a model of another key, and of one that not all ranks have.
  bool has(Kept kind, const std::string& key, const Ranks& ranks);
  int64_t bytes_of(Kept kind) const;
  // What is missing for `phase` on this rank, in bytes; not positive: nothing.
  int64_t shortfall(const PhaseMemory& phase, at::Device device, const Ranks& ranks) const;

  Span span_;
  int64_t process_bytes_;  // before any model
  bool on_gpu_ = false;
  std::optional<Forecast> forecast_;
  CheckpointPool files_;
  io::FfmpegFinder ffmpeg_;
  text::PromptCache prompts_;
  std::optional<gpu::AttentionProbe> attention_;
  std::optional<std::tuple<config::Attention, at::Device, at::ScalarType>> attention_of_;
  std::set<std::string> audited_;
  std::string tokenizer_key_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::array<Slot, kNumKept> slots_;
};

}  // namespace flotilla::pipeline
