#!/usr/bin/env bash
# The demo clip, whole process, ours and the LTX-2 Python reference, interleaved, two threads each.
#   scripts/bench_demo_vs_reference.sh REFERENCE_DIR PYTHON [RUNS]
# REFERENCE_DIR: a checkout of Lightricks/LTX-2; PYTHON: an interpreter with its packages.
set -euo pipefail
cd "$(dirname "$0")/.."
reference=${1:?folder of the reference} python=${2:?interpreter with its packages} runs=${3:-3}
program=${FLOTILLA:-build/cpu/app/flotilla}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export OMP_NUM_THREADS=2

seconds() {  # wall-clock seconds of a command
  local start; start=$(date +%s.%N)
  "$@" >"$out/log" 2>&1 || { cat "$out/log" >&2; exit 1; }
  date +%s.%N | awk -v start="$start" '{printf "%.2f", $1 - start}'
}

printf '# demo clip 384x256, 25 frames, whole process, 2 threads, %s\n' "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)"
printf '# %s\n# run   flotilla (s)   reference (s)   ratio\n' "$("$program" --version | head -1)"
for run in $(seq "$runs"); do
  ours=$(seconds "$program" run configs/demo.yaml --output "$out/ours.mp4" --overwrite \
    --set output.latents= --set output.metrics= --set output.contact_sheet=)
  theirs=$(seconds "$python" scripts/reference_demo.py --reference "$reference" --models models/demo --output "$out/theirs.mp4")
  awk -v r="$run" -v a="$ours" -v b="$theirs" 'BEGIN {printf "  %3d   %12.2f   %13.2f   %5.2f\n", r, a, b, a / b}'
done
