#!/usr/bin/env bash
# Builds the documentation as a site. It needs what scripts/setup.sh installs.
#
#   scripts/docs.sh          builds site/; open site/index.html
#   scripts/docs.sh serve    serves the site on http://127.0.0.1:8000 and builds it anew when a page changes
#
# A broken link or anchor ends the build. Further arguments go to mkdocs: scripts/docs.sh -d FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
export PATH=$PWD/.venv/bin:$PATH NO_MKDOCS_2_WARNING=1

command -v mkdocs >/dev/null || fail "mkdocs is not installed. Set everything up: scripts/setup.sh"
if [[ ${1:-} == serve ]]; then exec mkdocs serve "${@:2}"; fi
exec mkdocs build --strict "$@"
