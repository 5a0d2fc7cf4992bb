#!/usr/bin/env bash
# Measures steps on 1, 2, 4 and 8 emulated hosts at 0.1, 1 and 10 Gbit/s, to hold simulations against. Needs root on Linux.
#
#   measure.sh TEXT FOLDER [RATE...]   TEXT is a text file to train on. Studies go to FOLDER, one for each model and RATE:
#                                      100mbit, 1gbit, 10gbit; without, all
#
# The hosts share this machine's cores. So that they need not take turns, workers sleep for 7 of 8 parts of each pass
# (launch.slowdown), and what they measure is the exchange. A cell whose run is complete is not run again.
set -euo pipefail
text=$(realpath "$1") folder=$(realpath "$2")
shift 2
emulated=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../scripts" && pwd)/hosts.sh

# run MODEL RATE WORKERS STEPS SEEDS WORDS...
run() {
    local model=$1 rate=$2 workers=$3 steps=$4 seeds=$5 hosts="" slow="" host on=() own=()
    shift 5
    for ((host = 1; host <= workers; host++)); do hosts+=${hosts:+,}h$host:1 slow+=${slow:+,}8; done
    for ((; host <= workers + workers / 2; host++)); do hosts+=,h$host:1; done # for parameter servers
    if ((workers > 1)); then
        on=("launch.hosts='$hosts'" launch.network_interface=eth0 launch.ssh_identity_file=/run/bsweep-hosts/identity)
    fi
    case $model in
    resnet18) own=(data=synthetic local_batch=8 "data.num_train=$((8 * steps * workers))" data.num_test=16) ;;
    llama) own=(data=text "data.path=$text" data.sequence_length=64 data.test_share=0.002 model=llama_tiny
        model.hidden_size=256 model.intermediate_size=688 local_batch=2 "data.subset=$((2 * steps * workers))") ;;
    esac
    "$emulated" run h1 bsweep run "results_dir=$folder" "study=${model}_$rate" "seed=$seeds" "num_workers=$workers" \
        "launch.slowdown=[$slow]" "${own[@]}" "${on[@]}" epochs=1 log_every_steps=1 checkpoint_every=null device=cpu \
        precision=fp32 channels_last=false launch.threads_per_worker=1 launch.start_timeout_seconds=900 "$@" </dev/null ||
        echo "failed: $model $rate on $workers: $*" >&2
}

(($#)) || set -- 1gbit 10gbit 100mbit
for rate; do
    steps=16 seeds=1,2,3
    [[ $rate != 100mbit ]] || steps=8 seeds=1 # a step takes up to 15 s
    "$emulated" down >/dev/null 2>&1 || true
    "$emulated" up 12 "$rate"
    for model in llama resnet18; do
        run "$model" "$rate" 1 "$steps" 1,2,3 strategy=single
        for workers in 2 4 8; do
            for words in strategy=allreduce strategy=parameter_server "strategy=diloco strategy.sync_every=4"; do
                # shellcheck disable=SC2086
                run "$model" "$rate" "$workers" "$steps" "$seeds" $words
            done
        done
    done
done
"$emulated" down
cd "$folder" # what is published of the studies
tar -czf records.tar.gz --exclude=logs --exclude='.*' --sort=name -- */
