#include "pipeline/decode.h"

#include <ATen/ATen.h>

#include <chrono>
#include <future>
#include <memory>
#include <tuple>

#include "audio/audio_vae.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "parallel/distributed_decoder.h"

namespace flotilla::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDriver = 0;
constexpr int kSoundTag = 1;  // the tiles' messages have 0

// Whether all frames are one colour, give or take a level: then something is wrong with the models
// or the prompt, though every number is finite.
class ColourWatch {
 public:
  // frames: uint8 [F, H, W, 3]. Looks no further than the first frame that varies.
  void look(const at::Tensor& frames) {
    for (int64_t f = 0; f < frames.size(0) && !varies_; ++f) {
      const at::Tensor low = at::amin(frames[f], {0, 1}).to(at::kInt);  // [3]
      const at::Tensor high = at::amax(frames[f], {0, 1}).to(at::kInt);
      low_ = low_.defined() ? at::minimum(low_, low) : low;
      high_ = high_.defined() ? at::maximum(high_, high) : high;
      varies_ = (high_ - low_).max().item<int>() > 1;
    }
  }
  void warn() const {
    if (varies_ || !low_.defined()) return;
    log::warn("decode",
              "every pixel of every frame is the same colour, red {} green {} blue {}: see "
              "docs/troubleshooting.md",
              low_[0].item<int>(), low_[1].item<int>(), low_[2].item<int>());
  }

 private:
  at::Tensor low_, high_;  // of each channel so far
  bool varies_ = false;
};

comm::Communicator* decoder_ranks(const Ranks& ranks) {
  return ranks.context != nullptr ? &ranks.context->decoder() : nullptr;
}

struct SoundDecoder {
  audio::AudioDecoder spectrogram;
  audio::Vocoder vocoder;
};

std::shared_ptr<SoundDecoder> get_sound_decoder(const Session& session) {
  const auto& [files, plan] = std::tie(session.files, session.plan);
  return session.residents->get<SoundDecoder>(
      Kept::sound_decoder, session.key_of(*files.audio_vae()), /*this rank alone*/ {}, [&] {
        return std::make_shared<SoundDecoder>(SoundDecoder{
            audio::AudioDecoder::from_checkpoint(files.audio_vae(), plan.dtype, plan.device),
            audio::Vocoder::from_checkpoint(files.audio_vae(), plan.device)});
      });
}

void make_room(const Session& session) {
  if (session.job.output.audio) session.make_room("decode_audio");
  session.make_room("decode_video");
}

// Host memory for the frames of a clip that a GPU decodes as one batch; else not valid.
std::future<std::vector<uint8_t>> prepare_frames(const Plan& plan) {
  const auto& tiles = plan.decode.tiles;
  if (!plan.device.is_cuda() || tiles.size() > 1 || tiles.front().tiled()) return {};
  return io::prepare_memory(plan.format.num_frames * plan.format.frame_bytes());
}

// Collective. Loading is agreed on, so that a rank that cannot load leaves no other one in the
// middle of its tiles; on what comes after it the caller has to agree.
void decode_tiles(const Session& session, const at::Tensor& video_latent, io::FrameSink* sink) {
  const auto& [plan, ranks] = std::tie(session.plan, session.ranks);
  const parallel::DistributedDecoder tiles(plan.decode, decoder_ranks(ranks));
  const auto decoder = video_decoder(session);
  session.residents->done_with(Kept::video_decoder);
  int64_t next_frame = 0;
  auto memory = ranks.is_driver() ? prepare_frames(plan) : std::future<std::vector<uint8_t>>();
  ColourWatch colours;
  Progress progress("decode", plan.decode.num_tiles(), ranks.is_driver());
  tiles.decode(
      decoder.get(), video_latent.to(plan.device, plan.dtype),
      [&](const at::Tensor& frames) {
        session.phases.end_step();  // the files' disk may be slow
        const at::Tensor bytes = vae::to_uint8(frames);
        colours.look(bytes);
        sink->push(io::make_frame_batch(bytes, next_frame,
                                        memory.valid() ? memory.get() : std::vector<uint8_t>()));
        next_frame += frames.size(0);
      },
      [&](int64_t done, int64_t all) {
        progress.update(done);
        session.phases.tell_step("decode_video", done, all, progress.eta_s(), "tile");
        if (done < all) session.phases.at_step(done + 1, all, "tile");
        if (session.safe_points != nullptr) session.safe_points->alone();
      });
  colours.warn();
}

