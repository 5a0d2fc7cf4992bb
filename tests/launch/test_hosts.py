"""Workers on several hosts, which scripts/hosts.sh emulates, and the rates of those hosts'
cables.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bsweep.cli import doctor
from bsweep.launch import machine_facts
from tests.support.running import HOSTS, ROOT, TINY, bsweep, compose, forks, on

pytestmark = pytest.mark.full

OTHERS = ("horovod", "ddp", "local_sgd", "diloco", "parameter_server")
TRANSFERRED_BYTES = 10_000_000

SEND = """
import socket, sys
from threading import Thread
receivers = [socket.create_connection((host, 5001)) for host in sys.argv[2:]]
for receiver in receivers:
    receiver.recv(1)
for receiver in receivers:
    Thread(target=receiver.sendall, args=(bytes(int(sys.argv[1])),)).start()
"""
RECEIVE = """
import socket, sys, time
from threading import Thread
server = socket.create_server(("", 5001))
print("listening", flush=True)
def drain(sender):
    while sender.recv(1 << 20):
        pass
senders = [server.accept()[0] for _ in range(int(sys.argv[1]))]
threads = [Thread(target=drain, args=(sender,)) for sender in senders]
start = time.monotonic()
for sender, thread in zip(senders, threads):
    sender.send(b"!")
    thread.start()
for thread in threads:
    thread.join()
print(start, time.monotonic())
"""
EXCHANGE = """
import time, torch, torch.distributed as dist
from bsweep.strategies.collectives import Wire
dist.init_process_group("gloo")
rank = dist.get_rank()
mine, theirs = (torch.zeros(10_000_000, dtype=torch.uint8) for _ in range(2))
wire = Wire(dist.group.WORLD, rank, 2)
dist.barrier()
start = time.monotonic()
wire.exchange(mine, 1 - rank, theirs, 1 - rank)
if not rank:
    print(time.monotonic() - start)
