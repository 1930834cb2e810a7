#!/usr/bin/env bash
# Runs the kernel tests under NVIDIA's compute-sanitizer: memory accesses, races in shared memory,
# uninitialised reads, barriers. Needs a GPU and a build with CUDA.
#
#   scripts/sanitize_gpu.sh [BUILD_DIR]        default: build/cuda
#
# Exit code 0: clean; 1: a tool found something; 4: no GPU, no sanitizer or no build.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
skip() { echo "SKIPPED: $1"; exit 4; }

sanitizer=$(command -v compute-sanitizer || true)
[ -n "$sanitizer" ] || sanitizer=$(ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -1 || true)
[ -n "$sanitizer" ] || skip "compute-sanitizer was not found (it comes with the CUDA toolkit)"
nvidia-smi -L > /dev/null 2>&1 || skip "no NVIDIA GPU"
[ -x "$build/tests/kernels/kernels_test" ] || skip "$build has no kernels_test; build it first: cmake --build $build"

# Racecheck knows no memory of other processes, and sees one block's shared memory only: the kernels
# that exchange between ranks are left to memcheck.
failed=0
check() {  # TOOL PROGRAM [ARGUMENT...]
  local tool=$1
  shift
  echo "== $tool: $(basename "$1") ${*:2}"
  if ! "$sanitizer" --tool "$tool" --error-exitcode 9 --kernel-name-exclude regex=at::native \
      "$@" > "${TMPDIR:-/tmp}/sanitize.$$" 2>&1; then
    failed=1
    grep -E "=========|FAILED" "${TMPDIR:-/tmp}/sanitize.$$" | head -40
  fi
  grep -E "ERROR SUMMARY|PASSED|FAILED" "${TMPDIR:-/tmp}/sanitize.$$" | sort -u || true
  rm -f "${TMPDIR:-/tmp}/sanitize.$$"
}
for tool in memcheck racecheck initcheck synccheck; do
  check "$tool" "$build/tests/kernels/kernels_test"
done
check memcheck "$build/tests/kernels/exchange_kernels_test"
[ "$failed" = 0 ] && echo "clean" || { echo "FAILED"; exit 1; }
