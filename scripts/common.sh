# shellcheck shell=bash
# What the scripts share.

export PIP_NO_INPUT=1 # what pip asks would be seen in the log alone
log=/dev/null         # keeps the output of steps: the script says where
job=

say() { printf '%s\n' "$@" >&2; }
fail() {
    say "$@"
    exit 1
}

# Runs a command as a job. Under `set -m` that is a process group, so that an interrupt reaches all that it started.
run() {
    local status=0
    set -m
    "$@" </dev/null &
    job=$!
    set +m
    wait "$job" || status=$?
    job=
    return "$status"
}

# The job's first process is waited for, since it may be one of these scripts and have a job of its own to end.
end_job() {
    local _
    trap '' INT TERM HUP
    [[ $job ]] || return 0
    kill -TERM -- "-$job" 2>/dev/null || true
    wait "$job" 2>/dev/null || true
    for _ in {1..20}; do
        kill -0 -- "-$job" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$job" 2>/dev/null || true
}
trap 'end_job; exit 130' INT
trap 'end_job; exit 143' TERM HUP

# step TITLE COMMAND...: the title goes to the terminal, the command's output to the log.
step() {
    say "$1 ..."
    if run "${@:2}" >>"$log" 2>&1; then return; fi
    no_network
    tail -n 15 "$log" >&2
    say "This step failed: $1. All output: $log"
    return 1
}

# pip goes on without an index that it cannot reach, and then complains of the packages that it misses.
no_network() {
    local words host
    words=$(grep -E 'Retry\(total=0|Max retries exceeded' "$log" | tail -n 1) || return 0
    host=$(grep -oE "host='[^']+" <<<"$words" | tail -n 1) || host="its package index" # an older pip names no host
    say "No network: pip could not reach ${host#*\'}. All output: $log" \
        "Behind a proxy, set https_proxy; for another package index, PIP_INDEX_URL."
}

# check_folder FOLDER REMEDY: makes it, and ends with a sentence where nothing can be written to it.
check_folder() {
    { mkdir -p "$1" && [[ -w $1 ]]; } 2>/dev/null || fail "The folder $1 cannot be written to. $2"
}

# What a step leaves behind when it is ended goes with this folder.
make_work_folder() {
    work=$(mktemp -d 2>/dev/null) || fail "The folder ${TMPDIR:-/tmp} cannot be written to. Name another one: TMPDIR=..."
    export TMPDIR=$work
    trap 'rm -rf "$work"' EXIT
}
