#!/usr/bin/env bash
# One denoise forward and the head exchange, ours and the LTX-2 Python reference's, in turn on one
# GPU within one session, so that both see the same clocks and heat.
#
#   scripts/bench_vs_reference.sh --reference DIR [--quick] [--out DIR] [--minutes 8]
#                                 [--model CHECKPOINT] [--clip WIDTHxHEIGHTxFRAMES ...]
#
# DIR: a checkout of Lightricks/LTX-2 (or a folder with ltx_core/, all2all/ and include/ in it).
# CHECKPOINT: its header gives the model's size; weights are random. Without one, a file of the true
# size of LTX-2.3 22B is made (it takes no space). --quick: one round instead of three.
# Environment: FLOTILLA (program), PYTHON (an interpreter with Torch, and Triton to compile), MPIEXEC.
# Prints tables; writes them to OUT/vs_reference.txt, with all samples to OUT/vs_reference.json, and
# every output to OUT/vs_reference_details.tgz. What this machine cannot do is SKIPPED with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."
program=${FLOTILLA:-build/cuda/app/flotilla} python=${PYTHON:-python3} mpiexec=${MPIEXEC:-mpirun}
reference='' out='' model='' minutes=8 rounds=3 clips=()
usage() { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit "$1"; }
while [ $# -gt 0 ]; do
  case $1 in
    --reference) reference=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --clip) clips+=(--clip "$2"); shift 2 ;;
    --quick) rounds=1; shift ;;
    -h | --help) usage 0 ;;
    *) echo "bench_vs_reference.sh: unknown argument $1" >&2; usage 2 ;;
  esac
