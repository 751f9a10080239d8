#!/usr/bin/env bash
# From a fresh clone to the first failures: makes .venv, installs, runs `lsgen quickstart` (arguments go on to it).
set -euo pipefail
source "$(dirname "$0")/venv.sh"
install_lsgen ""
.venv/bin/lsgen quickstart "$@"
command -v lsgen >/dev/null || echo "for the command lsgen in this shell: source .venv/bin/activate"
