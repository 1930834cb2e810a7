#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests; CTest's summary comes last.
#   ./scripts/test.sh [cpu|cuda] [arguments for ctest ...]
case ${1:-} in cpu | cuda | auto | -h | --help) chosen=$1; shift ;; *) chosen=auto ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" "$chosen"

say "test"
exec ctest --preset "$flavour" "$@"
