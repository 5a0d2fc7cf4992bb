#!/usr/bin/env bash
# Sets everything up, then checks style, types and behaviour. Arguments go to pytest: scripts/test.sh -k vector -x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
# What was compiled and checked is kept: else each process compiles bsweep again, and mypy reads all of torch.
unset PYTHONDONTWRITEBYTECODE
export MYPY_CACHE_DIR=${XDG_CACHE_HOME:-~/.cache}/bsweep/mypy

# What keeps a script from emulating hosts, or SLURM on them, or a page from being opened; nothing where it can.
obstacle() {
    if [[ $1 != page ]]; then
        "scripts/$1.sh" check 2>&1 || true
    elif ! command -v chromium >/dev/null; then
        echo "They need a browser. Debian, Ubuntu: apt-get install chromium"
    fi
}
tests_of() {
    if [[ $1 == page ]]; then
        echo "the page of a report (tests/report/test_interactive.py)"
    else
        echo "runs over several hosts (tests/launch/test_$1.py)"
    fi
}

skipped=
for what in hosts slurm page; do # slurm.sh looks for programs of its own when hosts.sh has all of its
    lacks=$(obstacle $what)
    packages=$(sed -n 's/.*apt-get install //p' <<<"$lacks")
    if [[ $packages ]] && ((EUID == 0)) && command -v apt-get >/dev/null; then
        echo "Installing $packages, for the tests of $(tests_of $what) ..." >&2
        # shellcheck disable=SC2086 # words
        (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages) >/dev/null 2>&1 ||
            echo "apt-get could not install them." >&2
        lacks=$(obstacle $what)
    fi
    if [[ $lacks ]]; then skipped+="Not tested: $(tests_of $what). $lacks "; fi
done
.venv/bin/python -c 'import importlib.util as i, sys; sys.exit(i.find_spec("deepspeed") is None)' ||
    skipped+="Not tested: runs with strategy=deepspeed (tests/strategies/test_deepspeed.py). They need the extra deepspeed of bsweep. "
if [[ $skipped ]]; then trap 'echo $skipped >&2' EXIT; fi

python -m compileall -q src # at once, and not by each process of pytest
pytest --collect-only -qq >/dev/null 2>&1 & # compiles beside the linters what tests import
ruff check .
ruff format --check .
shellcheck -x scripts/*.sh .ci/run
mypy
wait
# Much of a test is waiting, for processes to start or to be given up: three at a time fill two cores.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
code=0
pytest --numprocesses $((cores < 8 ? cores + 1 : 8)) --dist loadfile --no-loadscope-reorder "$@" || code=$?

# A busy machine can fail a test that waits for real processes. It gets one more try, alone, and is named.
failed=.pytest_cache/v/cache/lastfailed
if ((code == 1)) && [[ -f $failed ]] && (($(grep -c '::' $failed) <= 3)); then
    unsteady=$(grep -o '"[^"]*::[^"]*"' $failed)
    echo "Running again, alone: $unsteady" >&2
    code=0
    pytest --last-failed --last-failed-no-failures none || code=$?
    if ((code == 0)); then echo "UNSTEADY (failed beside other tests, passed alone): $unsteady" >&2; fi
fi
exit $code