done
[ -d "$reference" ] || { echo 'bench_vs_reference.sh: --reference DIR is needed' >&2; exit 2; }
[ ${#clips[@]} -gt 0 ] || clips=(--clip 768x512x121 --clip 1536x1024x121)
results=${out:-out/vs_reference}
work=$(mktemp -d)
out=$work/vs_reference_details
mkdir -p "$results" "$out"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
deadline=$((SECONDS + minutes * 60))
left() { echo $((deadline - SECONDS)); }
say() { printf '# %4d s  %s\n' "$SECONDS" "$*"; }
skip() { say "SKIPPED $*"; echo "$*" >>"$work/skipped"; }

pids=()
mps_running=''
finish() {
  [ -z "$mps_running" ] || echo quit | timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null; done
  tar -C "$work" -czf "$results/vs_reference_details.tgz" vs_reference_details
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

if [ -z "$model" ]; then
  "$python" scripts/make_sparse_ltx23.py "$work/model" >/dev/null || exit 1
  model=$(echo "$work"/model/*distilled*.safetensors)
fi
gpus=0
! command -v nvidia-smi >/dev/null || gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
precisions=(bf16)
if [ "$gpus" -gt 0 ]; then
  export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
  precisions=(bf16 fp8_scaled_mm)
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader | tee "$work/gpus"
else
  skip 'fp8_scaled_mm, compiled and captured blocks, the exchange: no GPU'
fi
"$program" --version | head -1 | tee "$work/program"
"$python" -c 'import torch; print("torch", torch.__version__)' | tee "$work/torch"

# The reference's extension is built beside the first measurements' set-up, at low priority.
if [ "$gpus" -gt 0 ]; then
  nice -n 15 timeout 150 "$python" scripts/reference_exchange.py build --reference "$reference" \
    --build "$work/all2all" >"$out/all2all_build.log" 2>&1 &
  build_pid=$!
  pids+=("$build_pid")
fi

# --- One process of the reference for each precision, which waits for its turn. ---
start_reference() {  # precision
  mkfifo "$work/$1.ask"
  "$python" scripts/reference_step.py --reference "$reference" --model "$model" --precision "$1" \
    "${clips[@]}" <"$work/$1.ask" >"$work/$1.answers" 2>"$out/reference_$1.log" &
  pids+=($!)
}
answers() { wc -l <"$work/$1.answers"; }
wait_for_answer() {  # precision, lines that must be there, process
  while [ "$(answers "$1")" -lt "$2" ]; do
    kill -0 "$3" 2>/dev/null && [ "$(left)" -gt 0 ] || return 1
    sleep 0.2
  done
}

declare -A process ask
for precision in "${precisions[@]}"; do
  start_reference "$precision"
  process[$precision]=${pids[-1]}
  exec {descriptor}>"$work/$precision.ask"
  ask[$precision]=$descriptor
done
ready=()
for precision in "${precisions[@]}"; do
  if wait_for_answer "$precision" 1 "${process[$precision]}"; then
    say "the reference is ready, $precision"
    ready+=("$precision")
  else
    skip "the reference in $precision: $(tail -1 "$out/reference_$precision.log")"
  fi
done

# --- Rounds, as many as the time allows. ---
exchange_s=$((gpus > 0 ? 75 : 0)) round_s=0
for ((round = 1; round <= rounds; ++round)); do
  if [ "$(left)" -lt $((round_s + exchange_s)) ]; then
    skip "round $round of $rounds: $(left) s left"
    break
  fi
  started=$SECONDS
  for precision in "${ready[@]}"; do
    (trap '' PIPE; echo measure >&"${ask[$precision]}") 2>/dev/null
    wait_for_answer "$precision" $((round + 1)) "${process[$precision]}" ||
      skip "the reference in $precision, round $round"
    timeout 150 "$program" bench step --model "$model" "${clips[@]}" --precision "$precision" \
      --warmup 2 --iters 5 --json "$out/ours_${precision}_$round.json" >"$out/ours_${precision}_$round.txt" 2>&1 ||
      skip "flotilla bench step in $precision, round $round: $(tail -1 "$out/ours_${precision}_$round.txt")"
  done
  round_s=$((SECONDS - started))
  say "round $round took $round_s s"
done
for precision in "${precisions[@]}"; do
  descriptor=${ask[$precision]}
  exec {descriptor}>&-
  [ ! -f "$work/$precision.answers" ] || grep '^{' "$work/$precision.answers" >"$out/reference_$precision.jsonl"
done
for pid in "${process[@]}"; do wait "$pid" 2>/dev/null; done

# --- The exchange: two processes on one GPU, which MPS lets run at the same time. ---
measure_exchange() {
  if ! wait "$build_pid"; then
    skip "the exchange of the reference: its extension does not build, $out/all2all_build.log"
  fi
  command -v nvidia-cuda-mps-control >/dev/null || { skip 'the exchange: no nvidia-cuda-mps-control'; return; }
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  mkdir -p "$work/mps"
  nvidia-cuda-mps-control -d || { skip 'the exchange: MPS does not start'; return; }
  mps_running=yes
  sleep 1
  for ((round = 1; round <= 3; ++round)); do
    [ "$(left)" -gt 25 ] || { skip "the exchange, round $round: $(left) s left"; break; }
    timeout 40 "$python" scripts/reference_exchange.py run --build "$work/all2all" --ranks 2 \
      --tokens 24576 --json "$out/exchange_reference_$round.json" >"$out/exchange_reference_$round.txt" 2>&1 ||
      skip "the exchange of the reference, round $round: $(tail -1 "$out/exchange_reference_$round.txt")"
    timeout 60 "$mpiexec" -n 2 "$program" bench comm --allow-shared-device --exchanges-only --tokens 24576 --limit 1 \
      --json "$out/exchange_ours_$round.json" >"$out/exchange_ours_$round.txt" 2>&1 ||
      skip "flotilla bench comm, round $round: $(tail -1 "$out/exchange_ours_$round.txt")"
  done
  say 'the exchange is measured'
}
[ "$gpus" = 0 ] || measure_exchange

cat "$work"/gpus "$work"/program "$work"/torch >"$work/machine" 2>/dev/null
touch "$work/skipped"
"$python" scripts/compare_with_reference.py "$out" "$work/machine" "$work/skipped" | tee "$results/vs_reference.txt"
mv "$out/vs_reference.json" "$results"
