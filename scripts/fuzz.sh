#!/usr/bin/env bash
# Long runs of the fuzzers (tests/fuzz), one after the other, at the lowest priority.
#   scripts/fuzz.sh [--inputs N | --seconds T] [--seed S] [FUZZER...]
# N inputs (1000000 unless you say otherwise) or T seconds each; FUZZER: job sweep request safetensors
# latents hdf5 png jpeg webp frame, all of them if none is named. BUILD: the folder of the build,
# build/cpu. The exit code is 1 when one of them found something; what it found lies in out/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/cpu}
limit=(--inputs 1000000) seed=1 fuzzers=()
while (($#)); do
  case $1 in
    --inputs | --seconds) limit=("$1" "${2:?$1 needs a number}"); shift ;;
    --seed) seed=${2:?--seed needs a number}; shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit ;;
    -*) echo "fuzz.sh: unknown option $1" >&2; exit 2 ;;
    *) fuzzers+=("$1") ;;
  esac
  shift
done
((${#fuzzers[@]})) || fuzzers=(job sweep request safetensors latents hdf5 png jpeg webp frame)

cmake --build "$build" --target "${fuzzers[@]/#/fuzz_}" >&2
programs=$(realpath "$build")/tests/fuzz
mkdir -p out/fuzz
cd out/fuzz
failed=()
for fuzzer in "${fuzzers[@]}"; do
  OMP_NUM_THREADS=1 nice -n 19 "$programs/fuzz_$fuzzer" "${limit[@]}" --seed "$seed" || failed+=("$fuzzer")
done
((${#failed[@]} == 0)) || { echo "fuzz.sh: something was found by: ${failed[*]}; see out/fuzz and CONTRIBUTING.md" >&2; exit 1; }