dist.barrier()
"""


@pytest.mark.parametrize(
    ("hosts", "more"),
    [
        ("h1:1,h2:1,h3:1", ("strategy=horovod", "model=own", "model.target=mine.py:build")),
        ("h1:1,h2:1", ("strategy=parameter_server", "strategy.num_servers=2", "model=tiny_cnn")),
    ],
    ids=["horovod", "parameter_server"],
)
def test_a_run_over_hosts(
    up: Callable[..., dict[str, str]], tmp_path: Path, hosts: str, more: tuple[str, ...]
) -> None:
    """Two workers train two points; a spare slot, or a parameter server beside each. A model may be
    one's own. Whatever listens does so at the interface that was named.
    """
    shutil.copy(ROOT / "scripts/examples/small_network.py", tmp_path / "mine.py")
    overrides = {**up(str(hosts.count("h"))), "num_workers": "2"}
    arguments = (
        "-m",
        "local_batch=8,16",
        *(f"{key}={value}" for key, value in overrides.items()),
        *TINY,
        *more,
        "epochs=1",
        "study=s",
    )
    is_fresh = "strategy=horovod" in more  # the other run's processes are forks, also over ssh
    for_the_group = (*on("h1"), "sh", "-c", 'umask 027 && exec "$@"', "sh")
    with listeners_watched("h1", "h2") as listened_at:
        result = bsweep("run", *arguments, cwd=tmp_path, prefix=for_the_group, fresh=is_fresh)
    assert result.returncode == 0, result.stderr
    written = list((tmp_path / "results").rglob("*"))
    assert [path for path in written if path.stat().st_mode & 0o027] == []
    assert listened_at - {"10.213.7.2"} == {"10.213.7.1"}
    summary, other = (tmp_path / "results/s").glob("*/summary.json")
    assert (
        json.loads(summary.read_text())["status"]
        == json.loads(other.read_text())["status"]
        == "completed"
    )
    assert len(list(tmp_path.rglob("launcher.log"))) == 1, "processes were started once"
    assert json.loads((summary.parent / "meta.json").read_text())["hosts"] == hosts
    log = Path(overrides["launch.ssh_identity_file"]).with_name("h2.log").read_text()
    assert "Accepted publickey" in log, "the other worker was started over ssh"


@pytest.mark.parametrize(
    "strategy", ["allreduce", *(pytest.param(s, marks=pytest.mark.full) for s in OTHERS)]
)
def test_hosts_with_ipv6_only(
    up: Callable[..., dict[str, str]], tmp_path: Path, strategy: str
) -> None:
    given = [f"{key}={value}" for key, value in up("2", "ipv6").items()]
    point = ("run", *given, "local_batch=8", "epochs=1", "precision=fp32", *TINY, "model=tiny_cnn")
    with listeners_watched("h1", "h2") as listened_at:
        result = bsweep(*point, f"strategy={strategy}", cwd=tmp_path, prefix=on("h1"))
    if strategy == "horovod":
        assert result.returncode == 2, result.stderr
        assert "h1: it reaches h1, h2 by IPv6 only, and Horovod needs IPv4: " in result.stderr
        return
    assert result.returncode == 0, result.stderr
    assert "[fd00:213:7::1]" in listened_at
    assert listened_at <= {"[fd00:213:7::1]", "[fd00:213:7::2]"}


def test_what_trains_on_one_machine_listens_to_that_machine_alone(
    up: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    up("1")
    small = ("model=tiny_cnn", "precision=fp32", *TINY)
    point = ("run", "num_workers=2", "local_batch=8", "epochs=1", *small)
    with listeners_watched("h1") as listened_at:
        result = bsweep(*point, "strategy=allreduce", cwd=tmp_path, prefix=on("h1"))
    assert result.returncode == 0, result.stderr
    assert listened_at == {"127.0.0.1"}
    with listeners_watched("h1") as listened_at:
        result = bsweep(*point, "strategy=horovod", cwd=tmp_path, prefix=on("h1"))
    assert result.returncode == 0, result.stderr
    # Horovod 0.28.1 opens some connections at the address of the host's name, and then closes them.
    assert listened_at - {"10.213.7.1"} == {"127.0.0.1"}


def test_the_doctor_examines_hosts_and_says_what_to_mend(
    up: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    given = up("2")
    keys = [
        f"{key}={given[key]}" for key in ("launch.ssh_identity_file", "launch.network_interface")
    ]
    command = [*on("h1"), forks().bsweep, "doctor", "--json", *keys, "--hosts"]
    well = subprocess.run(
        [*command, "h1:1,h2:1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert well.returncode == 0, well.stdout + well.stderr
    found = json.loads(well.stdout)
    assert {name: facts["name"] for name, facts in found["machines"].items()} == {
        "h1": "h1",
        "h2": "h2",
    }
    assert "Gloo" in found["machines"]["h2"]["horovod_build"]
    subprocess.run([HOSTS, "cut", "h2"], check=True)
    ill = subprocess.run(
        [*command, "h1:1,h2:1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ill.returncode == 1
    (problem,) = json.loads(ill.stdout)["to_mend"]
    assert problem.startswith("h2: ssh cannot enter the host: connect to host h2 port 22: ")
    assert not list(tmp_path.iterdir()), "it leaves nothing"


def test_the_doctor_says_that_nccl_has_too_little_shared_memory() -> None:
    facts = {
        **machine_facts.facts(machine_facts.Request(device="cpu")),
        "slots": None,
        "gpus": 2,
    }
    machines = {"h1": {**facts, "free_shared_bytes": 64_000_000}, "h2": facts}
    found = [said for said in doctor._to_mend(compose("local_batch=8"), machines) if "shm" in said]
    assert len(found) == 1
    assert found[0].startswith("h1: 64 MB are free in /dev/shm")


@pytest.mark.parametrize(
    ("senders", "receivers"),
    [(("h1",), ("h2",)), (("h1",), ("h2", "h3")), (("h2", "h3"), ("h1",))],
    ids=["one to one", "sending to two", "receiving from two"],
)
def test_a_rate_holds_each_way(
    up: Callable[..., dict[str, str]], senders: tuple[str, ...], receivers: tuple[str, ...]
) -> None:
    up("3", "200mbit")
    # The fastest of three: other work on the machine makes a transfer slower, and nothing may make
    # it faster.
    rate = max(transfer(senders, receivers) for _ in range(3))
    assert 0.5 * 200e6 < rate < 1.1 * 200e6


def test_an_exchange_between_two_uses_both_ways_of_a_cable(
    up: Callable[..., dict[str, str]],
) -> None:
    up("2", "100mbit")
    where = {
        "MASTER_ADDR": "h1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    processes = [
        subprocess.Popen(
            [*on(f"h{rank + 1}"), forks().python, "-c", EXCHANGE],
            env={**os.environ, **where, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    output, _ = processes[0].communicate(timeout=60)
    assert processes[1].wait(60) == 0
    one_way = 8 * TRANSFERRED_BYTES / 100e6
    assert float(output) < 1.5 * one_way, "taking turns, it would be twice as long"


@contextmanager
def listeners_watched(*hosts: str) -> Iterator[set[str]]:
    """The addresses at which processes of these hosts listen meanwhile, without each sshd."""
    found: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for host in hosts:
                where = ["ip", "netns", "exec", f"{os.environ['BSWEEP_HOSTS_PREFIX']}-{host}"]
                sockets = subprocess.check_output(
                    [*where, "ss", "-Hltn", "sport != :22"], text=True
                )
                found.update(line.split()[3].rpartition(":")[0] for line in sockets.splitlines())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def transfer(senders: tuple[str, ...], receivers: tuple[str, ...]) -> float:
    """Bits a second, of all that goes from all senders to all receivers at once."""
    num_bytes = TRANSFERRED_BYTES // (len(senders) * len(receivers))
    receiving = [
        subprocess.Popen(
            [*on(host), sys.executable, "-c", RECEIVE, str(len(senders))],
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in receivers
    ]
    for process in receiving:
        assert process.stdout
        assert process.stdout.readline() == "listening\n"
    sending = [
        subprocess.Popen([*on(host), sys.executable, "-c", SEND, str(num_bytes), *receivers])
        for host in senders
    ]
    assert [process.wait(60) for process in sending] == [0] * len(senders)
    # The hosts are one machine, with one clock.
    times = [
        [float(word) for word in process.communicate(timeout=60)[0].split()]
        for process in receiving
    ]
    return 8 * TRANSFERRED_BYTES / (max(end for _, end in times) - min(start for start, _ in times))
