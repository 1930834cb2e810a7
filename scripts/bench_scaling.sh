#!/usr/bin/env bash
# How this machine scales: everything against the number of ranks, one GPU a rank.
#
#   scripts/bench_scaling.sh [--out DIR] [--minutes 9] [--ranks "1 2 4 8"] [--parts "comm step ..."]
#                            [--reference DIR] [--model CHECKPOINT] [--files DIR]
#                            [--clip WIDTHxHEIGHTxFRAMES ...]
#
# Parts, in this order: topology (links of the GPUs), comm (exchanges and collectives beside NCCL),
# step (one denoise forward at the true size of LTX-2.3 22B, random weights), selftest (ranks against
# one rank), end_to_end (the demo model's jobs, phases), fault (a rank killed in a step and in load),
# load and lora (weights of true size), parallel (a short guided clip of true size: groups of ranks
# for the guidance passes and tiles beside sequence parallelism), full (whole clips of true size),
# tests (ctest, label gpu). --ranks: 1, 2, 4, 8 as far as there are GPUs; without GPUs 1 and 2 on the
# CPU, to try the script. --reference: a checkout of Lightricks/LTX-2 for its exchange beside ours.
# CHECKPOINT: its header gives the model of `step`. --files: what make_sparse_ltx23.py DIR --lora has
# written, best with --fill; without it the weights of true size are zeros. Environment: FLOTILLA
# (program), PYTHON, MPIEXEC, FLOTILLA_BUILD (folder of the tests).
# Writes OUT/scaling.json, OUT/scaling.txt (the tables) and OUT/scaling_details.tgz (all outputs).
# What the machine lacks, or the time does not allow, is SKIPPED with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${FLOTILLA:-build/cuda/app/flotilla}") python=${PYTHON:-python3}
mpiexec=${MPIEXEC:-mpirun} build=${FLOTILLA_BUILD:-build/cuda}
out='' minutes=9 ranks='' reference='' model='' files='' clips=()
parts='topology comm step selftest end_to_end fault load lora parallel full tests'
usage() { sed -n '2,20s/^# \{0,1\}//p' "$0"; exit "$1"; }
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    --parts) parts=$2; shift 2 ;;
    --reference) reference=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    --files) files=$(realpath "$2"); shift 2 ;;
    --clip) clips+=(--clip "$2"); shift 2 ;;
    -h | --help) usage 0 ;;
    *) echo "bench_scaling.sh: unknown argument $1" >&2; usage 2 ;;
  esac
done
out=${out:-out/scaling}
mkdir -p "$out"
work=$(mktemp -d)
details=$work/scaling_details
mkdir "$details"
# NVLink multicast off: a program that ends badly while it uses it can harm others on the host.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
# Without the encoder the frames go into a file as they are.
if command -v ffmpeg >/dev/null; then container=mp4; else container=y4m; fi
deadline=$((SECONDS + minutes * 60))
left() { echo $((deadline - SECONDS)); }
say() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
skip() { say "SKIPPED $*"; echo "SKIPPED $*" >>"$details/skipped.txt"; }
touch "$details/skipped.txt"

report() {
  tar -C "$work" -czf "$out/scaling_details.tgz" scaling_details
  "$python" scripts/scaling_report.py "$details" "$out/scaling.json" | tee "$out/scaling.txt"
  rm -rf "$work"
}
trap report EXIT
trap 'exit 130' INT TERM

# Runs a command within its seconds and what is left; its output is NAME.txt.
attempt() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 started=$SECONDS code=0
  shift 2
  if [ "$(left)" -lt 15 ]; then
    skip "$name: the $minutes minutes are over"
    return 1
  fi
  [ "$limit" -lt "$(left)" ] || limit=$(left)
  timeout -k 10 "$limit" "$@" >"$details/$name.txt" 2>&1 </dev/null || code=$?
  local spent=$((SECONDS - started))
  printf '{"name": "%s", "code": %d, "seconds": %d}\n' "$name" "$code" "$spent" >>"$details/attempts.jsonl"
  case $code in
    0) say "$name: $spent s" ;;
    124 | 137) say "FAILED $name: not done within $limit s" ;;
    *) say "FAILED $name: code $code, $(grep -v '^$' "$details/$name.txt" | tail -1)" ;;
  esac
  return "$code"
}

