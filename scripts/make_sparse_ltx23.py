#!/usr/bin/env python3
"""Writes models of the true size of LTX-2.3 22B that take no space on the disk.

    scripts/make_sparse_ltx23.py OUT_DIR [--tokenizer DIR] [--lora] [--fill]
                                 [--like CHECKPOINT UPSAMPLER GEMMA]

Every file has a complete header (names, shapes, bfloat16, configuration) and a body that is one
hole: it reads as zeros. That is enough for `flotilla run --dry-run` and `flotilla inspect`, which
read headers only; a clip made with it would be noise. Written are

    ltx-2.3-22b-distilled.safetensors          transformer, connectors, text projection, video VAE,
                                               audio VAE, vocoder with bandwidth extension
    ltx-2.3-spatial-upscaler-x2.safetensors    latent upsampler
    gemma-3-12b/                               text encoder, with the tokenizer of --tokenizer
    ltx-2.3-22b-lora-384.safetensors           with --lora: rank 384

--fill puts random weights into the bodies (66 GiB in all, 71 with --lora), for measuring how fast
files load and whole jobs run.

Every shape follows from the configurations below. --like takes them from other files instead and so
makes sparse twins of those.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import struct
import sys

TRANSFORMER = {
    "_class_name": "AVTransformer3DModel", "activation_fn": "gelu-approximate",
    "apply_gated_attention": True, "attention_bias": True, "attention_head_dim": 128,
    "attention_type": "default", "audio_attention_head_dim": 64,
    "audio_connector_attention_head_dim": 64, "audio_connector_num_attention_heads": 32,
    "audio_cross_attention_dim": 2048, "audio_num_attention_heads": 32, "audio_out_channels": 128,
    "audio_positional_embedding_max_pos": [20], "av_ca_timestep_scale_multiplier": 1000.0,
    "av_cross_ada_norm": True, "caption_channels": 3840, "caption_proj_before_connector": True,
    "caption_proj_input_norm": False, "caption_projection_first_linear": False,
    "caption_projection_second_linear": False, "causal_temporal_positioning": True,
    "connector_apply_gated_attention": True, "connector_attention_head_dim": 128,
    "connector_learnable_registers_std": 1, "connector_norm_output": True,
    "connector_num_attention_heads": 32, "connector_num_layers": 8,
    "connector_num_learnable_registers": 128, "connector_positional_embedding_max_pos": [4096],
    "cross_attention_adaln": True, "cross_attention_dim": 4096, "cross_attention_norm": True,
    "double_self_attention": False, "dropout": 0.0, "frequencies_precision": "float64",
    "in_channels": 128, "norm_elementwise_affine": False, "norm_eps": 1e-6, "norm_num_groups": 32,
    "num_attention_heads": 32, "num_embeds_ada_norm": 1000, "num_layers": 48,
    "num_vector_embeds": None, "only_cross_attention": False, "out_channels": 128,
    "positional_embedding_max_pos": [20, 2048, 2048], "positional_embedding_theta": 10000.0,
    "positional_embedding_type": "rope", "qk_norm": "rms_norm", "rope_type": "split",
    "share_ff": False, "standardization_norm": "rms_norm", "text_encoder_norm_type": "per_token_rms",
    "timestep_scale_multiplier": 1000, "upcast_attention": False,
    "use_audio_video_cross_attention": True, "use_embeddings_connector": True,
    "use_linear_projection": False, "use_middle_indices_grid": True,
}
VIDEO_VAE = {
    "_class_name": "CausalVideoAutoencoder", "dims": 3, "in_channels": 3, "out_channels": 3,
    "latent_channels": 128, "patch_size": 4, "norm_layer": "pixel_norm",
    "latent_log_var": "uniform", "scaling_factor": 1.0, "use_quant_conv": False,
    "causal_decoder": False, "timestep_conditioning": False, "normalize_latent_channels": False,
    "spatial_padding_mode": "zeros", "encoder_base_channels": 128, "decoder_base_channels": 128,
    "encoder_blocks": [
        ["res_x", {"num_layers": 4}], ["compress_space_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 6}], ["compress_time_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 4}], ["compress_all_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}], ["compress_all_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 2}],
    ],
    "decoder_blocks": [
        ["res_x", {"num_layers": 4}], ["compress_space", {"multiplier": 2}],
        ["res_x", {"num_layers": 6}], ["compress_time", {"multiplier": 2}],
        ["res_x", {"num_layers": 4}], ["compress_all", {"multiplier": 1}],
        ["res_x", {"num_layers": 2}], ["compress_all", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}],
    ],
}
AUDIO_VAE = {
    "model": {"params": {"sampling_rate": 16000, "ddconfig": {
        "double_z": True, "mel_bins": 64, "z_channels": 8, "resolution": 256,
        "downsample_time": False, "in_channels": 2, "out_ch": 2, "ch": 128, "ch_mult": [1, 2, 4],
        "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
        "mid_block_add_attention": False, "norm_type": "pixel", "causality_axis": "height"}}},
    "preprocessing": {
        "audio": {"sampling_rate": 16000, "max_wav_value": 32768.0, "duration": 5.12,
                  "stereo": True, "causal_padding": 3},
        "stft": {"filter_length": 1024, "hop_length": 160, "win_length": 1024, "causal": True},
        "mel": {"n_mel_channels": 64, "mel_fmin": 0, "mel_fmax": 8000}},
}
RESBLOCKS = {
    "resblock": "AMP1", "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]], "stereo": True,
    "use_tanh_at_final": False, "activation": "snakebeta", "use_bias_at_final": False,
}
VOCODER = {
    "vocoder": {**RESBLOCKS, "upsample_initial_channel": 1536,
                "upsample_rates": [5, 2, 2, 2, 2, 2], "upsample_kernel_sizes": [11, 4, 4, 4, 4, 4]},
    "bwe": {**RESBLOCKS, "upsample_initial_channel": 512, "upsample_rates": [6, 5, 2, 2, 2],
            "upsample_kernel_sizes": [12, 11, 4, 4, 4], "apply_final_activation": False,
            "input_sampling_rate": 16000, "output_sampling_rate": 48000, "hop_length": 80,
            "n_fft": 512, "win_size": 512, "num_mels": 64},
}
SCHEDULER = {
    "_class_name": "RectifiedFlowScheduler", "num_train_timesteps": 1000, "shifting": None,
    "base_resolution": None, "sampler": "LinearQuadratic",
}
MONOLITH = {"transformer": TRANSFORMER, "scheduler": SCHEDULER, "vocoder": VOCODER,
            "vae": VIDEO_VAE, "audio_vae": AUDIO_VAE}
UPSAMPLER = {
    "_class_name": "LatentUpsampler", "in_channels": 128, "mid_channels": 1024,
    "num_blocks_per_stage": 4, "dims": 3, "spatial_upsample": True, "temporal_upsample": False,
    "spatial_scale": 2.0, "rational_resampler": True,
}
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144,
    "eos_token_id": [1, 106], "mm_tokens_per_image": 256, "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 3840,
        "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 1024,
        "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
        "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
        "num_channels": 3, "vision_use_head": False},
}
TOKENIZER_FILES = ["tokenizer.model", "tokenizer.json", "tokenizer_config.json",
                   "special_tokens_map.json", "generation_config.json", "processor_config.json",
                   "preprocessor_config.json"]
LORA_LEAVES = ("patchify_proj", "proj_out", "audio_patchify_proj", "audio_proj_out",
               "adaln_single.linear", "audio_adaln_single.linear", "prompt_adaln_single.linear")


class Shapes(dict):
    """Tensor name -> shape, with the layers that every model is made of."""

    def layer(self, name, weight, bias=True):
        self[name + ".weight"] = list(weight)
        if bias:
            self[name + ".bias"] = [weight[0]]

    def linear(self, name, outputs, inputs, bias=True):
        self.layer(name, (outputs, inputs), bias)

    def conv(self, name, outputs, inputs, kernel, dims, bias=True):
        self.layer(name, (outputs, inputs) + (kernel,) * dims, bias)

    def norm(self, name, width, bias=False):
        self.layer(name, (width,), bias)

    def attention(self, name, width, context, inner, heads):
        for norm in ("q_norm", "k_norm"):
            self.norm(f"{name}.{norm}", inner)
        self.linear(f"{name}.to_q", inner, width)
        self.linear(f"{name}.to_k", inner, context)
        self.linear(f"{name}.to_v", inner, context)
        self.linear(f"{name}.to_out.0", width, inner)
        self.linear(f"{name}.to_gate_logits", heads, width)

    def feed_forward(self, name, width):
        self.linear(f"{name}.net.0.proj", 4 * width, width)
        self.linear(f"{name}.net.2", width, 4 * width)

    def adaln(self, name, width, rows):
        embedder = f"{name}.emb.timestep_embedder"
        self.linear(f"{embedder}.linear_1", width, 256)
        self.linear(f"{embedder}.linear_2", width, width)
        self.linear(f"{name}.linear", rows * width, width)


def transformer(config):
    needed = {"apply_gated_attention": True, "cross_attention_adaln": True,
              "caption_proj_before_connector": True, "connector_apply_gated_attention": True}
    for key, value in needed.items():
        if config.get(key) != value:
            raise SystemExit(f"{key} is {config.get(key)}, no LTX-2.3; only LTX-2.3 is made here")
    heads, sound_heads = config["num_attention_heads"], config["audio_num_attention_heads"]
    video = heads * config["attention_head_dim"]
    audio = sound_heads * config["audio_attention_head_dim"]
    shapes = Shapes()
    for stream, width, inputs, outputs in (
            ("", video, config["in_channels"], config["out_channels"]),
            ("audio_", audio, config["in_channels"], config["audio_out_channels"])):
        shapes.linear(f"{stream}patchify_proj", width, inputs)
        shapes.linear(f"{stream}proj_out", outputs, width)
        shapes[f"{stream}scale_shift_table"] = [2, width]
        shapes.adaln(f"{stream}adaln_single", width, 9)
        shapes.adaln(f"{stream}prompt_adaln_single", width, 2)
    shapes.adaln("av_ca_video_scale_shift_adaln_single", video, 4)
    shapes.adaln("av_ca_audio_scale_shift_adaln_single", audio, 4)
    shapes.adaln("av_ca_a2v_gate_adaln_single", video, 1)
    shapes.adaln("av_ca_v2a_gate_adaln_single", audio, 1)
    for index in range(config["num_layers"]):
        block = f"transformer_blocks.{index}."
        shapes.attention(block + "attn1", video, video, video, heads)
        shapes.attention(block + "attn2", video, config["cross_attention_dim"], video, heads)
        shapes.attention(block + "audio_attn1", audio, audio, audio, sound_heads)
        shapes.attention(block + "audio_attn2", audio, config["audio_cross_attention_dim"], audio,
                         sound_heads)
        # Between the streams the heads are those of the sound.
        shapes.attention(block + "audio_to_video_attn", video, audio, audio, sound_heads)
        shapes.attention(block + "video_to_audio_attn", audio, video, audio, sound_heads)
        shapes.feed_forward(block + "ff", video)
        shapes.feed_forward(block + "audio_ff", audio)
        for stream, width in (("", video), ("audio_", audio)):
            shapes[f"{block}{stream}scale_shift_table"] = [9, width]
            shapes[f"{block}{stream}prompt_scale_shift_table"] = [2, width]
        shapes[block + "scale_shift_table_a2v_ca_video"] = [5, video]
        shapes[block + "scale_shift_table_a2v_ca_audio"] = [5, audio]
    return shapes


def connector(config, prefix):
    heads = config[prefix + "connector_num_attention_heads"]
    width = heads * config[prefix + "connector_attention_head_dim"]
    shapes = Shapes()
    shapes["learnable_registers"] = [config["connector_num_learnable_registers"], width]
    for index in range(config["connector_num_layers"]):
        block = f"transformer_1d_blocks.{index}."
        shapes.attention(block + "attn1", width, width, width, heads)
        shapes.feed_forward(block + "ff", width)
    return shapes


def text_projection(config, gemma):
    text = gemma["text_config"]
    inputs = (text["num_hidden_layers"] + 1) * text["hidden_size"]
    shapes = Shapes()
    for name, prefix in (("video", ""), ("audio", "audio_")):
        width = (config[prefix + "connector_num_attention_heads"] *
                 config[prefix + "connector_attention_head_dim"])
        shapes.linear(f"{name}_aggregate_embed", width, inputs)
    return shapes


def stride_of(block):
    return {"time": 2, "space": 4, "all": 8}[block.split("_")[1]]


def residual_blocks(shapes, name, channels, count):
    for index in range(count):
        for conv in ("conv1", "conv2"):
            shapes.conv(f"{name}.res_blocks.{index}.{conv}.conv", channels, channels, 3, 3)


def video_vae(config):
    shapes = Shapes()
    latent, patch = config["latent_channels"], config["patch_size"] ** 2
    channels = latent
    shapes.conv("encoder.conv_in.conv", channels, config["in_channels"] * patch, 3, 3)
    for index, (block, options) in enumerate(config["encoder_blocks"]):
        name = f"encoder.down_blocks.{index}"
        if block == "res_x":
            residual_blocks(shapes, name, channels, options["num_layers"])
            continue
        wider = channels * options["multiplier"]
        shapes.conv(f"{name}.conv.conv", wider // stride_of(block), channels, 3, 3)
        channels = wider
    shapes.conv("encoder.conv_out.conv", latent + 1, channels, 3, 3)

    channels = config["decoder_base_channels"] * math.prod(
        options.get("multiplier", 1) for _, options in config["decoder_blocks"])
    shapes.conv("decoder.conv_in.conv", channels, latent, 3, 3)
    # The list of the configuration runs from the pixels to the latent.
    for index, (block, options) in enumerate(reversed(config["decoder_blocks"])):
        name = f"decoder.up_blocks.{index}"
        if block == "res_x":
            residual_blocks(shapes, name, channels, options["num_layers"])
            continue
        narrower = channels // options["multiplier"]
        shapes.conv(f"{name}.conv.conv", narrower * stride_of(block), channels, 3, 3)
        channels = narrower
    shapes.conv("decoder.conv_out.conv", config["out_channels"] * patch, channels, 3, 3)
    for leaf in ("mean-of-means", "std-of-means", "mean-of-stds", "mean-of-stds_over_std-of-means",
                 "channel"):
        shapes[f"per_channel_statistics.{leaf}"] = [latent]
    return shapes


def audio_vae(config):
    config = config["model"]["params"]["ddconfig"]
    shapes = Shapes()

    def residual(name, outputs, inputs):
        shapes.conv(f"{name}.conv1.conv", outputs, inputs, 3, 2)
        shapes.conv(f"{name}.conv2.conv", outputs, outputs, 3, 2)
        if outputs != inputs:
            shapes.conv(f"{name}.nin_shortcut.conv", outputs, inputs, 1, 2)

    channels = config["ch"] * config["ch_mult"][-1]
    shapes.conv("decoder.conv_in.conv", channels, config["z_channels"], 3, 2)
    for block in ("block_1", "block_2"):
        residual(f"decoder.mid.{block}", channels, channels)
    for level in reversed(range(len(config["ch_mult"]))):
        outputs = config["ch"] * config["ch_mult"][level]
        for index in range(config["num_res_blocks"] + 1):
            residual(f"decoder.up.{level}.block.{index}", outputs, channels)
            channels = outputs
        if level > 0:
            shapes.conv(f"decoder.up.{level}.upsample.conv.conv", channels, channels, 3, 2)
    shapes.conv("decoder.conv_out.conv", config["out_ch"], channels, 3, 2)
    for leaf in ("mean-of-means", "std-of-means"):
        shapes[f"per_channel_statistics.{leaf}"] = [config["ch"]]
    return shapes


def generator(config):
    shapes = Shapes()

    def activation(name, width):
        shapes[f"{name}.act.alpha"] = [width]
        shapes[f"{name}.act.beta"] = [width]
        shapes[f"{name}.upsample.filter"] = [1, 1, 12]
        shapes[f"{name}.downsample.lowpass.filter"] = [1, 1, 12]

    channels = config["upsample_initial_channel"]
    shapes.conv("conv_pre", channels, 128, 7, 1)  # two channels of 64 mel bands
    kernels = config["resblock_kernel_sizes"]
    for stage, kernel in enumerate(config["upsample_kernel_sizes"]):
        narrower = channels // 2
        shapes[f"ups.{stage}.weight"] = [channels, narrower, kernel]  # transposed convolution
        shapes[f"ups.{stage}.bias"] = [narrower]
        channels = narrower
        for number, (size, dilations) in enumerate(zip(kernels, config["resblock_dilation_sizes"])):
            block = f"resblocks.{stage * len(kernels) + number}"
            for index in range(len(dilations)):
                for half in ("1", "2"):
                    shapes.conv(f"{block}.convs{half}.{index}", channels, channels, size, 1)
                    activation(f"{block}.acts{half}.{index}", channels)
    activation("act_post", channels)
    shapes.conv("conv_post", 2, channels, 7, 1, bias=False)
    return shapes


def mel_bases(config):
    bins = config["n_fft"] // 2 + 1
    return Shapes({"mel_basis": [config["num_mels"], bins],
                   "stft_fn.forward_basis": [2 * bins, 1, config["n_fft"]],
                   "stft_fn.inverse_basis": [2 * bins, 1, config["n_fft"]]})


def upsampler(config):
    shapes = Shapes()
    latent, width = config["in_channels"], config["mid_channels"]
    shapes.conv("initial_conv", width, latent, 3, 3)
    shapes.norm("initial_norm", width, bias=True)
    for stage in ("res_blocks", "post_upsample_res_blocks"):
        for index in range(config["num_blocks_per_stage"]):
            for half in ("1", "2"):
                shapes.conv(f"{stage}.{index}.conv{half}", width, width, 3, 3)
                shapes.norm(f"{stage}.{index}.norm{half}", width, bias=True)
    if config["rational_resampler"]:
        numerator = {1.5: 3, 2.0: 2}[config["spatial_scale"]]
        shapes.conv("upsampler.conv", numerator**2 * width, width, 3, 2)
        shapes["upsampler.blur_down.kernel"] = [1, 1, 5, 5]
    else:
        shapes.conv("upsampler.0", 4 * width, width, 3, 2)
    shapes.conv("final_conv", latent, width, 3, 3)
    return shapes


def gemma(config):
    text, shapes = config["text_config"], Shapes()
    hidden, head_dim = text["hidden_size"], text["head_dim"]
    queries = text["num_attention_heads"] * head_dim
    keys = text["num_key_value_heads"] * head_dim
    shapes["embed_tokens.weight"] = [text["vocab_size"], hidden]
    for index in range(text["num_hidden_layers"]):
        layer = f"layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                     "post_feedforward_layernorm"):
            shapes.norm(layer + norm, hidden)
        for norm in ("q_norm", "k_norm"):
            shapes.norm(f"{layer}self_attn.{norm}", head_dim)
        for name, outputs, inputs in (("q", queries, hidden), ("k", keys, hidden),
                                      ("v", keys, hidden), ("o", hidden, queries)):
            shapes.linear(f"{layer}self_attn.{name}_proj", outputs, inputs, bias=False)
        for name, outputs, inputs in (("gate", text["intermediate_size"], hidden),
                                      ("up", text["intermediate_size"], hidden),
                                      ("down", hidden, text["intermediate_size"])):
            shapes.linear(f"{layer}mlp.{name}_proj", outputs, inputs, bias=False)
    shapes.norm("norm", hidden)
    return shapes


def gemma_vision(config):
    vision, shapes = config["vision_config"], Shapes()
    width, wide = vision["hidden_size"], vision["intermediate_size"]
    root = "vision_tower.vision_model."
    shapes.conv(root + "embeddings.patch_embedding", width, vision["num_channels"],
                vision["patch_size"], 2)
    positions = (vision["image_size"] // vision["patch_size"]) ** 2
    shapes[root + "embeddings.position_embedding.weight"] = [positions, width]
    for index in range(vision["num_hidden_layers"]):
        layer = f"{root}encoder.layers.{index}."
        for norm in ("layer_norm1", "layer_norm2"):
            shapes.norm(layer + norm, width, bias=True)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes.linear(f"{layer}self_attn.{name}", width, width)
        shapes.linear(layer + "mlp.fc1", wide, width)
        shapes.linear(layer + "mlp.fc2", width, wide)
    shapes.norm(root + "post_layernorm", width, bias=True)
    projector = "multi_modal_projector."
    shapes[projector + "mm_input_projection_weight"] = [width,
                                                        config["text_config"]["hidden_size"]]
    shapes.norm(projector + "mm_soft_emb_norm", width)
    return shapes


def prefixed(prefix, shapes):
    return {prefix + name: shape for name, shape in shapes.items()}


def monolith_shapes(config, gemma_config):
    root = "model.diffusion_model."
    return {
        **prefixed(root, transformer(config["transformer"])),
        **prefixed(root + "video_embeddings_connector.", connector(config["transformer"], "")),
        **prefixed(root + "audio_embeddings_connector.", connector(config["transformer"], "audio_")),
        **prefixed("text_embedding_projection.",
                   text_projection(config["transformer"], gemma_config)),
        **prefixed("vae.", video_vae(config["vae"])),
        **prefixed("audio_vae.", audio_vae(config["audio_vae"])),
        **prefixed("vocoder.vocoder.", generator(config["vocoder"]["vocoder"])),
        **prefixed("vocoder.bwe_generator.", generator(config["vocoder"]["bwe"])),
        **prefixed("vocoder.mel_stft.", mel_bases(config["vocoder"]["bwe"])),
    }


def lora_shapes(config, rank):
    """Adapters of the linear layers of the blocks and of the layers around them."""
    shapes = {}
    for name, shape in transformer(config).items():
        layer = name.removesuffix(".weight")
        if layer == name or len(shape) != 2:
            continue
        if layer.startswith("transformer_blocks.") or layer in LORA_LEAVES:
            shapes[f"diffusion_model.{layer}.lora_A.weight"] = [rank, shape[1]]
            shapes[f"diffusion_model.{layer}.lora_B.weight"] = [shape[0], rank]
    return shapes


def random_bfloat16(count):
    """Bytes of numbers from 2^-7 to 2^-5 of both signs: about those of trained weights."""
    exponent = bytes(byte & 0x80 | 0x3C for byte in range(256))
    values = bytearray(2 * count)
    values[0::2] = os.urandom(count)
    values[1::2] = os.urandom(count).translate(exponent)
    return bytes(values)


def fill(path, begin, size):
    """The same random block over and over, from several threads: the disk is the limit."""
    block = random_bfloat16(32 << 20)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        def write(offset):
            part = memoryview(block)[:min(len(block), size - offset)]
            while part:
                written = os.pwrite(descriptor, part, begin + offset)
                part, offset = part[written:], offset + written
        with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
            for done in [pool.submit(write, at) for at in range(0, size, len(block))]:
                done.result()
    finally:
        os.close(descriptor)


def write_sparse(path, shapes, metadata, filled=False):
    header, offset = {"__metadata__": metadata}, 0
    for name in sorted(shapes):
        size = 2 * math.prod(shapes[name])
        header[name] = {"dtype": "BF16", "shape": shapes[name],
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    if filled:
        fill(path, 8 + len(text), offset)
    print(f"{path}: {len(shapes)} tensors, {offset // 2:,} parameters, {offset / 2**30:.2f} GiB")


def config_of(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        return json.loads(json.loads(file.read(size))["__metadata__"]["config"])


def write_gemma(folder, config, tokenizer, filled):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, folder / name)
    shapes = {**prefixed("language_model.model.", gemma(config)), **gemma_vision(config)}
    write_sparse(folder / "model.safetensors", shapes, {"format": "pt"}, filled)


def main():
    tokenizer = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tiny/gemma"
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=pathlib.Path, metavar="OUT_DIR")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=tokenizer, metavar="DIR",
                        help="folder of the tokenizer to copy (default: the tests' tiny one)")
    parser.add_argument("--lora", action="store_true", help="a LoRA of rank 384, too")
    parser.add_argument("--fill", action="store_true", help="random weights instead of holes")
    parser.add_argument("--like", nargs=3, type=pathlib.Path,
                        metavar=("CHECKPOINT", "UPSAMPLER", "GEMMA"),
                        help="take the configurations from these files instead")
    args = parser.parse_args()

    monolith, enlarger, encoder = MONOLITH, UPSAMPLER, GEMMA
    if args.like:
        monolith, enlarger = config_of(args.like[0]), config_of(args.like[1])
        encoder = json.loads((args.like[2] / "config.json").read_text(encoding="utf-8"))
    args.out_dir.mkdir(parents=True, exist_ok=True)
    write_sparse(args.out_dir / "ltx-2.3-22b-distilled.safetensors",
                 monolith_shapes(monolith, encoder),
                 {"config": json.dumps(monolith), "model_version": "2.3.0"}, args.fill)
    write_sparse(args.out_dir / "ltx-2.3-spatial-upscaler-x2.safetensors", upsampler(enlarger),
                 {"config": json.dumps(enlarger)}, args.fill)
    write_gemma(args.out_dir / "gemma-3-12b", encoder, args.tokenizer, args.fill)
    if args.lora:
        write_sparse(args.out_dir / "ltx-2.3-22b-lora-384.safetensors",
                     lora_shapes(monolith["transformer"], 384), {"format": "pt"}, args.fill)


if __name__ == "__main__":
    sys.exit(main())
