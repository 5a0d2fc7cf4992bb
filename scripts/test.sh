#!/usr/bin/env bash
# Sets everything up, then checks style, types and behaviour. Arguments go to pytest: scripts/test.sh -k vector -x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"

ruff check .
ruff format --check .
mypy
shellcheck -x scripts/*.sh .ci/run
pytest "$@"
