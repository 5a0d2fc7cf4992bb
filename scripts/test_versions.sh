#!/usr/bin/env bash
# Runs the quick tests with the oldest and the newest torch, and with the lowest versions of all direct dependencies.
#
#   scripts/test_versions.sh                    all three, one after another: an hour or more on two cores
#   scripts/test_versions.sh oldest -k vector   one of oldest, newest, lowest; the rest goes to pytest
#   PYTHON=python3.10 scripts/test_versions.sh oldest
#
# Needs uv (in .venv after scripts/setup.sh), and a package index. An environment takes up to 7 GB; it is kept in the
# folder BSWEEP_VERSIONS (default: ~/.cache/bsweep/versions). Each gets a Horovod compiled for its torch, with Gloo alone.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PWD/.venv/bin:$PATH
unset PYTHONDONTWRITEBYTECODE # else each process of a test compiles torch and bsweep again
folder=${BSWEEP_VERSIONS:-${XDG_CACHE_HOME:-~/.cache}/bsweep/versions}

pins() { grep -vE '^(torch|torchvision|triton|sympy|cuda|nvidia|setuptools)\b' constraints.txt; }

# setup NAME OPTIONS...: an environment of that name, and what uv installs into it by the options.
setup() {
    uv venv --quiet --clear ${PYTHON:+--python "$PYTHON"} "$folder/$1"
    uv pip install --quiet --compile-bytecode --python "$folder/$1" "${@:2}" 'pip>=24' -e '.[dev]'
    HOROVOD_GPU_OPERATIONS='' scripts/build_horovod.sh "$folder/$1/bin/python"
}

# check NAME ARGUMENTS...: its quick tests.
check() {
    case $1 in
        oldest) setup "$1" --constraints <(pins) torch==2.6.0 torchvision==0.21.0 ;;
        newest) setup "$1" --constraints <(pins) ;;
        lowest) setup "$1" --resolution lowest-direct ;;
        *) echo "There is no $1: name oldest, newest or lowest." >&2 && return 2 ;;
    esac
    "$folder/$1/bin/python" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
    "$folder/$1/bin/python" -m pytest -q -n "$(nproc)" "${@:2}"
}

if (($#)); then
    check "$@"
    exit
fi
failed=0
for name in oldest newest lowest; do # each in a shell of its own, which ends at the first error
    "$PWD/scripts/test_versions.sh" $name || failed=1
done
exit $failed
