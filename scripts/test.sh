#!/usr/bin/env bash
# Makes .venv if needed, installs the test extra, checks style and types, runs the tests (arguments go to pytest).
set -euo pipefail
source "$(dirname "$0")/venv.sh"
install_lsgen "[test]"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python -m pytest "$@"
