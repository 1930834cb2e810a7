// Models with any number of heads, for worlds that do not divide those of the tiny checkpoints: the
// tiny weights cut down to fewer heads.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "support/golden.h"
#include "support/safetensors_file.h"
#include "support/temp_dir.h"
#include "transformer/transformer.h"

namespace flotilla::test {

// Whether an axis of a weight counts something else than heads: channels of latents, captions and
// sinusoids, rows of tables.
inline bool is_fixed_axis(const std::string& name, int64_t axis) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("scale_shift_table") || has("proj_out.")) return axis == 0;
  return axis == 1 && (has("patchify_proj.") || has("linear_1.weight"));
}

// "ltx23" or "ltx20" with `heads` heads of the sizes that they have; fp32 on the CPU unless said
// otherwise. The audio heads are as many; text contexts have the width of the stream.
inline std::unique_ptr<transformer::Transformer> sliced_model(const std::string& version,
                                                              int64_t heads,
                                                              const nlohmann::json& overrides = {},
                                                              at::ScalarType dtype = at::kFloat) {
  const auto whole = open_tiny(version + "-dev.safetensors");
  nlohmann::json config = whole->config();
  auto& entries = config.at("transformer");
  const auto of = entries.at("num_attention_heads").get<int64_t>();
  for (const std::string stream : {"", "audio_"}) {
    entries[stream + "num_attention_heads"] = heads;
    entries[stream + "cross_attention_dim"] =
        heads * entries.at(stream + "attention_head_dim").get<int64_t>();
  }
  if (!overrides.empty()) entries.update(overrides);

  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, info] : whole->tensors()) {
    if (!name.starts_with("model.diffusion_model.") || name.find("connector") != std::string::npos)
      continue;
    at::Tensor weight = whole->read(name);
    for (int64_t axis = 0; axis < weight.dim(); ++axis) {
      if (!is_fixed_axis(name, axis))
        weight = weight.narrow(axis, 0, weight.size(axis) * heads / of);
    }
    weights[name] = weight;
  }
  const TempDir folder;
  write_safetensors(folder / "model.safetensors", weights, {{"config", config.dump()}});
  return std::make_unique<transformer::Transformer>(
      loader::Checkpoint::open(folder / "model.safetensors"), dtype, at::kCPU);
}

}  // namespace flotilla::test
