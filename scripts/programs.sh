#!/usr/bin/env bash
# Tests the adapters of bsweep.join() with the libraries that they serve, in environments that have no bsweep.
#
#   scripts/programs.sh             makes the environments (4 GB), and runs all
#   scripts/programs.sh -k jax      arguments go to pytest
#
# They are kept in the folder BSWEEP_PROGRAMS (default: ~/.cache/bsweep/programs); TensorFlow has one of its own. pip's
# configuration decides which build of torch is installed.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
folder=${BSWEEP_PROGRAMS:-${XDG_CACHE_HOME:-~/.cache}/bsweep/programs}

# The versions with which the adapters were seen to work.
versions=(torch==2.13.0 lightning==2.6.6 transformers==5.24.0 accelerate==1.15.0 keras==3.15.1 deepspeed==0.19.8 jax==0.10.2)
tensorflow=(tensorflow-cpu==2.21.0 tf_keras==2.21.0)

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
if [[ $(cat "$folder/tensorflow/versions" 2>/dev/null) != "${tensorflow[*]}" ]]; then
    "$python" -m venv --clear "$folder/tensorflow"
    "$folder/tensorflow/bin/pip" install --quiet "${tensorflow[@]}"
    echo "${tensorflow[*]}" >"$folder/tensorflow/versions"
fi
export BSWEEP_PROGRAMS_PYTHON=$folder/bin/python BSWEEP_TENSORFLOW_PYTHON=$folder/tensorflow/bin/python
"$python" -m pytest -q -n0 --full tests/external/test_examples.py "$@"
