// From a picture's bytes to the pixels that a video VAE encodes: re-compression, resize, crop,
// range. Formulas and order of the steps are those of the LTX-2 reference (ltx_pipelines,
// utils/media_io).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>

namespace flotilla::io {

// Scales `image` (uint8 [H, W, 3]) to fill height x width, keeping its proportions (bilinear,
// half-pixel centres, no antialias), and cuts the middle out; -> float32 [1, 3, 1, height, width]
// in [-1, 1].
at::Tensor resize_and_center_crop(const at::Tensor& image, int64_t height, int64_t width);

// The picture after one H.264 frame (libx264 "veryfast", 4:2:0) at `crf`: what the models saw in
// training. uint8 [H, W, 3] -> uint8 [H, W, 3] with odd sides cut by one. crf 0 and pictures with a
// side of one pixel come back as they are, without ffmpeg. One encoder thread and nothing on disk,
// so equal pictures give equal bytes with one build of ffmpeg. Errors: ErrorKind::config for a crf
// outside 0..51; ErrorKind::machine without a working ffmpeg.
at::Tensor recompress_image(const at::Tensor& image, int crf, const std::filesystem::path& ffmpeg);

// read_image, recompress_image and resize_and_center_crop in a row.
at::Tensor load_conditioning_image(const std::filesystem::path& path, int64_t height, int64_t width,
                                   int crf, const std::filesystem::path& ffmpeg);

}  // namespace flotilla::io
