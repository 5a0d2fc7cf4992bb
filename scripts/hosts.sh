#!/usr/bin/env bash
# Emulates hosts h1, h2, ... on one machine: network namespaces with a name, an eth0 and an sshd of their own, cabled to a
# switch. Only the network is emulated: the hosts share this machine's processors and files. Needs root on Linux.
#
#   hosts.sh up N [RATE] [ipv6]   RATE, such as 1gbit, limits each cable in each direction; without it, cables have no limit.
#                                 With ipv6, the hosts have IPv6 addresses only
#   hosts.sh run HOST COMMAND...  runs a command on a host, in the current folder
#   hosts.sh cut HOST             pulls the host's cable out of the switch; processes there continue without a network
#   hosts.sh join HOST            plugs the cable in again
#   hosts.sh down                 ends all that runs on the hosts, and removes them
#   hosts.sh check                names what this machine lacks for these hosts
#
# BSWEEP_HOSTS_PREFIX=NAME names a second set of hosts, which shares nothing with the first one.
set -euo pipefail

prefix=${BSWEEP_HOSTS_PREFIX:-bsweep}
state=/run/$prefix-hosts
identity=$state/identity # opens every host, and is every host's own key
switch=$prefix-switch
network=10.213.7. bits=24 only=""
PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s\n' "$@" >&2; }
fail() {
    say "$@"
    exit 1
}
cannot() {
    say "$@"
    exit 77 # as for other test tools: skip what needs the hosts
}

check_machine() {
    local tool missing=()
    [[ $(uname) == Linux ]] || cannot "hosts.sh needs Linux's network namespaces: this is $(uname)."
    ((EUID == 0)) || cannot "hosts.sh needs root to make network namespaces: run it with sudo."
    for tool in ip tc ss sshd ssh-keygen ssh unshare hostname; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    ((${#missing[@]} == 0)) || cannot "hosts.sh needs programs that are not here: ${missing[*]}." \
        "  Debian, Ubuntu:  apt-get install iproute2 openssh-server openssh-client util-linux hostname" \
        "  Fedora, RHEL:    dnf install iproute iproute-tc openssh-server openssh-clients util-linux hostname"
    unshare --net --mount --uts sh -ec "
        ip link add switch type bridge
        ip link add end0 type veth peer name end1
        ${1:+tc qdisc add dev end0 root $(shape "$1")}
    " || cannot "This machine does not let hosts.sh make network namespaces, bridges, veth pairs or rates (tbf): see above." \
        "A container needs --privileged."
}

# What limits a cable. A burst of 2 ms makes up for late timers; below 64 KB the kernel would split its large packets.
shape() {
    local bits=${1%?bit} burst
    case $1 in
    *kbit) bits=$((bits * 1000)) ;;
    *mbit) bits=$((bits * 1000000)) ;;
    *gbit) bits=$((bits * 1000000000)) ;;
    esac
    burst=$((bits / 8 / 500))
    printf 'tbf rate %s burst %s latency 50ms' "$1" $((burst > 131072 ? burst : 131072))
}

namespaces() { { ip netns list 2>/dev/null || true; } | awk -v name="^$prefix-(switch|h[0-9]+)\$" '$1 ~ name { print $1 }'; }

# "2 hosts, each on a cable of 1gbit", once all of them are up.
what_is_up() { [[ -e $state/up ]] && ip -n "$switch" link >/dev/null 2>&1 && cat "$state/up"; }

run() {
    local host=$1
    shift
    # shellcheck disable=SC2016 # the inner shell expands them
    exec ip netns exec "$prefix-$host" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
}

add_host() {
    local host=$1 address=$2 rate=$3 etc=/etc/netns/$prefix-$1
    ip netns add "$prefix-$host"
    ip link add eth0 netns "$prefix-$host" type veth peer name "$host" netns "$switch"
    if [[ $rate ]]; then
        # Both ends: the first limits what the host sends, the second what it receives.
        # shellcheck disable=SC2046 # shape's answer is words
        {
            tc -n "$prefix-$host" qdisc add dev eth0 root $(shape "$rate")
            tc -n "$switch" qdisc add dev "$host" root $(shape "$rate")
        }
    fi
    ip -n "$prefix-$host" address add "$address/$bits" dev eth0 nodad
    ip -n "$prefix-$host" link set lo up
    ip -n "$prefix-$host" link set eth0 up
    ip -n "$switch" link set "$host" master switch up
    # What `ip netns exec` shows as /etc/hosts and /etc/ssh.
    mkdir -p "$etc/ssh"
    cp "$state/hosts" "$etc/hosts"
    cp "$state/known_hosts" "$etc/ssh/ssh_known_hosts"
}

start_sshd() {
    local host=$1 address=$2 pam=no
    if grep -q '^root:!' /etc/shadow; then pam=yes; fi # without PAM, sshd turns a locked account away
    (run "$host" "$(command -v sshd)" -f /dev/null -E "$state/$host.log" -o HostKey="$identity" \
        -o AuthorizedKeysFile="$identity.pub" -o StrictModes=no -o PermitRootLogin=prohibit-password -o UsePAM=$pam \
        -o PidFile=none -o ListenAddress="$address")
    for _ in {1..50}; do
        if [[ $(ip netns exec "$prefix-$host" ss -Hltn 'sport = :22') ]]; then return; fi
        sleep 0.1
    done
    cat "$state/$host.log" >&2
    fail "The sshd of $host did not start."
}

