#!/usr/bin/env python3
"""Times denoise forwards of the LTX-2 Python reference, for scripts/bench_vs_reference.sh.

    reference_step.py --reference DIR --model CHECKPOINT --precision bf16 --clip 768x512x121 ...

DIR is a checkout of Lightricks/LTX-2, or a folder that holds its package ltx_core. The model has
the configuration of CHECKPOINT's header and random weights. On a GPU its blocks are compiled and
the loop over them is one CUDA graph, the fastest way that the reference has; on a CPU it runs as
it is, to try the script. After the line "ready" on stdout, each line on stdin asks for a round, and
a line {"WIDTHxHEIGHTxFRAMES": [milliseconds, ...], ...} answers.
"""
import argparse
import json
import pathlib
import struct
import sys
import time

WEIGHT_STD = 0.02
SIGMA = 0.8
FRAME_RATE = 24.0
TEXT_TOKENS = 1024
# As if a calibration had found activations up to 8.
INPUT_SCALE = 8.0 / 448.0


def import_reference(folder):
    inner = pathlib.Path(folder) / "packages" / "ltx-core" / "src"
    sys.path.insert(0, str(inner if inner.is_dir() else folder))


def read_config(checkpoint):
    with open(checkpoint, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        metadata = json.loads(file.read(size))["__metadata__"]
    return json.loads(metadata["config"])


def draw_weights(model):
    for name, weight in model.named_parameters():
        weight.requires_grad_(False)
        if name.endswith("norm.weight"):
            weight.data.fill_(1.0)
        else:
            weight.data.normal_(0.0, WEIGHT_STD)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.zero_()


def store_in_fp8(model, device):
    """The linear layers that the reference's fp8 policies name, with scales per tensor."""
    import torch
    from ltx_core.quantization.fp8_cast import _is_fp8_cast_linear
    from ltx_core.quantization.fp8_scaled_mm import FP8Linear, quantize_weight_to_fp8_per_tensor

    chosen = [(name, layer) for name, layer in model.named_modules()
              if isinstance(layer, torch.nn.Linear) and _is_fp8_cast_linear(name)]
    for name, layer in chosen:
        packed = FP8Linear(layer.in_features, layer.out_features, layer.bias is not None, device)
        weight, scale = quantize_weight_to_fp8_per_tensor(layer.weight.data)
        values = {"weight": weight, "weight_scale": scale.float(),
                  "input_scale": torch.tensor(INPUT_SCALE, device=device)}
        if layer.bias is not None:
            values["bias"] = layer.bias.data
        for key, value in values.items():
            setattr(packed, key, torch.nn.Parameter(value, requires_grad=False))
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, packed)
        layer.weight = layer.bias = None  # one copy at a time


def build(config, precision, device):
    import torch
    from ltx_core.model.transformer.compiling import CompilationConfig, compile_transformer
    from ltx_core.model.transformer.model_configurator import LTXModelConfigurator

    with torch.device("meta"):
        model = LTXModelConfigurator.from_metadata({"config": config}).to(torch.bfloat16)
    model.to_empty(device=device)
    draw_weights(model)
    if precision == "fp8_scaled_mm":
        store_in_fp8(model, device)
    model.eval()
    if device.type == "cuda":
        compile_transformer(model, CompilationConfig(capture=True))
    return model


def make_inputs(clip, config, device):
    """Video and audio of a clip in the middle of a run, with a timestep a token, as its pipelines."""
    import torch
    from ltx_core.components.patchifiers import AudioPatchifier, VideoLatentPatchifier
    from ltx_core.model.transformer.modality import Modality
    from ltx_core.tools import AudioLatentTools, VideoLatentTools
    from ltx_core.types import AudioLatentShape, VideoLatentShape, VideoPixelShape

    width, height, frames = clip
    pixels = VideoPixelShape(1, frames, height, width, FRAME_RATE)
    tools = (
        VideoLatentTools(VideoLatentPatchifier(patch_size=1),
                         VideoLatentShape.from_pixel_shape(pixels), FRAME_RATE),
        AudioLatentTools(AudioPatchifier(patch_size=1),
                         AudioLatentShape.from_video_pixel_shape(pixels)),
    )
    sigma = torch.full((1,), SIGMA, device=device)
    streams = []
    for tool, context_width in zip(tools, (config["cross_attention_dim"],
                                           config["audio_cross_attention_dim"])):
        state = tool.create_initial_state(device, torch.bfloat16)
        context = torch.randn(1, TEXT_TOKENS, context_width, device=device, dtype=torch.bfloat16)
        streams.append(Modality(latent=torch.randn_like(state.latent), sigma=sigma,
                                timesteps=state.denoise_mask * sigma.view(-1, 1, 1),
                                positions=state.positions, context=context, context_mask=None,
                                keyframes_mask=None))
    return streams


def parse_clip(text):
    width, height, frames = (int(part) for part in text.split("x"))
    return width, height, frames


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", choices=["bf16", "fp8_scaled_mm"], default="bf16")
    parser.add_argument("--clip", action="append", required=True)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--iters", type=int, default=5)
    args = parser.parse_args()
    import_reference(args.reference)
    import torch
    from ltx_core.model.transformer.model import X0Model

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = read_config(args.model)
    model = X0Model(build(config, args.precision, device))
    inputs = {clip: make_inputs(parse_clip(clip), config["transformer"], device)
              for clip in args.clip}

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()

    def milliseconds(clip):
        video, audio = inputs[clip]
        wait()
        start = time.perf_counter()
        result = model(video=video, audio=audio, perturbations=None)
        wait()
        return 1e3 * (time.perf_counter() - start), result

    for clip in args.clip:
        for _ in range(args.warmup):
            _, result = milliseconds(clip)
        if not all(bool(torch.isfinite(part).all()) for part in result):
            sys.exit(f"reference_step.py: results of {clip} are not finite")
    print("ready", flush=True)
    for _ in sys.stdin:
        # The first pass after a pause is not counted.
        print(json.dumps({clip: [round(milliseconds(clip)[0], 3)
                                 for _ in range(args.iters + 1)][1:] for clip in args.clip}),
              flush=True)


if __name__ == "__main__":
    main()
