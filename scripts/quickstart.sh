#!/usr/bin/env bash
# From a fresh machine to a clip: installs what is missing, builds, renders configs/demo.yaml.
#   ./scripts/quickstart.sh [cpu|cuda]
# FLOTILLA_BUILD_ONLY=1 stops after the build.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" "$@"

program=$build/app/flotilla
say "built: $program"
[ "${FLOTILLA_BUILD_ONLY:-0}" = 1 ] && exit 0
say "flotilla run configs/demo.yaml --overwrite"
"$program" run configs/demo.yaml --overwrite
