#!/usr/bin/env bash
# Makes .venv: bsweep, what it needs in the versions of constraints.txt, and Horovod compiled for its torch.
# Run again, it does nothing until one of them changes. PYTHON=python3.12 chooses the Python that .venv is made of,
# BSWEEP_TORCH=2.8.0 the torch, with the torchvision that belongs to it.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

python=.venv/bin/python
stamp=.venv/bsweep-setup
log=$PWD/.venv/setup.log

minor_version() { "$1" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null; }

# A copied folder's scripts still name the folder that they were made in.
venv_is_usable() {
    local made_of
    made_of=$(minor_version $python) && grep -qF "$PWD/.venv" .venv/bin/activate &&
        [[ -z ${PYTHON:-} || $(minor_version "$PYTHON") == "$made_of" ]]
}

# One word that changes with whatever the set-up depends on; none where a part of it is missing.
fingerprint() {
    local key
    venv_is_usable && key=$(scripts/build_horovod.sh $python --key 2>/dev/null) || return 0
    for part in .venv/bin/bsweep .venv/lib/python3*/site-packages/horovod/torch/mpi_lib_v2*.so; do
        [[ -e $part ]] || return 0
    done
    { cat pyproject.toml constraints.txt scripts/{common,setup,build_horovod}.sh && printf '%s\n' "$PWD" "$key" "${BSWEEP_TORCH:-}"; } |
        $python -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

make_venv() {
    local base=${PYTHON:-python3}
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
        fail "bsweep needs Python >= 3.10; $base is $("$base" --version 2>/dev/null || echo no Python that runs)." \
            "Name another one: PYTHON=python3.12 scripts/setup.sh"
    "$base" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$base cannot make virtual environments. Debian, Ubuntu: apt-get install python3-venv"
    base=$("$base" -c 'import sys; print(sys._base_executable)') # the old .venv may be what PYTHON or PATH names
    rm -rf .venv/{bin,include,lib,lib64,pyvenv.cfg}
    step "Making .venv of $("$base" --version)" "$base" -m venv .venv
}

check_venv_folder() { check_folder "$PWD/.venv" "Work in a copy of bsweep that is yours."; }

[[ -d .venv ]] || check_venv_folder
exec 9<.venv
if command -v flock >/dev/null && ! flock -n 9; then
    say "Another set-up is at work in .venv: waiting for it ..."
    run flock 9
fi

if [[ -s $stamp && $(fingerprint) == "$(cat $stamp)" ]]; then
    say "Already set up in .venv."
    exit
fi
check_venv_folder
rm -f $stamp
: >"$log"
make_work_folder
venv_is_usable || make_venv
scripts/build_horovod.sh $python --check # before minutes of downloads

# pip's build environments obey them too. Relative, because pip splits these at blanks.
constraints=constraints.txt
if [[ -n ${BSWEEP_TORCH:-} ]]; then
    constraints=.venv/constraints.txt
    { grep -vE '^(torch|torchvision|triton|sympy|cuda|nvidia)\b' constraints.txt && echo "torch==$BSWEEP_TORCH"; } >$constraints
fi
export PIP_CONSTRAINT=$constraints PIP_BUILD_CONSTRAINT=$constraints
# Half of the time of pip would go into compiling 18,000 modules. Python compiles the few that it imports.
export PIP_NO_COMPILE=no # pip asks for a no here: it sets this option's `compile`
step "Installing torch: a minute or two" $python -m pip install --upgrade pip torch
run env PYTHONPATH=src $python -W ignore -m bsweep.core.gpus # a driver that is too old is no surprise of the first run
run scripts/build_horovod.sh $python
step "Installing bsweep and the rest: a minute or two" $python -m pip install -e '.[dev,horovod]'
fingerprint >$stamp
say "Set up in .venv. To work in it: source .venv/bin/activate"
