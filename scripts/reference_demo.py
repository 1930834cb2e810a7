#!/usr/bin/env python3
"""Renders the demo clip with the LTX-2 Python reference (its own pipeline, bfloat16, on the CPU).

For comparison only: scripts/bench_demo_vs_reference.sh runs it beside flotilla.
"""
import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", required=True, help="checkout of Lightricks/LTX-2")
    parser.add_argument("--models", required=True, help="folder of the demo model")
    parser.add_argument("--output", required=True, help="mp4 to write")
    args = parser.parse_args()
    packages = Path(args.reference) / "packages"
    sys.path[:0] = [str(packages / "ltx-core" / "src"), str(packages / "ltx-pipelines" / "src")]

    import torch
    from ltx_pipelines.distilled import DistilledPipeline
    from ltx_pipelines.utils.media_io import encode_video
    from ltx_pipelines.utils.model_paths import ModelPaths

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    models = Path(args.models)
    with torch.inference_mode():
        paths = ModelPaths.from_monolith(str(models / "ltx-demo-dev.safetensors"), str(models / "gemma"))
        pipeline = DistilledPipeline(paths, str(models / "ltx-demo-spatial-upscaler-x2.safetensors"), [], device=torch.device("cpu"))
        # Autocast on the CPU has no float32, which the vocoder asks for: give it float32 weights.
        decoder = pipeline.audio_decoder
        build = decoder._vocoder_builder.build

        class Float32Builder:
            def build(self, *positional, **named):
                return build(*positional, **{**named, "dtype": torch.float32})

        decoder._vocoder_builder = Float32Builder()
        video, audio, _, _ = pipeline(prompt="a red circle moving right on a blue background", seed=10, height=256, width=384,
                                      frame_rate=24.0, images=[], num_frames=25)
        encode_video(video=video, fps=24, audio=audio, output_path=args.output, video_chunks_number=1)


if __name__ == "__main__":
    main()
