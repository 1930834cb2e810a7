#include "diffusion/conditioning.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "diffusion/patchify.h"

namespace flotilla::diffusion {
namespace {

void check_strength(double strength) {
  if (strength >= 0.0 && strength <= 1.0) return;
  fail(ErrorKind::input,
       fmt::format("a conditioning strength ({}) must be between 0 and 1", strength));
}

void check_channels(const VideoLatentSize& item, const VideoLatentSize& target) {
  if (item.batch == target.batch && item.channels == target.channels) return;
  fail(ErrorKind::input,
       fmt::format("a conditioning latent of batch {} and {} channels does not fit batch {} and {} "
                   "channels",
                   item.batch, item.channels, target.batch, target.channels));
}

void check_frames_fit(const VideoLatentSize& item, int64_t first, const VideoLatentSize& target) {
  if (item.height != target.height || item.width != target.width) {
    fail(ErrorKind::input,
         fmt::format("a conditioning latent of {} x {} cells cannot replace a frame of {} x {}; "
                     "encode the image at the size of the video",
                     item.height, item.width, target.height, target.width));
  }
  if (first < 0 || first + item.frames > target.frames) {
    fail(ErrorKind::input, fmt::format("latent frames {} to {} lie outside a latent of {} frames",
                                       first, first + item.frames - 1, target.frames));
  }
}

// Attention strength as [B, M].
at::Tensor expand_strength(const AttentionStrength& strength, const at::Tensor& tokens) {
  const int64_t batch = tokens.size(0);
  const int64_t count = tokens.size(1);
  const bool fits = strength.dim() == 0 || (strength.dim() == 1 && strength.size(0) == count) ||
                    (strength.dim() == 2 && strength.size(1) == count &&
                     (strength.size(0) == batch || strength.size(0) == 1));
  if (!fits) {
    fail(ErrorKind::input,
         fmt::format("an attention strength of shape {} fits neither [], [{}] nor [{}, {}]",
                     shape_text(strength.sizes()), count, batch, count));
  }
  return strength.to(tokens.options()).expand({batch, count});
}

// The mask [B, T + M, T + M] after M new tokens: they see each other fully, the tokens of the video
// by `strength`, other conditioning tokens not at all. Tokens that had no mask see each other
// fully. Undefined when no item has asked for a mask.
at::Tensor extend_attention_mask(const LatentState& state, const at::Tensor& tokens,
                                 const AttentionStrength& strength) {
  if (!strength.defined() && !state.attention_mask.defined()) return {};
  const int64_t old_count = state.num_tokens();
  const int64_t new_count = tokens.size(1);
  const int64_t total = old_count + new_count;
  const at::Tensor cross = strength.defined()
                               ? expand_strength(strength, tokens)
                               : at::ones({tokens.size(0), new_count}, tokens.options());

  at::Tensor mask = at::zeros({tokens.size(0), total, total}, tokens.options());
  at::Tensor old_block = mask.narrow(1, 0, old_count).narrow(2, 0, old_count);
  if (state.attention_mask.defined()) {
    old_block.copy_(state.attention_mask);
  } else {
    old_block.fill_(1.0);
  }
  mask.narrow(1, old_count, new_count).narrow(2, old_count, new_count).fill_(1.0);
  const int64_t target = state.num_target_tokens;
  mask.narrow(1, 0, target).narrow(2, old_count, new_count).copy_(cross.unsqueeze(1));
  mask.narrow(1, old_count, new_count).narrow(2, 0, target).copy_(cross.unsqueeze(2));
  return mask;
}

struct NewTokens {
  at::Tensor latent;     // [B, C, F, H, W]
  at::Tensor positions;  // [B, 3, M, 2]
  double strength = 1.0;
  AttentionStrength attention;
};

LatentState append_tokens(LatentState state, const NewTokens& added) {
  check_strength(added.strength);
  const at::Tensor tokens = patchify_video(added.latent).to(state.latent.options());  // [B, M, C]
  const at::Tensor column =
      at::ones({tokens.size(0), tokens.size(1), 1}, state.denoise_mask.options());
  state.attention_mask = extend_attention_mask(state, tokens, added.attention);
  state.latent = at::cat({state.latent, at::zeros_like(tokens)}, 1);
  state.clean = at::cat({state.clean, tokens}, 1);
  state.denoise_mask = at::cat({state.denoise_mask, column * (1.0 - added.strength)}, 1);
  state.positions = at::cat({state.positions, added.positions.to(state.positions.options())}, 2);
  // Given pictures are guidance, not generated keyframes: they carry no mark.
  state.keyframes_mask = at::cat({state.keyframes_mask, at::zeros_like(column)}, 1);
  return state;
}

LatentState apply(LatentState state, const VideoGrid& grid, const ReplaceFrame& item) {
  const VideoLatentSize size = size_of_video(item.latent);
  check_channels(size, grid.size);
  check_frames_fit(size, item.latent_frame, grid.size);
  check_strength(item.strength);
  const int64_t first = item.latent_frame * grid.size.tokens_per_frame();
  state.clean = state.clean.clone();
  state.clean.narrow(1, first, size.num_tokens()).copy_(patchify_video(item.latent));
  state.denoise_mask = state.denoise_mask.clone();
  state.denoise_mask.narrow(1, first, size.num_tokens()).fill_(1.0 - item.strength);
  return state;
}

LatentState apply(LatentState state, const VideoGrid& grid, const AppendKeyframe& item) {
  const VideoLatentSize size = size_of_video(item.latent);
  check_channels(size, grid.size);
  const at::Tensor positions =
      keyframe_positions(grid, size, item.pixel_frame, item.num_pixel_frames);
  return append_tokens(std::move(state), {item.latent, positions, item.strength, item.attention});
}

LatentState apply(LatentState state, const VideoGrid& grid, const AppendReference& item) {
  const VideoLatentSize size = size_of_video(item.latent);
  check_channels(size, grid.size);
  const at::Tensor positions = reference_positions(grid, size, item.scale);
  return append_tokens(std::move(state), {item.latent, positions, item.strength, item.attention});
}

}  // namespace

LatentState apply_conditioning(LatentState state, const VideoGrid& grid,
                               std::span<const ConditioningItem> items) {
  for (const ConditioningItem& item : items) {
    state = std::visit([&](const auto& one) { return apply(std::move(state), grid, one); }, item);
  }
  return state;
}

}  // namespace flotilla::diffusion
