#!/usr/bin/env bash
# Sets everything up, runs a sweep and writes its report. Arguments go to `bsweep run`:
#
#   scripts/sweep.sh                                          the quickstart: handwritten digits, a few minutes on a laptop
#   scripts/sweep.sh experiment=paper data.root=DIR seed=0,1  the paper's grid, on CIFAR-10 from DIR
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup.sh"
export PATH="$root/.venv/bin:$PATH"

case " $*" in
*" experiment="*) ;;
*) set -- experiment=quickstart "$@" ;;
esac
exec bsweep run --report "$@"