void send_sound(comm::Communicator& ranks, const audio::Waveform& sound) {
  const auto shape = sound.samples.sizes();
  ranks.send(at::tensor({sound.sample_rate, shape[0], shape[1], shape[2]}, at::kLong), kDriver,
             kSoundTag);
  ranks.send(sound.samples.contiguous().cpu(), kDriver, kSoundTag);
}

audio::Waveform receive_sound(comm::Communicator& ranks, int from) {
  at::Tensor facts = at::zeros({4}, at::kLong);  // sample rate, shape of the samples
  ranks.receive(facts, from, kSoundTag);
  const auto* fact = facts.const_data_ptr<int64_t>();
  audio::Waveform sound{at::empty({fact[1], fact[2], fact[3]}, at::kFloat), fact[0]};
  ranks.receive(sound.samples, from, kSoundTag);
  return sound;
}

}  // namespace

std::shared_ptr<vae::VideoDecoder> video_decoder(const Session& session) {
  const auto& [files, plan, ranks] = std::tie(session.files, session.plan, session.ranks);
  const bool together = plan.decode.grid.num_tiles() > 1;
  const auto load = [&]() -> std::shared_ptr<vae::VideoDecoder> {
    if (!together && !ranks.is_driver()) return nullptr;
    return std::make_shared<vae::VideoDecoder>(
        vae::VideoDecoder::from_checkpoint(files.video_vae(), plan.dtype, plan.device,
                                           together ? ranks.load_arena() : loader::load_alone));
  };
  return session.residents->get<vae::VideoDecoder>(
      Kept::video_decoder,
      session.key_of(*files.video_vae()) + (together ? "on all ranks" : "on the driver"), ranks,
      [&] { return ranks.agreed(load); });
}

void decode_video(const Session& session, const at::Tensor& video_latent, io::FrameSink* sink) {
  session.ranks.agreed([&] {
    session.phases.run("decode_video", [&] { decode_tiles(session, video_latent, sink); });
  });
}

audio::Waveform decode_audio(const Session& session, const at::Tensor& audio_latent) {
  return session.phases.run("decode_audio", [&] {
    const auto decoder = get_sound_decoder(session);
    auto waveform = audio::decode_audio(decoder->spectrogram, decoder->vocoder,
                                        audio_latent.to(session.plan.device, session.plan.dtype));
    if (!at::isfinite(waveform.samples).all().item<bool>()) {
      fail(ErrorKind::non_finite, "the decoded sound has non-finite samples");
    }
    return waveform;
  });
}

std::optional<audio::Waveform> decode_clip(const Session& session, const ClipLatents& latents,
                                           io::FrameSink* sink) {
  const Ranks& ranks = session.ranks;
  const bool has_sound = session.job.output.audio;
  const bool alone = ranks.world_size() == 1;
  const int sound_rank = ranks.world_size() - 1;  // has as few tiles as any
  std::optional<audio::Waveform> sound;
  make_room(session);
  auto end_of_frames = Clock::now();
  ranks.agreed([&] {
    // The short work first, where nobody waits for the other.
    if (has_sound && alone) sound = decode_audio(session, latents.audio);
    session.phases.run("decode_video", [&] { decode_tiles(session, latents.video, sink); });
    end_of_frames = Clock::now();
    if (has_sound && !alone && ranks.rank() == sound_rank)
      sound = decode_audio(session, latents.audio);
  });
  if (!has_sound || alone) return sound;
  if (ranks.rank() == sound_rank) send_sound(*decoder_ranks(ranks), *sound);
  if (!ranks.is_driver()) return std::nullopt;
  sound = receive_sound(*decoder_ranks(ranks), sound_rank);
  // The driver's time for the sound is what it waits for the other rank.
  const std::chrono::duration<double> waited = Clock::now() - end_of_frames;
  session.phases.add("decode_audio", waited.count());
  return sound;
}

}  // namespace flotilla::pipeline
