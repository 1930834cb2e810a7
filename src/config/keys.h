// The one table of all keys: for each its name, the member it fills, its rule and its line in
// docs/configuration.md. Reading, the check for unknown keys, --print-config and the test of the
// documentation are visitors of this table:
//   key(name, member, rule)                       a value, see values.h
//   section(name, member, rule)                   a map of further keys
//   list(name, members, rule)                     a list of maps
//   mode_or_section(name, mode, manual, member, rule)  a word, or a map that means `manual`
// A new key is one line here, one member in job.h and one row in the documentation.
#pragma once

#include "config/job.h"
#include "config/values.h"

namespace flotilla::config {

inline constexpr auto kTwoStages = Pipeline::ti2vid_two_stages;

template <typename V>
void visit_keys(V& v, Lora& x) {
  v.key("path", x.path, {.required = true, .doc = "the LoRA's .safetensors file"});
  v.key("strength", x.strength,
        {.min = -100, .max = 100, .doc = "factor of its change to the weights"});
}

template <typename V>
void visit_keys(V& v, Models& x) {
  v.key("checkpoint", x.checkpoint,
        {.doc = "the model in one .safetensors file; or the next three keys instead"});
  v.key("transformer", x.transformer,
        {.doc = "transformer with the text projection, when the parts are files of their own"});
  v.key("video_vae", x.video_vae, {.doc = "video VAE, when the parts are files of their own"});
  v.key("audio_vae", x.audio_vae,
        {.doc = "audio VAE and vocoder, when the parts are files of their own"});
  v.key("spatial_upsampler", x.spatial_upsampler, {.required = true, .doc = "latent upsampler x2"});
  v.key("text_encoder", x.text_encoder,
        {.required = true, .doc = "Gemma: its Hugging Face folder"});
  v.section("distilled_lora", x.distilled_lora,
            {.only = kTwoStages, .doc = "LoRA that stage 2 adds"});
  v.list("loras", x.loras, {.doc = "LoRAs of the whole run, added in this order"});
  v.key(
      "fixed_loras", x.fixed_loras,
      {.doc = "keep no clean copy of the weights: less memory, but LoRAs cannot be changed later"});
}

template <typename V>
void visit_keys(V& v, Video& x) {
  v.key("width", x.width, {.min = 64, .max = 16384, .doc = "pixels, a multiple of 64"});
  v.key("height", x.height, {.min = 64, .max = 16384, .doc = "pixels, a multiple of 64"});
  v.key("num_frames", x.num_frames,
        {.min = 1, .max = 100001, .doc = "frames, 8k + 1: 1, 9, 17, ... 121"});
  v.key("frame_rate", x.frame_rate,
        {.min = 1,
         .max = 240,
         .doc = "frames a second, kept exactly; 23.976, 29.97 and 59.94 mean 24000/1001, "
                "30000/1001 and 60000/1001"});
}

template <typename V>
void visit_keys(V& v, Image& x) {
  v.key("path", x.path, {.required = true, .doc = "PNG, JPEG or WebP file"});
  v.key("frame", x.frame,
        {.min = -100000,
         .max = 100000,
         .doc = "0: the clip starts with the image; later: a keyframe at that frame; negative: a "
                "reference before the clip"});
  v.key("strength", x.strength, {.min = 0, .max = 1, .doc = "1 holds the image, 0 ignores it"});
  v.key("crf", x.crf,
        {.min = 0,
         .max = 51,
         .unset = "auto",
         .doc = "quality of the H.264 round trip that the model expects of images; 0: none; auto: "
                "by the model's version"});
}

template <typename V>
void visit_keys(V& v, ModalityGuidance& x) {
  v.key("cfg", x.cfg,
        {.min = 0,
         .max = 100,
         .doc = "weight of the prompt against the negative prompt; 1: no such pass"});
  v.key("stg", x.stg,
        {.min = 0,
         .max = 100,
         .doc = "weight against a pass with perturbed blocks; 0: no such pass"});
  v.key(
      "modality", x.modality,
      {.min = 0, .max = 100, .doc = "weight of video and sound fitting together; 1: no such pass"});
  v.key("rescale", x.rescale,
        {.min = 0,
         .max = 1,
         .doc = "how far the guided result is brought back to the spread of the unguided one"});
  v.key("skip_step", x.skip_step,
        {.min = 0, .max = 1000, .doc = "steps without guidance after each guided one"});
  v.key("stg_blocks", x.stg_blocks,
        {.min = 0,
         .max = 1000,
         .unset = "auto",
         .doc = "transformer blocks that the stg pass perturbs; auto: [28] from LTX-2.3 on, [29] "
                "before"});
}

template <typename V>
void visit_keys(V& v, Guidance& x) {
  v.section("video", x.video, {.doc = "guidance of the video"});
  v.section("audio", x.audio, {.doc = "guidance of the sound"});
}

template <typename V>
void visit_keys(V& v, Stage1& x) {
  v.key("steps", x.steps,
        {.min = 1,
         .max = 1000,
         .unset = "auto",
         .only = kTwoStages,
         .doc = "denoising steps of the model's own schedule; auto: 30 from LTX-2.3 on, 40 "
                "before"});
  v.key("sigmas", x.sigmas,
        {.min = 0,
         .max = 1,
         .unset = "auto",
         .doc = "noise levels in place of the schedule, falling, the last one 0"});
  v.key(
      "parallel", x.parallel,
      {.doc =
           "sp: each rank holds a part of the video tokens; none: each computes the stage alike"});
  v.key("guidance_groups", x.guidance_groups,
        {.min = 1,
         .max = 4,
         .unset = "auto",
         .only = kTwoStages,
         .doc = "groups of ranks that share the guidance passes: 1, 2 or 4"});
  v.section("guidance", x.guidance,
            {.only = kTwoStages, .doc = "how the passes of a step are combined"});
}

template <typename V>
void visit_keys(V& v, DenoiseTiles& x) {
  v.key("grid", x.grid, {.min = 1, .max = 64, .unset = "auto", .doc = "tiles along each axis"});
  v.key("overlap", x.overlap,
        {.min = 0, .max = 64, .doc = "overlap of neighbouring tiles in latent cells"});
  v.key("max_first_sigma", x.max_first_sigma,
        {.min = 0,
         .max = 1,
         .doc = "tiles drift apart when stage 2 starts above this noise level: refused"});
  v.key("normalize_positions", x.normalize_positions,
        {.doc = "each tile's positions start at zero"});
}

template <typename V>
void visit_keys(V& v, Stage2& x) {
  v.key("sigmas", x.sigmas,
        {.min = 0,
         .max = 1,
         .unset = "auto",
         .doc = "noise levels, falling, the last one 0; auto: the distilled schedule"});
  v.key("parallel", x.parallel,
        {.doc = "tdp: ranks denoise overlapping tiles (ti2vid_two_stages); auto: sp for distilled, "
                "tdp for ti2vid_two_stages on several ranks"});
  v.section("tiles", x.tiles, {.only = kTwoStages, .doc = "tiles of parallel: tdp"});
}

template <typename V>
void visit_keys(V& v, SequenceParallel& x) {
  v.key("max_tokens", x.max_tokens,
        {.min = 1,
         .max = 2147483647,
         .doc = "video tokens that the buffers of the exchange between ranks have room for; of no "
                "effect on one rank"});
  v.key("transport", x.transport,
        {.doc = "peer: ranks write into each other's memory; nccl: library calls"});
  v.key("exchange_timeout_seconds", x.exchange_timeout_seconds,
        {.min = 0.1,
         .max = 86400,
         .unset = "auto",
         .doc = "longest wait for another rank inside a step; auto: 10 on GPUs, 120 on CPUs"});
}

template <typename V>
void visit_keys(V& v, Text& x) {
  v.key("parallel", x.parallel,
        {.doc = "shard: the encoder's layers are spread over the ranks; replicate: each rank "
                "encodes some of the prompts"});
  v.key("strict_length", x.strict_length,
        {.doc = "a prompt that is too long is an error, not a warning"});
  v.key("enhance", x.enhance, {.doc = "rewrite the prompt with the text model first"});
  v.key("enhancer", x.enhancer, {.doc = "folder of another text model for enhance"});
}

template <typename V>
void visit_keys(V& v, DecoderTiles& x) {
  v.key("grid", x.grid,
        {.min = 1,
         .max = 64,
         .unset = "auto",
         .doc = "tiles along each axis, spread over the ranks"});
  v.key("overlap", x.overlap,
        {.min = 0, .max = 64, .doc = "overlap of neighbouring tiles in latent cells"});
}

template <typename V>
void visit_keys(V& v, AxisTiling& x) {
  v.key("size", x.size,
        {.min = 1,
         .max = 100000,
         .doc = "pixels (multiple of 32, at least 64) or frames (multiple of 8, at least 16); "
                "empty: not cut"});
  v.key("overlap", x.overlap,
        {.min = 0,
         .max = 100000,
         .doc = "pixels (multiple of 32) or frames (multiple of 8), smaller than size"});
}

template <typename V>
void visit_keys(V& v, Tiling& x) {
  v.section("spatial", x.spatial, {.doc = "tiles along height and width, in pixels"});
  v.section("temporal", x.temporal, {.doc = "tiles along time, in frames"});
}

template <typename V>
void visit_keys(V& v, Decoder& x) {
  v.section("tiles", x.tiles, {.doc = "tiles over the ranks"});
  v.mode_or_section("tiling", x.tiling.mode, TilingMode::manual, x.tiling,
                    {.doc = "tiles inside a rank, to save memory; by hand with the keys below"});
}

template <typename V>
void visit_keys(V& v, Checkpoint& x) {
  v.key("path", x.path, {.doc = "HDF5 file for the state of the run; empty: none is written"});
  v.key("every_steps", x.every_steps,
        {.min = 0, .max = 100000, .doc = "write it every so many steps; 0: between stages only"});
  v.key("resume", x.resume,
        {.doc = "auto: go on where a fitting file is found; must: refuse to start without one"});
}

template <typename V>
void visit_keys(V& v, Limits& x) {
  v.key("max_hours", x.max_hours,
        {.min = 0.001,
         .max = 100000,
         .doc = "stop with a checkpoint before this time is over; empty: no limit"});
  v.key("stop_file", x.stop_file, {.doc = "stop with a checkpoint when this file appears"});
}

template <typename V>
void visit_keys(V& v, Output& x) {
  v.key("path", x.path, {.required = true, .doc = "the clip"});
  v.key("latents", x.latents, {.doc = "HDF5 file with the latents of every stage"});
  v.key("metrics", x.metrics, {.doc = "JSON file with times and sizes"});
  v.key("contact_sheet", x.contact_sheet, {.doc = "PNG with a few frames side by side"});
  v.key("save_frames", x.save_frames, {.doc = "put the decoded frames into the latents file too"});
  v.key("audio", x.audio, {.doc = "false: decode and write no sound"});
  v.key("overwrite", x.overwrite, {.doc = "replace files that exist"});
}

template <typename V>
void visit_keys(V& v, Job& x) {
  v.key("schema_version", x.schema_version,
        {.min = 1, .max = 1, .doc = "version of this file format"});
  v.key("pipeline", x.pipeline,
        {.doc = "distilled: few steps, no guidance; ti2vid_two_stages: guided first stage"});
  v.section("models", x.models, {.doc = "model files"});
  v.key("prompt", x.prompt, {.required = true, .doc = "what to show and to hear"});
  v.key("negative_prompt", x.negative_prompt,
        {.only = kTwoStages, .doc = "what to avoid; the empty text is a negative prompt too"});
  v.key("seed", x.seed,
        {.doc = "start of the random numbers, of which the CPU generator uses the low 32 bits; "
                "empty: 32 bits are drawn, printed and stored"});
  v.key("noise_device", x.noise_device,
        {.doc = "where noise is drawn; cpu gives the same noise on every machine"});
  v.section("video", x.video, {.doc = "size, length and rate of the clip"});
  v.list("images", x.images, {.doc = "images that the clip is to show"});
  v.section("stage_1", x.stage_1, {.doc = "denoising at half size"});
  v.section("stage_2", x.stage_2, {.doc = "denoising at full size, after the upsampler"});
  v.section("sp", x.sp, {.doc = "sequence parallelism"});
  v.section("text", x.text, {.doc = "text encoder"});
  v.section("decoder", x.decoder, {.doc = "video decoder"});
  v.key("device", x.device, {.doc = "auto: GPUs when there are any"});
  v.key("precision", x.precision,
        {.doc = "weights and computation; auto: bf16 on GPUs, fp32 on CPUs, fp8_cast for a file of "
                "8-bit weights"});
  v.key("attention", x.attention, {.doc = "attention kernel; auto: the fastest that works here"});
  v.key("graphs", x.graphs, {.doc = "capture steps as CUDA graphs"});
  v.key("offload", x.offload,
        {.doc = "keep the transformer's weights elsewhere and bring them block by block; one rank "
                "only"});
  v.key("allow_shared_device", x.allow_shared_device,
        {.doc = "several ranks may share one GPU: for tests"});
  v.key("reproducible", x.reproducible,
        {.doc = "run: same bytes on the same number of ranks; world: on any number"});
  v.section("checkpoint", x.checkpoint, {.doc = "state of the run, to go on after a stop"});
  v.section("limits", x.limits, {.doc = "when to stop early"});
  v.key("threads", x.threads,
        {.min = 1,
         .max = 4096,
         .unset = "auto",
         .doc = "CPU threads of a rank; at most 4 for each core"});
  v.section("output", x.output, {.doc = "files to write"});
}

}  // namespace flotilla::config
