// The end of a job: latents become frames, in tiles over the ranks, and sound, which the last rank
// makes while the driver still blends. Next: parallel/distributed_decoder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "audio/vocoder.h"
#include "io/frame_sink.h"
#include "pipeline/stages.h"
#include "vae/decoder.h"

namespace flotilla::pipeline {

// The decoder of the job, which is loaded by whoever needs it first: of several tiles all ranks
// load together, each reading a share; of one tile the driver alone, and the others have null.
// Collective; errors are agreed on.
std::shared_ptr<vae::VideoDecoder> video_decoder(const Session& session);

// Frames in time order, uint8, go to `sink` on the driver (null elsewhere), which is not finished.
// Collective. Errors are agreed on;
// ErrorKind::non_finite names the tile.
void decode_video(const Session& session, const at::Tensor& video_latent, io::FrameSink* sink);

// On this rank alone. Errors: ErrorKind::non_finite.
audio::Waveform decode_audio(const Session& session, const at::Tensor& audio_latent);

// Both. The sound is given on the driver, when the job wants it, on the CPU where it comes from
// another rank. Collective; errors are agreed on.
std::optional<audio::Waveform> decode_clip(const Session& session, const ClipLatents& latents,
                                           io::FrameSink* sink);

}  // namespace flotilla::pipeline
