#!/usr/bin/env bash
# Tests the adapters of bsweep.join() with the libraries that they serve, in an environment that has no bsweep.
#
#   scripts/programs.sh             makes the environment (2 GB), and runs all
#   scripts/programs.sh -k jax      arguments go to pytest
#
# The environment is kept in the folder BSWEEP_PROGRAMS (default: ~/.cache/bsweep/programs). pip's configuration decides
# which build of torch is installed.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
folder=${BSWEEP_PROGRAMS:-${XDG_CACHE_HOME:-~/.cache}/bsweep/programs}

# The versions with which the adapters were seen to work.
versions=(torch==2.13.0 lightning==2.6.6 transformers==5.24.0 accelerate==1.15.0 keras==3.15.1 deepspeed==0.19.8 jax==0.10.2)

export PATH=$folder/bin:$PATH # DeepSpeed looks for ninja there

if [[ $(cat "$folder/versions" 2>/dev/null) != "${versions[*]}" ]]; then
    "$python" -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet torch==2.13.0 # alone first: later packages then accept its build
    "$folder/bin/pip" install --quiet "${versions[@]}" ninja
    # DeepSpeed compiles a part of itself when it first starts on CPUs, which takes minutes: longer than a test waits.
    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0 \
        "$folder/bin/python" -c 'import deepspeed; deepspeed.init_distributed("gloo")'
    echo "${versions[*]}" >"$folder/versions"
fi
BSWEEP_PROGRAMS_PYTHON=$folder/bin/python "$python" -m pytest -q -n0 --full tests/programs/test_examples.py "$@"
