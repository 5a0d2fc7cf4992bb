#!/usr/bin/env bash
# Runs what needs a machine with GPUs, the most informative first: set-up with NCCL, the tests that need a GPU, the
# benches beside their targets, and the paper's sweep of batch sizes over 50 epochs, a worker on each GPU.
#
#   scripts/gpu.sh [--seconds N] [--python PYTHON] [--dry-run] [OVERRIDE...]
#
#   --seconds N      ends after N seconds, set-up included; the same command resumes with what is not done yet
#   --python PYTHON  sets nothing up and uses this Python, which has torch and all else that bsweep needs
#   --dry-run        prints what it would do
#   OVERRIDE         goes to the sweep, such as data.root=DIR
#
# The tests have at most 900 seconds, or a third of N, so that the measurements get the rest. All
# results are in results/HARDWARE, such as results/4x_tesla_t4. Without a GPU the exit code is 2.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh

seconds=0 python='' dry=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --seconds) seconds=${2:-} && shift ;;
    --python) python=${2:-} && shift ;;
    --dry-run) dry=1 ;;
    *) fail "$1 is unknown: scripts/gpu.sh [--seconds N] [--python PYTHON] [--dry-run] [OVERRIDE...]" ;;
    esac
    shift || fail "A value is missing: scripts/gpu.sh [--seconds N] [--python PYTHON] [--dry-run] [OVERRIDE...]"
done
[[ $seconds =~ ^[0-9]+$ ]] || fail "--seconds $seconds: give a whole number of seconds."

gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} 2>/dev/null) ||
    gpus=
if [[ -z $gpus || ${CUDA_VISIBLE_DEVICES-all} == '' ]]; then
    say "No GPU: nvidia-smi lists none here (CUDA_VISIBLE_DEVICES may hide them). Nothing was done."
    exit 2
fi
number=$(wc -l <<<"$gpus")
folder=results/${number}x_$(sort -u <<<"$gpus" | paste -sd ' ' | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9\n' _)
commit=$(git rev-parse HEAD 2>/dev/null || echo none)
failed=()

# attempt NAME COMMAND...: its output goes to NAME.log too. If one command fails, or takes longer than $most seconds
# (0: no limit of its own), the others still run.
attempt() {
    local name=$1 left=0 status=0
    if [[ $(cat "$folder/$name.done" 2>/dev/null) == "$commit" ]]; then
        say "$name: already done, see $folder/$name.log"
        return
    fi
    say "$name: $(printf '%q ' "${@:2}")"
    [[ -z $dry ]] || return 0
    ! is_over || out_of_time "$name"
    if ((seconds)); then left=$((seconds - SECONDS)); fi
    if ((most && (left == 0 || most < left))); then left=$most; fi
    # Interrupted, a sweep still puts its run on record.
    run timeout --signal=INT --kill-after=60 "$left" "${@:2}" > >(tee "$folder/$name.log" >&2) 2>&1 || status=$?
    if ((status == 0)); then
        [[ $name == sweep ]] || echo "$commit" >"$folder/$name.done" # the sweep knows what of it is done
    elif is_over; then
        out_of_time "$name"
    else
        ((status != 124)) || say "$name took longer than $left seconds and was ended."
        failed+=("$name")
    fi
}

is_over() { ((seconds && SECONDS >= seconds)); }

out_of_time() { fail "The $seconds seconds are over: $1 is left. The same command resumes from there. Results so far: $folder"; }

say "In $folder, on $(sort <<<"$gpus" | uniq -c | sed -E 's/^ *([0-9]+) /\1 x /' | paste -sd ,):"
set_up=(scripts/setup.sh)
if [[ $python ]]; then
    export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
    set_up=("$python" -m bsweep.core.gpus) # whether torch can use them
fi
say "set-up: ${set_up[*]}"
if [[ -z $dry ]]; then
    need=2 # GB for data and results, and more for a torch with CUDA
    [[ $python || -x .venv/bin/python ]] || need=15
    free=$(($(df -Pk . | awk 'END { print $4 }') / 1000000))
    ((free >= need)) || fail "$PWD has $free GB left, and this takes up to $need: make room, or use a clone on another disk."
    status=0
    run timeout --signal=INT --kill-after=60 "$seconds" "${set_up[@]}" || status=$?
    if ((status)); then
        ! is_over || out_of_time set-up
        exit "$status"
    fi
    mkdir -p "$folder"
fi
python=${python:-.venv/bin/python}
benches=(alone)
if ((number > 1)); then benches+=(together); fi
most=900
if ((seconds && seconds / 3 < most)); then most=$((seconds / 3)); fi
attempt tests "$python" -m pytest -m gpu -rs
most=0
attempt bench "$python" -m benches --models resnet18_cifar --batches 8,64,512 --json "$folder/bench.json" "${benches[@]}"
# The large batches are the quick ones: of a short time, most points are made of.
attempt sweep "$python" -m bsweep run --report experiment=paper "results_dir=$folder" "num_workers=$number" \
    local_batch=256,128,64,32,16,8 "$@"
((number == 1)) || say "Between two hosts, the exchange takes longer, and to hide it may pay from 64 examples on: docs/strategies.md\
 has the two sweeps that tell (strategy.buckets=1,4, and allreduce beside ddp)."
((${#failed[@]} == 0)) || fail "Failed: ${failed[*]}. See the logs in $folder; the same command tries again."
