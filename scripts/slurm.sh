#!/usr/bin/env bash
# Sets up SLURM on the hosts h1, h2, ... that hosts.sh emulates on one machine: jobs with steps on nodes of their own, over
# the network between them. The controller runs on h1. Needs root on Linux.
#
#   slurm.sh up N [RATE]      N nodes, each on a cable of RATE, such as 1gbit; without RATE, cables have no limit
#   slurm.sh run COMMAND...   runs sbatch, salloc, squeue or any other command on h1, in the current folder
#   slurm.sh down             ends all jobs, and removes the hosts
#   slurm.sh check            says what this machine lacks for that
#
# BSWEEP_HOSTS_PREFIX=NAME names a second set of hosts with a SLURM of its own, which shares nothing with the first one.
set -euo pipefail

hosts=$(dirname "${BASH_SOURCE[0]}")/hosts.sh
prefix=${BSWEEP_HOSTS_PREFIX:-bsweep}
state=/run/$prefix-slurm
network=10.213.7
cpus=4 # of each node, whatever the machine has
PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s\n' "$@" >&2; }
fail() {
    say "$@"
    exit 1
}

check_machine() {
    "$hosts" check
    local tool missing=()
    for tool in munged slurmctld slurmd sbatch srun; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    ((${#missing[@]} == 0)) || {
        say "slurm.sh needs programs that are not here: ${missing[*]}." \
            "  Debian, Ubuntu:  apt-get install munge slurmctld slurmd slurm-client"
        exit 77 # as for other test tools: skip what needs SLURM
    }
}

write_configuration() {
    local number=$1 i
    # Nothing is limited by cgroups, which the hosts' view of /sys does not have. A job that is queued again starts when
    # the scheduler first looks for work after the time for which a credential is good: every half minute and two
    # minutes, if nobody says less.
    cat >"$state/slurm.conf" <<END
ClusterName=$prefix
SlurmctldHost=h1($network.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$state/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$state/controller
SlurmdSpoolDir=$state/%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/%n.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=2
ReturnToService=2
KillWait=10
END
    for ((i = 1; i <= number; i++)); do
        echo "NodeName=h$i NodeAddr=$network.$i CPUs=$cpus State=UNKNOWN"
        mkdir -p "$state/h$i"
    done >>"$state/slurm.conf"
    echo "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$state/slurm.conf"
    echo "CgroupPlugin=cgroup/v1" >"$state/cgroup.conf"
}

on() { "$hosts" run "$1" env SLURM_CONF="$state/slurm.conf" "${@:2}"; }

start() {
    local number=$1 i
    on h1 munged --force --key-file="$state/munge.key" --socket="$state/munge.socket" --pid-file="$state/munge.pid" \
        --log-file="$state/munge.log" --seed-file="$state/munge.seed" 2>>"$state/munge.log"
    on h1 slurmctld 2>>"$state/slurmctld.log"
    for ((i = 1; i <= number; i++)); do on "h$i" slurmd 2>>"$state/h$i.log"; done
    for _ in {1..100}; do
        if [[ $(on h1 sinfo --noheader --states=idle --format=%D 2>/dev/null) == "$number" ]]; then return; fi
        sleep 0.1
    done
    tail -n 20 "$state"/*.log >&2
    fail "SLURM did not start: see above."
}

up() {
    local number=$1
    if [[ -e $state ]]; then fail "SLURM is up or is being set up: see $state. To remove it: $0 down"; fi
    if [[ -e /run/$prefix-hosts ]]; then fail "Hosts are already up. To remove them: $hosts down. Or choose another BSWEEP_HOSTS_PREFIX."; fi
    "$hosts" up "$@" >/dev/null # which leaves nothing where it fails
    trap 'take_down; say "SLURM could not be set up: see above. It was removed."' EXIT
    mkdir -m 755 "$state"
    mkdir "$state/controller"
    (umask 077 && head -c 1024 /dev/urandom >"$state/munge.key")
    write_configuration "$number"
    start "$number"
    trap - EXIT
    cat <<END
Up: SLURM on $number nodes of $cpus CPUs. To train on all of them, a worker on each:

  $0 run sbatch --wait --nodes=$number --ntasks-per-node=1 --wrap \\
      'exec $PWD/.venv/bin/bsweep run num_workers=$number local_batch=64 strategy=ddp launch=srun'

$0 run squeue lists jobs; $0 down ends and removes all.
END
}

take_down() {
    "$hosts" down 2>/dev/null || true # ends all that runs on them, too
    rm -rf "$state"
}

how() {
    sed -n '5,8s/^#[[:space:]]\{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    fail "$@"
}

case ${1:-} in
up)
    (($# == 2 || $# == 3)) || how "up takes a number of nodes and, to limit the cables, a rate."
    [[ $2 =~ ^[1-9][0-9]{0,2}$ ]] || how "$2 is not a number of nodes."
    check_machine
    up "${@:2}"
    ;;
run)
    (($# >= 2)) || how "run takes a command."
    [[ -e $state/slurm.conf ]] || fail "SLURM is not up. To set it up: $0 up 2"
    on h1 "${@:2}"
    ;;
down)
    if [[ ! -e $state ]]; then
        say "SLURM is not up."
        exit
    fi
    take_down
    say "SLURM and its hosts are gone."
    ;;
check) check_machine ;;
*) how "The first word is up, run, down or check." ;;
esac