up() {
    local number=$1 rate=$2 what i
    what="$number hosts$only, $([[ $rate ]] && echo "each on a cable of $rate" || echo "on cables of no set rate")"
    if [[ $(what_is_up) == "$what" ]]; then
        usage "Already up: $what." "$number"
        return
    elif [[ $(what_is_up) ]]; then
        fail "Other hosts are up: $(what_is_up). To remove them: $0 down"
    elif ! mkdir -m 700 "$state" 2>/dev/null || [[ $(namespaces) ]]; then
        fail "Hosts are being set up, or an interrupted run left them: see $state and ip netns. To remove them: $0 down"
    fi
    trap 'take_down; say "The hosts could not be set up: see above. They were removed."' EXIT
    ssh-keygen -q -t ed25519 -N '' -C "$prefix-hosts" -f "$identity"
    echo "h*,$network* $(cat "$identity.pub")" >"$state/known_hosts"
    printf '%s localhost\n' 127.0.0.1 ::1 >"$state/hosts"
    for ((i = 1; i <= number; i++)); do echo "$network$i h$i"; done >>"$state/hosts"
    install -d /run/sshd # sshd insists
    ip netns add "$switch"
    ip -n "$switch" link add switch type bridge
    ip -n "$switch" link set switch up
    for ((i = 1; i <= number; i++)); do
        add_host "h$i" "$network$i" "$rate"
        start_sshd "h$i" "$network$i"
    done
    echo "$what" >"$state/up"
    trap - EXIT
    usage "Up: $what." "$number"
}

usage() {
    local hosts
    hosts=$(seq -f 'h%g:1' -s , "$2")
    cat <<END
$1 To run on them, a process on each:

  $0 run h1 .venv/bin/bsweep run num_workers=$2 launch.hosts="'$hosts'" \\
      launch.ssh_identity_file=$identity launch.network_interface=eth0

$0 run HOST COMMAND... runs any command on a host; $0 down removes them all.
END
}

take_down() {
    local name pids all=() signal
    mapfile -t all < <(namespaces)
    for signal in TERM TERM TERM TERM TERM KILL KILL; do
        pids=$(for name in "${all[@]}"; do ip netns pids "$name" 2>/dev/null || true; done)
        [[ $pids ]] || break
        xargs kill -"$signal" <<<"$pids" 2>/dev/null || true
        sleep 0.2
    done
    for name in "${all[@]}"; do ip netns delete "$name"; done
    rm -rf "$state" /etc/netns/"$prefix"-h[0-9]*
    rmdir /etc/netns 2>/dev/null || true
}

how() {
    sed -n '5,13s/^#[[:space:]]\{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    fail "$@"
}

[[ $prefix =~ ^[a-z0-9]+$ ]] || fail "BSWEEP_HOSTS_PREFIX=$prefix: use small letters and digits only."
case ${1:-} in
up)
    if [[ ${!#} == ipv6 ]]; then
        network=fd00:213:7:: bits=64 only=" with IPv6 only"
        set -- "${@:1:$#-1}"
    fi
    (($# == 2 || $# == 3)) || how "up takes a number of hosts and, to limit the cables, a rate."
    [[ $2 =~ ^[1-9][0-9]{0,2}$ ]] || how "$2 is not a number of hosts from 1 to 254."
    (($2 <= 254)) || how "$2 hosts are too many: at most 254 fit."
    [[ ${3-1gbit} =~ ^[1-9][0-9]{0,5}[kmg]bit$ ]] || how "$3 is not a rate such as 200mbit or 10gbit (whole kbit, mbit or gbit)."
    check_machine "${3:-}"
    up "$2" "${3:-}"
    ;;
run)
    (($# >= 3)) || how "run takes a host and a command."
    ((EUID == 0)) || fail "hosts.sh needs root: run it with sudo."
    [[ -e /etc/netns/$prefix-$2 ]] || fail "There is no host $2. Up: $(what_is_up || echo "none")."
    run "${@:2}"
    ;;
cut | join)
    (($# == 2)) || how "$1 takes a host."
    ((EUID == 0)) || fail "hosts.sh needs root: run it with sudo."
    [[ -e /etc/netns/$prefix-$2 ]] || fail "There is no host $2. Up: $(what_is_up || echo "none")."
    ip -n "$switch" link set "$2" "$([[ $1 == cut ]] && echo down || echo up)"
    ;;
down)
    if [[ ! -e $state && -z $(namespaces) ]]; then
        say "No hosts are up."
        exit
    fi
    ((EUID == 0)) || fail "hosts.sh needs root: run it with sudo."
    take_down
    say "The hosts are gone."
    ;;
check) check_machine 1gbit ;;
*) how "The first word is up, run, cut, join, down or check." ;;
esac