on_ranks() {  # N: how to start so many
  [ "$1" = 1 ] && start=() || start=("$mpiexec" -n "$1")
}

gpus=0
! command -v nvidia-smi >/dev/null || gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ -z "$ranks" ]; then
  for n in 1 2 4 8; do
    if [ "$n" -le "$((gpus > 0 ? gpus : 2))" ]; then ranks+="$n "; else skip "$n ranks: $gpus GPUs"; fi
  done
fi
largest=1
for n in $ranks; do [ "$n" -le "$largest" ] || largest=$n; done
shared_bench=() shared_job=()
if [ "$gpus" -gt 0 ] && [ "$largest" -gt "$gpus" ]; then
  say "$largest ranks on $gpus GPUs: shared, so times say nothing about scaling"
  shared_bench=(--allow-shared-device) shared_job=(--set allow_shared_device=true)
fi
[ ${#clips[@]} -gt 0 ] || clips=(--clip 768x512x121 --clip 1536x1024x121)
true_size=${files:-$work/model}
make_true_size() {
  [ -d "$true_size" ] || "$python" scripts/make_sparse_ltx23.py "$true_size" --lora \
    --tokenizer models/demo/gemma >"$details/make_sparse.txt" 2>&1 || skip 'files of true size: make_sparse_ltx23.py'
}
true_size_models() {
  models=("${shared_job[@]}" --set "models.checkpoint=$(echo "$true_size"/*distilled.safetensors)"
    --set "models.spatial_upsampler=$(echo "$true_size"/*upscaler*.safetensors)"
    --set "models.text_encoder=$(echo "$true_size"/gemma*)")
}

# --- The parts. ---
topology() {
  {
    "$program" --version
    uname -a
    nproc
    grep -m1 'model name' /proc/cpuinfo
    free -g
  } >"$details/machine.txt" 2>&1
  if [ "$gpus" = 0 ]; then skip 'topology: no GPU'; return; fi
  attempt topology_gpus 30 nvidia-smi --query-gpu=index,name,uuid,pci.bus_id,driver_version,power.limit --format=csv
  attempt topology_links 30 nvidia-smi topo -m
  attempt topology_nvlink 30 nvidia-smi nvlink --status
}

comm() {
  if [ -n "$reference" ] && [ "$gpus" -gt 1 ]; then
    attempt reference_build 150 \
      "$python" scripts/reference_exchange.py build --reference "$reference" --build "$work/all2all"
  else
    skip "the reference's exchange: needs --reference and two GPUs"
  fi
  local tokens=6144,24576 largest_bytes=268435456
  if [ "$gpus" = 0 ]; then tokens=96,384 largest_bytes=1048576; fi
  for n in $ranks; do
    [ "$n" -gt 1 ] || continue
    on_ranks "$n"
    attempt "comm_clips_$n" 90 "${start[@]}" "$program" bench comm "${shared_bench[@]}" --tokens "$tokens" --limit 2 \
      --json "$details/comm_clips_$n.json"
    attempt "comm_sizes_$n" 120 "${start[@]}" \
      "$program" bench comm "${shared_bench[@]}" --min-bytes 65536 --max-bytes "$largest_bytes" \
      --heads 32 --head-dim 128 --type bf16 --limit 1 --json "$details/comm_sizes_$n.json"
    [ ! -f "$work/all2all/all2all_cpp.so" ] || attempt "reference_exchange_$n" 60 \
      "$python" scripts/reference_exchange.py \
      run --build "$work/all2all" --ranks "$n" --json "$details/reference_exchange_$n.json"
  done
}

step() {
  if [ -z "$model" ]; then
    if [ "$gpus" = 0 ]; then skip 'step: no GPU for the true size; give --model and --clip'; return; fi
    make_true_size
    model=$(echo "$true_size"/*distilled.safetensors)
  fi
  local precisions=(bf16)
  if [ "$gpus" -gt 0 ]; then precisions+=(fp8_scaled_mm); else skip 'step in fp8_scaled_mm: no GPU'; fi
  for precision in "${precisions[@]}"; do
    for n in $ranks; do
      on_ranks "$n"
      attempt "step_${precision}_$n" 120 "${start[@]}" "$program" bench step "${shared_bench[@]}" --model "$model" \
        "${clips[@]}" --precision "$precision" --warmup 3 --iters 7 --json "$details/step_${precision}_$n.json"
    done
  done
}

selftest() {
  for n in $ranks; do
    [ "$n" -gt 1 ] || continue
    on_ranks "$n"
    for job in demo demo_two_stages; do
      attempt "selftest_${job}_$n" 120 "${start[@]}" "$program" selftest "configs/$job.yaml" \
        "${shared_job[@]}" --set precision=fp32 --quiet
    done
  done
}

# The second run of each is warm: files in the page cache, kernels chosen.
end_to_end() {
  for n in $ranks; do
    on_ranks "$n"
    for job in demo demo_two_stages; do
      for run in cold warm; do
        attempt "end_to_end_${job}_${n}_$run" 120 "${start[@]}" "$program" run "configs/$job.yaml" "${shared_job[@]}" \
          --overwrite --quiet \
          --output "$work/clip.$container" --set output.latents= --set output.contact_sheet= \
          --metrics "$details/end_to_end_${job}_${n}_$run.json"
      done
      attempt "forecast_${job}_$n" 30 "$program" run "configs/$job.yaml" "${shared_job[@]}" --dry-run \
        --json --world "$n" --overwrite \
        --output "$work/clip.$container" --set output.latents= --set output.contact_sheet= \
        --set output.metrics= --measured "$details/end_to_end_${job}_${n}_warm.json" &&
        cp "$details/forecast_${job}_$n.txt" "$details/forecast_${job}_$n.json"
    done
  done
}

fault() {
  if [ "$largest" = 1 ]; then skip 'fault: one rank'; return; fi
  on_ranks "$largest"
  for place in stage_1,step=2 load_transformer; do
    local name=fault_${place%%,*} before after code=0 begin
    before=$(ls /dev/shm)
    begin=$(date +%s.%N)
    FLOTILLA_SCALING_RUN=$begin FLOTILLA_TEST_FAULT=rank=1,phase=$place,do=kill \
      timeout -k 10 120 "${start[@]}" "$program" run configs/demo.yaml \
      "${shared_job[@]}" --overwrite --output "$work/killed.$container" --set output.latents= --set output.contact_sheet= \
      --set output.metrics= \
      >"$details/$name.txt" 2>&1 </dev/null || code=$?
    after=$(ls /dev/shm)
    "$python" - "$name" "$code" "$begin" "$before" "$after" "$details/$name.txt" \
      "$program" >>"$details/faults.jsonl" <<'PYTHON'
import json, os, pathlib, sys, time
name, code, begin, before, after, log, program = sys.argv[1:]
seconds = time.time() - float(begin)
mark = f"FLOTILLA_SCALING_RUN={begin}".encode()
alive = []
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        ours = os.readlink(process / "exe") == program and mark in (process / "environ").read_bytes()
        alive += [process.name] if ours else []
    except OSError:  # it has ended, or is not ours to see
        pass
errors = [line for line in pathlib.Path(log).read_text(errors="replace").splitlines() if " ERROR " in line]
print(json.dumps({"name": name, "code": int(code), "seconds": round(seconds, 2),
                  "left_in_shm": sorted(set(after.split()) - set(before.split())), "left_processes": alive,
                  "messages": errors[:4]}))
PYTHON
    say "$(tail -1 "$details/faults.jsonl")"
  done
}

load() {
  for n in $ranks; do
    on_ranks "$n"
    attempt "load_demo_$n" 60 "${start[@]}" "$program" bench load --job configs/demo.yaml "${shared_job[@]}" \
      --json "$details/load_demo_$n.json"
    if [ "$gpus" -gt 0 ]; then
      make_true_size; true_size_models
      attempt "load_full_$n" 150 "${start[@]}" "$program" bench load --job configs/distilled.yaml "${models[@]}" \
        --iters 2 --json "$details/load_full_$n.json"
    fi
  done
  [ "$gpus" -gt 0 ] || skip 'load at true size: no GPU'
}

lora() {
  for n in $ranks; do
    on_ranks "$n"
    attempt "lora_demo_$n" 60 "${start[@]}" \
      "$program" bench lora --job configs/demo_two_stages.yaml "${shared_job[@]}" --json "$details/lora_demo_$n.json"
    if [ "$gpus" -gt 0 ]; then
      make_true_size; true_size_models
      attempt "lora_full_$n" 150 "${start[@]}" "$program" bench lora --job configs/two_stages.yaml "${models[@]}" \
        --set "models.distilled_lora.path=$(echo "$true_size"/*lora*.safetensors)" --json "$details/lora_full_$n.json"
    fi
  done
  [ "$gpus" -gt 0 ] || skip 'lora at true size: no GPU'
}

# The guided job with few steps: ranks in 1, 2 or 4 groups for the passes of a step, and stage 2
# without tiles and with them.
parallel() {
  if [ "$gpus" = 0 ]; then skip 'parallel: no GPU'; return; fi
  make_true_size; true_size_models
  for n in $ranks; do
    on_ranks "$n"
    for way in '1 sp' '2 tdp' '4 tdp'; do
      local groups=${way% *} method=${way#* }
      [ $((n % groups)) = 0 ] || continue
      attempt "end_to_end_groups${groups}_${method}_${n}_warm" 120 "${start[@]}" "$program" run configs/two_stages.yaml \
        --overwrite "${models[@]}" --set "models.distilled_lora.path=$(echo "$true_size"/*lora*.safetensors)" \
        --set stage_1.steps=4 --set "stage_1.guidance_groups=$groups" --set "stage_2.parallel=$method" \
        --output "$work/clip.$container" --metrics "$details/end_to_end_groups${groups}_${method}_${n}_warm.json"
    done
  done
}

# Zeros take less power than other weights, so products run about a tenth faster than they would.
full() {
  if [ "$gpus" = 0 ]; then skip 'full: no GPU'; return; fi
  make_true_size; true_size_models
  for n in $(echo "$ranks" | tr ' ' '\n' | sort -rn); do
    on_ranks "$n"
    for job in distilled two_stages; do
      local more=()
      [ "$job" = distilled ] || more=(--set "models.distilled_lora.path=$(echo "$true_size"/*lora*.safetensors)")
      attempt "end_to_end_full_${job}_${n}_warm" 240 "${start[@]}" "$program" run "configs/$job.yaml" \
        --overwrite "${models[@]}" \
        "${more[@]}" --output "$work/clip.$container" --metrics "$details/end_to_end_full_${job}_${n}_warm.json"
    done
  done
}

tests() {
  if [ "$gpus" = 0 ]; then skip 'tests: no GPU'; return; fi
  if [ ! -f "$build/CTestTestfile.cmake" ]; then skip "tests: no $build"; return; fi
  attempt tests_gpu 300 ctest --test-dir "$build" -L gpu --output-on-failure
}

say "ranks $ranks, $gpus GPUs, $minutes minutes"
for part in $parts; do
  case " topology comm step selftest end_to_end fault load lora parallel full tests " in
    *" $part "*) "$part" ;;
    *) skip "$part: no such part" ;;
  esac
done
