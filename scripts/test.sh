#!/usr/bin/env bash
# Sets everything up, then checks style, types and behaviour.
#
#   scripts/test.sh                 the quick tests: ten minutes on two cores, half of them for the set-up
#   scripts/test.sh --full          everything, in 45 minutes; as root it installs what hosts, SLURM and pages need
#   scripts/test.sh -k vector -x    further arguments go to pytest
#
# With BSWEEP_REQUIRE_ALL=1, a test that cannot run here fails, unless it needs a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
full=
if [[ ${1:-} == --full ]]; then full=--full && shift; fi
scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
# What was compiled and checked is kept: else each process compiles bsweep again, and mypy reads all of torch.
unset PYTHONDONTWRITEBYTECODE
export MYPY_CACHE_DIR=${XDG_CACHE_HOME:-~/.cache}/bsweep/mypy

# What hosts, SLURM on them and a report's page need, and is not here.
lacking() {
    scripts/hosts.sh check 2>&1 || scripts/slurm.sh check 2>&1 || true
    command -v chromium >/dev/null || echo "A report's page needs a browser: apt-get install chromium"
}
if [[ $full && $EUID == 0 ]] && command -v apt-get >/dev/null && [[ $(lacking) ]]; then
    echo "Installing what tests of hosts, SLURM and pages need ..." >&2
    packages=(chromium hostname iproute2 munge openssh-client openssh-server slurm-client slurmctld slurmd util-linux)
    (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}") >/dev/null 2>&1 ||
        echo "apt-get could not install them." >&2
fi

python -m compileall -q src # at once, and not by each process of pytest
pytest --collect-only -qq >/dev/null 2>&1 & # compiles beside the linters what tests import
ruff check .
ruff format --check .
shellcheck -x scripts/*.sh results/measured/*/*.sh .ci/run
if [[ $full ]]; then mypy; else mypy src; fi
wait
# Much of a test is waiting, for processes to start or to be given up: three at a time fill two cores.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
options=(--numprocesses $((cores < 8 ? cores + 1 : 8)) --dist worksteal)
if [[ ! $full ]]; then exec pytest "${options[@]}" "$@"; fi

code=0
pytest --full "${options[@]}" --junitxml .pytest_cache/full.xml --durations 20 "$@" || code=$?
# A test that fails beside others and passes alone is a fault, too: it is run again only to name it.
failed=.pytest_cache/v/cache/lastfailed
if ((code == 1)) && [[ -f $failed ]] && (($(grep -c '::' $failed) <= 3)); then
    unsteady=$(grep -o '"[^"]*::[^"]*"' $failed)
    if pytest --full --last-failed --last-failed-no-failures none >/dev/null; then
        echo "UNSTEADY (failed beside other tests, passed alone): $unsteady" >&2
    fi
fi
exit $code
