#!/usr/bin/env bash
# Measures ways of splitting a model over 1, 2 and 4 workers on emulated hosts. Needs root on Linux.
#
#   measure.sh TEXT FOLDER [STUDY...]   TEXT is a text file to train on. Records go to FOLDER/records.tar.gz.
#   tables.py FOLDER                    prints the tables
#
# Studies: llama_10m, llama_tiny, llama_150m, vgg16; without names, all. The rounds of a study come one after another, and
# each goes through all cells. A cell whose run is complete is not run again.
set -euo pipefail
text=$(realpath "$1") folder=$(realpath "$2")
shift 2
emulated=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../scripts" && pwd)/hosts.sh
raw=${BSWEEP_RESULTS_DIR:-$PWD/results}
kept=$(mktemp -d)
[[ ! -f $folder/records.tar.gz ]] || tar -xzf "$folder/records.tar.gz" -C "$kept"

# shellcheck disable=SC2034 # run takes them by name
{
    on_llama=(data=text "data.path=$text" optimizer=adamw)
    llama_10m=("${on_llama[@]}" model=llama_tiny model.hidden_size=256 model.intermediate_size=688 model.num_layers=12
        model.num_heads=8 data.sequence_length=128 data.test_share=0.005 global_batch=8)
    llama_tiny=("${on_llama[@]}" model=llama_tiny data.sequence_length=128 data.test_share=0.005 global_batch=32)
    llama_150m=("${on_llama[@]}" model=llama_150m data.sequence_length=64 data.test_share=0.002 global_batch=4)
    vgg16=(model=vgg16 data=synthetic data.num_test=16 global_batch=32)
}

# run SETTINGS_NAME RATE SEED WORKERS EXAMPLES WORDS...
run() {
    local -n settings=$1
    local rate=$2 seed=$3 workers=$4 examples=$5 hosts="" host
    shift 5
    for ((host = 1; host <= workers; host++)); do hosts+=${hosts:+,}h$host:1; done
    case ${settings[*]} in
    *synthetic*) set -- "data.num_train=$examples" "$@" ;;
    *) set -- "data.subset=$examples" "$@" ;;
    esac
    if ((workers > 1)); then
        set -- "launch.hosts='$hosts'" launch.network_interface=eth0 launch.ssh_identity_file=/run/bsweep-hosts/identity "$@"
    fi
    "$emulated" run h1 bsweep run "results_dir=$raw" "study=${!settings}_$rate" "seed=$seed" "num_workers=$workers" \
        "${settings[@]}" local_batch=null epochs=1 log_every_steps=1000 checkpoint_every=null device=cpu precision=fp32 \
        channels_last=false launch.threads_per_worker=1 launch.start_timeout_seconds=900 launch.stall_timeout_seconds=900 \
        "$@" </dev/null || echo "failed: ${!settings} $rate seed $seed on $workers: $*" >&2
}

on_four() { # SETTINGS_NAME RATE SEED EXAMPLES
    local words
    for words in strategy=horovod strategy=sharded "strategy=sharded strategy.replicas=2" strategy=tensor \
        "strategy=tensor strategy.replicas=2" "strategy=pipeline strategy.microbatches=4" \
        "strategy=pipeline strategy.microbatches=4 strategy.replicas=2"; do
        # shellcheck disable=SC2086
        run "$1" "$2" "$3" 4 "$4" $words
    done
}

on_fewer() { # SETTINGS_NAME RATE SEED EXAMPLES
    local words
    run "$1" "$2" "$3" 1 "$4" strategy=single
    for words in strategy=horovod strategy=sharded strategy=tensor "strategy=pipeline strategy.microbatches=4"; do
        # shellcheck disable=SC2086
        run "$1" "$2" "$3" 2 "$4" $words
    done
}

network() {
    "$emulated" down >/dev/null 2>&1 || true
    "$emulated" up 4 "$1"
}

keep() { # STUDY_PREFIX
    local metrics run study
    for metrics in "$raw/$1"_*gbit/*/metrics.jsonl; do
        run=$(dirname "$metrics") study=$(basename "$(dirname "$run")")
        if grep -q '"completed"' "$run/summary.json"; then
            cp "$metrics" "$kept/$study.$(basename "$run").jsonl"
        fi
    done
}

(($#)) || set -- llama_10m llama_tiny llama_150m vgg16
for study; do
    case $study in
    llama_10m)
        for seed in 1 2 3; do
            network 1gbit
            on_fewer llama_10m 1gbit "$seed" 40
            run llama_10m 1gbit "$seed" 4 96 strategy=pipedream
            on_four llama_10m 1gbit "$seed" 40
            network 10gbit
            on_four llama_10m 10gbit "$seed" 40
        done
        ;;
    llama_tiny)
        network 1gbit
        for seed in 1 2 3; do
            on_fewer llama_tiny 1gbit "$seed" 320
            on_four llama_tiny 1gbit "$seed" 320
        done
        ;;
    llama_150m)
        network 10gbit
        on_four llama_150m 10gbit 1 12
        ;;
    vgg16)
        for seed in 1 2 3; do
            network 10gbit
            on_fewer vgg16 10gbit "$seed" 96
            on_four vgg16 10gbit "$seed" 96
            network 1gbit
            on_four vgg16 1gbit "$seed" 96
        done
        ;;
    *)
        echo "measure.sh: unknown study $study" >&2
        exit 2
        ;;
    esac
    keep "$study"
done
(cd "$kept" && tar -czf "$folder/records.tar.gz" --sort=name -- *.jsonl)
"$emulated" down
