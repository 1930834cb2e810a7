#!/usr/bin/env python3
"""Installs the build into a folder with a space in its name, moves that, and builds docs/examples/runner on it, as an
outside project would. The example's latents, on 1 and 2 ranks, are compared with those of the installed program.

  install_test.py --build DIR --source DIR --work DIR --cmake CMAKE --mpiexec MPIEXEC --generator G --cxx COMPILER --torch DIR
"""
import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

JOB = """\
pipeline: {pipeline}
models:
  checkpoint: {tiny}/ltx23-dev.safetensors
  spatial_upsampler: {tiny}/ltx23-spatial-upscaler-x2.safetensors
  text_encoder: {tiny}/gemma
{models}prompt: a boat
seed: 3
device: cpu
precision: fp32
{more}output: {{path: out.y4m, latents: {name}.h5, overwrite: true}}
"""
LORA = "  loras: [{{path: {tiny}/ltx23-distilled-lora.safetensors, strength: 0.5}}]\n"
DISTILLED_LORA = "  distilled_lora: {{path: {tiny}/ltx23-distilled-lora.safetensors}}\n"
SMALL = "video: {width: 128, height: 64, num_frames: 9, frame_rate: 24}\n"
# Sequence parallelism, guidance, then tiles.
GUIDED = ("video: {width: 256, height: 128, num_frames: 9, frame_rate: 24}\nnegative_prompt: fog\n"
          "stage_1: {steps: 2}\nstage_2: {parallel: tdp, tiles: {grid: [1, 1, 2], overlap: 2}}\n")


def call(what: str, command: list, expected: int = 0, **options) -> str:
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if (result.returncode == 0) != (expected == 0):
        sys.exit(f"{what}: exit code {result.returncode}\n{' '.join(map(str, command))}\n{result.stdout[-6000:]}")
    return result.stdout


def require(condition: bool, text: str) -> None:
    if not condition:
        sys.exit(text)


def install(options: argparse.Namespace) -> Path:
    first, prefix = options.work / "first place", options.work / "pre fix"
    call("install", [options.cmake, "--install", options.build, "--prefix", first])
    first.rename(prefix)  # nothing may depend on where it was
    for name in ["include/flotilla/pipeline/run_job.h", "include/flotilla/parallel/wrap.h", "include/flotilla/version.h",
                 "share/flotilla/configs/demo.yaml", "share/flotilla/models/demo/ltx-demo-dev.safetensors",
                 "share/doc/flotilla/configuration.md", "share/bash-completion/completions/flotilla"]:
        require((prefix / name).exists(), f"{name} was not installed")
    package = next(prefix.rglob("FlotillaConfig.cmake")).parent
    for file in package.glob("*.cmake"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            names_tree = str(options.source) in line or str(options.build) in line
            require(not names_tree or "FLOTILLA_TORCH_ROOT" in line, f"{file.name}:{number} names the build: {line}")
    print(call("--version", [prefix / "bin/flotilla", "--version"]).splitlines()[0])
    return prefix


def check_completion(prefix: Path) -> None:
    script = (f"PATH='{prefix}/bin':$PATH; . '{prefix}/share/bash-completion/completions/flotilla'; "
              "COMP_WORDS=(flotilla ru); COMP_CWORD=1; _flotilla; echo ${COMPREPLY[@]}; "
              "COMP_WORDS=(flotilla decode --over); COMP_CWORD=2; _flotilla; echo ${COMPREPLY[@]}")
    require(call("completion", ["bash", "-c", script]).split() == ["run", "--overwrite"], "bash completion is wrong")


def build_example(options: argparse.Namespace, prefix: Path) -> Path:
    build = options.work / "runner"
    configure = [options.cmake, "-S", options.source / "docs/examples/runner", "-G", options.generator,
                 f"-DCMAKE_CXX_COMPILER={options.cxx}", f"-DCMAKE_PREFIX_PATH={prefix}"]
    said = call("configure without LibTorch", configure + ["-B", options.work / "refused", "-DFLOTILLA_TORCH_ROOT=/nowhere"], expected=1)
    require("/nowhere has no lib/lib" in said, f"no hint where LibTorch is missing:\n{said}")
    call("configure", configure + ["-B", build, f"-DFLOTILLA_TORCH_ROOT={options.torch}"])
    call("build", [options.cmake, "--build", build])
    return build / "runner"


def compare(options: argparse.Namespace, prefix: Path, runner: Path) -> None:
    tiny = Path(os.environ.get("FLOTILLA_TINY_DIR") or options.source / "tests/data/tiny")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def launch(what: str, ranks: int, command: list) -> str:
        launcher = [options.mpiexec, "-n", ranks] if ranks > 1 else []
        return call(f"{what} on {ranks} ranks", launcher + command, env=environment, cwd=options.work)

    for name, pipeline, models, more, ranks in [("distilled", "distilled", LORA, SMALL, [1, 2]),
                                                ("guided", "ti2vid_two_stages", DISTILLED_LORA, GUIDED, [2])]:
        job = options.work / f"{name}.yaml"
        job.write_text(JOB.format(tiny=tiny, name=name, pipeline=pipeline, models=models.format(tiny=tiny), more=more))
        launch(f"flotilla run {name}", ranks[0], [prefix / "bin/flotilla", "run", job, "--quiet"])
        for count in ranks:
            print(f"{name}, {count} ranks:", launch(f"runner {name}", 1, [runner, count, job, options.work / f"{name}.h5"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ["build", "source", "work", "torch"]:
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ["cmake", "mpiexec", "generator", "cxx"]:
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    prefix = install(options)
    check_completion(prefix)
    compare(options, prefix, build_example(options, prefix))
    shutil.rmtree(options.work)  # some hundred MB; kept for a look after a failure


main()
