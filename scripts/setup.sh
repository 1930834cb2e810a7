#!/usr/bin/env bash
# Installs what is missing and builds. Sourced pieces of quickstart.sh and test.sh; run alone it only builds.
#
#   scripts/setup.sh [cpu|cuda]     no argument: cuda where there is an NVIDIA GPU, else cpu
#
# Environment:
#   FLOTILLA_TORCH_ROOT   folder of a torch package to use (else: python3's own torch 2.11, else a wheel in .deps/)
#   FLOTILLA_CMAKE_ARGS   more arguments for the configure step
#   FLOTILLA_INSTALL=0    install nothing; say what is missing
#   FLOTILLA_JOBS         parallel compile jobs (default: cores, bounded by memory)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '== %s\n' "$*"; }
die() { printf 'ERROR: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

flavour=${1:-auto}
case $flavour in
  auto) if [ -e /dev/nvidiactl ] || { have nvidia-smi && nvidia-smi >/dev/null 2>&1; }; then flavour=cuda; else flavour=cpu; fi ;;
  cpu | cuda) ;;
  -h | --help) sed -n '2,11p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 0 ;;
  *) printf 'usage: %s [cpu|cuda]\n' "$0" >&2; exit 2 ;;
esac

# --- system packages: what dpkg lacks and no other route provides ---------------------------------
packages=(g++ cmake ninja-build ccache pkg-config git python3 python3-venv libopenmpi-dev openmpi-bin libhdf5-dev
  libyaml-cpp-dev libboost-program-options-dev libgtest-dev libgmock-dev libsentencepiece-dev nlohmann-json3-dev
  libpng-dev libjpeg-dev libwebp-dev ffmpeg)
optional=" ccache ffmpeg "  # without them: slower builds; Y4M and WAV instead of mp4

provided_otherwise() {  # a tool that is there without its package (cmake from pip, ...)
  case $1 in
    g++ | cmake | ccache | git | python3 | ffmpeg) have "$1" ;;
    pkg-config) have pkg-config ;;
    ninja-build) have ninja ;;
    python3-venv) python3 -c 'import ensurepip, venv' >/dev/null 2>&1 ;;
    openmpi-bin) have mpirun ;;
    libboost-program-options-dev) [ -n "${BOOST_ROOT:-}" ] ;;
    *) return 1 ;;
  esac
}
installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

install_packages() {
  local missing=() p
  for p in "${packages[@]}"; do installed "$p" || provided_otherwise "$p" || missing+=("$p"); done
  ((${#missing[@]})) || return 0
  if [ "${FLOTILLA_INSTALL:-1}" = 1 ] && have apt-get && [ "$(id -u)" = 0 ]; then
    say "apt-get install ${missing[*]}"
    if { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      "${missing[@]}"; } >/tmp/flotilla-apt.$$.log 2>&1; then
      rm -f /tmp/flotilla-apt.$$.log
      return 0
    fi
    tail -5 /tmp/flotilla-apt.$$.log >&2 || true
  fi
  local needed=()
  for p in "${missing[@]}"; do [[ $optional == *" $p "* ]] || needed+=("$p"); done
  printf 'WARNING: missing packages that this script could not install: %s\n' "${missing[*]}" >&2
  ((${#needed[@]})) && printf '         get them with: sudo apt-get install %s\n' "${needed[*]}" >&2
  return 0  # CMake has the last word: it names what it really lacks
}

# --- LibTorch: one PyPI wheel for both flavours ----------------------------------------------------
torch_of() {  # folder of the torch package of interpreter $1, if it is a 2.11
  "$1" - <<'PY' 2>/dev/null
import importlib.util, os
spec = importlib.util.find_spec("torch")
folder = spec.submodule_search_locations[0]
facts = {}
exec(open(os.path.join(folder, "version.py")).read(), facts)
assert facts["__version__"].startswith("2.11.")
print(folder)
PY
}

find_torch() {
  torch=${FLOTILLA_TORCH_ROOT:-}
  [ -n "$torch" ] && return 0
  torch=$(torch_of python3) && { [ "$flavour" = cpu ] || [ -e "$torch/lib/libtorch_cuda.so" ]; } && return 0
  [ "${FLOTILLA_INSTALL:-1}" = 1 ] || [ -e ".deps/.$flavour" ] ||
    die "python3 has no torch 2.11 for $flavour; give FLOTILLA_TORCH_ROOT, or run without FLOTILLA_INSTALL=0"
  [ -x .deps/bin/python ] || python3 -m venv .deps || die "cannot make a Python environment in .deps (package python3-venv)"
  if [ ! -e ".deps/.$flavour" ] || ! torch_of .deps/bin/python >/dev/null; then
    say "pip install -r cmake/requirements/requirements-$flavour.txt (into .deps/)"
    .deps/bin/pip install -q --disable-pip-version-check --no-cache-dir --no-compile --no-deps \
      -r "cmake/requirements/requirements-$flavour.txt" ||
      die "LibTorch could not be installed. Give FLOTILLA_TORCH_ROOT=<folder of a torch 2.11 package>, or a network to PyPI"
    touch ".deps/.$flavour"
  fi
  torch=$(torch_of .deps/bin/python) || die "the torch wheel in .deps/ is not usable; remove .deps and run again"
}

find_nvcc() {  # fills cmake_args
  [ "$flavour" = cuda ] || return 0
  if have nvcc; then return 0; fi
  if [ -x /usr/local/cuda/bin/nvcc ]; then cmake_args+=(-DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc); return 0; fi
  local toolkit; toolkit="$(dirname "$torch")/nvidia/cu13"
  if [ ! -x "$toolkit/bin/nvcc" ]; then
    say "pip install -r cmake/requirements/requirements-nvcc.txt (nvcc, into .deps/)"
    .deps/bin/pip install -q --disable-pip-version-check --no-cache-dir --no-deps -r cmake/requirements/requirements-nvcc.txt ||
      die "no nvcc: install the CUDA toolkit 13, or run with 'cpu'"
  fi
  ln -sfn lib "$toolkit/lib64"
  local f name
  for f in "$toolkit"/lib/*.so.*; do name=${f%%.so.*}.so; [ -e "$name" ] || ln -s "$(basename "$f")" "$name"; done
  cmake_args+=("-DCMAKE_CUDA_COMPILER=$toolkit/bin/nvcc" "-DCUDAToolkit_ROOT=$toolkit")
}

jobs() {  # one job needs up to 1.5 GB
  [ -n "${FLOTILLA_JOBS:-}" ] && { echo "$FLOTILLA_JOBS"; return; }
  local cores memory; cores=$(nproc); memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo)
  ((memory < 1)) && memory=1
  echo $((cores < memory ? cores : memory))
}

install_packages
find_torch
cmake_args=("-DFLOTILLA_TORCH_ROOT=$torch")
find_nvcc
build=build/$flavour
log=$build/setup.log
mkdir -p "$build"
say "configure ($flavour, LibTorch at $torch)"
# shellcheck disable=SC2086
cmake --preset "$flavour" "${cmake_args[@]}" ${FLOTILLA_CMAKE_ARGS:-} >"$log" 2>&1 || { tail -30 "$log" >&2; die "configure failed; whole log: $log"; }
say "build"
cmake --build "$build" -j "$(jobs)" >>"$log" 2>&1 || { grep -nE 'error|FAILED' "$log" | head -30 >&2; die "build failed; whole log: $log"; }
