#!/bin/bash
# One clip on a machine that Slurm lends for a while, with its log in this terminal. Ctrl-C twice within a second
# (srun's way) stops it with a checkpoint; the same command goes on. Change the lines marked "yours", and:
#   scripts/slurm/interactive.sh job.yaml [options of flotilla run]
set -u

ranks=${FLOTILLA_RANKS:-4}            # yours: one a GPU, or a share of the cores
cpus=${FLOTILLA_CPUS:-8}              # yours: for each rank
gpus=${FLOTILLA_GPUS:-$ranks}         # yours: 0 on machines without GPUs
limit=${FLOTILLA_TIME:-00:30:00}      # yours

if [ "$#" -eq 0 ]; then
  echo "usage: $0 JOB.yaml [options of flotilla run]" >&2
  exit 2
fi
job=$1
shift
if [ "$gpus" -gt 0 ]; then want_gpus=(--gpus-per-node="$gpus"); else want_gpus=(); fi
export OMP_NUM_THREADS=$cpus

exec salloc --nodes=1 --ntasks-per-node="$ranks" --cpus-per-task="$cpus" "${want_gpus[@]}" --time="$limit" \
  srun --kill-on-bad-exit=1 --cpu-bind=none \
  flotilla run "$job" --set "checkpoint.path=${job%.yaml}.state.h5" --set checkpoint.resume=auto "$@"
