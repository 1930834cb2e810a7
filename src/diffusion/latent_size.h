// Sizes of videos and sounds in pixels and in latent cells, and the rules that tie them.
// The video VAE is causal in time: the first latent frame holds one picture, each further one
// `ScaleFactors::time` pictures. The length of the sound follows from the length of the video.
// Next: patchify.h (latents <-> tokens), positions.h (where a token lies).
#pragma once

#include <cstdint>

namespace flotilla::diffusion {

// Pixels per latent cell of the video VAE.
struct ScaleFactors {
  int64_t time = 8;
  int64_t height = 32;
  int64_t width = 32;
};

struct VideoPixelSize {
  int64_t frames = 0;
  int64_t height = 0;
  int64_t width = 0;
  double frame_rate = 0.0;  // frames per second; 24000/1001 and the like are allowed
};

// Shape of a video latent [B, C, F, H, W]; one token per cell.
struct VideoLatentSize {
  int64_t batch = 1;
  int64_t channels = 128;
  int64_t frames = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t tokens_per_frame() const { return height * width; }
  int64_t num_tokens() const { return frames * tokens_per_frame(); }
  bool operator==(const VideoLatentSize&) const = default;
};

// Shape of an audio latent [B, C, T, mel]; one token per latent frame, C * mel wide.
struct AudioLatentSize {
  int64_t batch = 1;
  int64_t channels = 8;
  int64_t frames = 0;
  int64_t mel_bins = 16;

  int64_t num_tokens() const { return frames; }
  bool operator==(const AudioLatentSize&) const = default;
};

// How audio latent frames lie in time.
struct AudioTiming {
  int64_t sample_rate = 16000;  // Hz
  int64_t hop_length = 160;     // samples per mel frame
  int64_t downsample = 4;       // mel frames per latent frame
  bool causal = true;           // the first latent frame holds one mel frame

  double latents_per_second() const;
};

// Size of the latent of a video. Nothing is rounded: errors (ErrorKind::config) name every side
// that is not positive or does not divide, with the nearest good values below and above.
VideoLatentSize video_latent_size(const VideoPixelSize& pixels, int64_t channels = 128,
                                  const ScaleFactors& scale = {});

// The pixel size that a latent decodes to.
VideoPixelSize decoded_size(const VideoLatentSize& latent, double frame_rate,
                            const ScaleFactors& scale = {});

// Size of the latent of the sound of a video: as long as the video, rounded half to even.
// Errors (ErrorKind::config): a frame rate that is not positive, a video too short for any sound.
AudioLatentSize audio_latent_size(const VideoPixelSize& pixels, int64_t channels = 8,
                                  int64_t mel_bins = 16, const AudioTiming& timing = {});

}  // namespace flotilla::diffusion
