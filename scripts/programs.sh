#!/usr/bin/env bash
# Tests the adapters of bsweep.join() with the libraries that they serve, in an environment that has no bsweep.
#
#   scripts/programs.sh             makes the environment (2 GB), and runs all
#   scripts/programs.sh -k jax      arguments go to pytest
#
# The environment is kept in the folder BSWEEP_PROGRAMS (default: ~/.cache/bsweep/programs). DeepSpeed compiles a part
# of itself at its first start, which takes minutes. pip's configuration decides which build of torch is installed.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
folder=${BSWEEP_PROGRAMS:-${XDG_CACHE_HOME:-~/.cache}/bsweep/programs}

# The versions with which the adapters were seen to work.
versions=(torch==2.13.0 lightning==2.6.6 transformers==5.24.0 accelerate==1.15.0 keras==3.15.1 deepspeed==0.19.8 jax==0.10.2)

if [[ $(cat "$folder/versions" 2>/dev/null) != "${versions[*]}" ]]; then
    "$python" -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet torch==2.13.0 # alone first: later packages then accept its build
    "$folder/bin/pip" install --quiet "${versions[@]}" ninja
    echo "${versions[*]}" >"$folder/versions"
fi
BSWEEP_PROGRAMS_PYTHON=$folder/bin/python "$python" -m pytest -q -n0 -m nightly tests/programs "$@"
