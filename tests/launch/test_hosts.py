"""Workers on several hosts, which scripts/hosts.sh emulates, and the rates of those hosts'
cables.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bsweep.cli import doctor
from bsweep.launch import machine_facts
from tests.support.running import HOSTS, ROOT, TINY, bsweep, compose, forks, on, ran_ok, summaries

pytestmark = pytest.mark.full

OTHERS = ("horovod", "ddp", "diloco", "parameter_server")
SMALL = ("local_batch=8", "epochs=1", "precision=fp32", "model=tiny_cnn", *TINY)
NUM_BYTES = 10_000_000
TRANSFERS = f"""
import time, torch, torch.distributed as dist
from bsweep.strategies.groups import Wire
dist.init_process_group("gloo")
rank = dist.get_rank()
mine, theirs, others = (torch.zeros({NUM_BYTES}, dtype=torch.uint8) for _ in range(3))
wire = Wire(dist.group.WORLD, rank, 3)

def transfer(*pairs):
    works = [dist.isend(mine, receiver) for sender, receiver in pairs if sender == rank]
    sources = [sender for sender, receiver in pairs if receiver == rank]
    works += [dist.irecv(into, source) for into, source in zip((theirs, others), sources)]
    for work in works:
        work.wait()

def exchange():
    if rank < 2:
        wire.exchange(mine, 1 - rank, theirs, 1 - rank)

def seconds(run, *given):
    dist.barrier()
    start = time.monotonic()
    run(*given)
    dist.barrier()
    return time.monotonic() - start

for run, *given in (
    (transfer, (0, 1)),
    (transfer, (0, 1), (0, 2)),
    (transfer, (1, 0), (2, 0)),
    (exchange,),
):
    shortest = min(seconds(run, *given) for _ in range(3))
    if not rank:
        print(shortest)
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
    one's own. Whatever listens does so at the interface that was named. All files have the umask of
    the command: an sshd would give its own.
    """
    shutil.copy(ROOT / "scripts/examples/small_network.py", tmp_path / "mine.py")
    overrides = {**up(str(hosts.count("h"))), "num_workers": "2"}
    keys = [f"{key}={value}" for key, value in overrides.items()]
    point = ("-m", "local_batch=8,16", *keys, *TINY, *more, "epochs=1", "study=s")
    is_fresh = "strategy=horovod" in more  # the other run's processes are forks, also over ssh
    for_the_group = (*on("h1"), "sh", "-c", 'umask 027 && exec "$@"', "sh")
    with listeners_watched("h1", "h2") as listened_at:
        ran_ok("run", *point, cwd=tmp_path, prefix=for_the_group, fresh=is_fresh)
    written = list((tmp_path / "results").rglob("*"))
    assert [path for path in written if path.stat().st_mode & 0o027] == []
    assert listened_at - {"10.213.7.2"} == {"10.213.7.1"}
    ends = summaries(tmp_path)
    assert [ends[batch]["status"] for batch in (8, 16)] == ["completed"] * 2
    assert len(list(tmp_path.rglob("launcher.log"))) == 1, "processes were started once"
    metas = [json.loads(path.read_text()) for path in tmp_path.glob("results/s/*/meta.json")]
    assert {meta["hosts"] for meta in metas} == {hosts}
    log = Path(overrides["launch.ssh_identity_file"]).with_name("h2.log").read_text()
    assert "Accepted publickey" in log, "the other worker was started over ssh"


@pytest.mark.parametrize("strategy", ["allreduce", *OTHERS])
def test_hosts_with_ipv6_only(
    up: Callable[..., dict[str, str]], tmp_path: Path, strategy: str
) -> None:
    given = [f"{key}={value}" for key, value in up("2", "ipv6").items()]
    point = ("run", *given, *SMALL, f"strategy={strategy}")
    with listeners_watched("h1", "h2") as listened_at:
        result = bsweep(*point, cwd=tmp_path, prefix=on("h1"))
    if strategy == "horovod":
        assert result.returncode == 2, result.stderr
        assert "h1: it reaches h1, h2 by IPv6 only, and Horovod needs IPv4: " in result.stderr
        return
    assert result.returncode == 0, result.stderr
    assert "[fd00:213:7::1]" in listened_at
    assert listened_at <= {"[fd00:213:7::1]", "[fd00:213:7::2]"}


@pytest.mark.parametrize(
    ("strategy", "briefly"),
    [
        ("allreduce", set()),
        # Horovod 0.28.1 opens some connections at the address of the host's name, and closes them.
        ("horovod", {"10.213.7.1"}),
    ],
)
def test_what_trains_on_one_machine_listens_to_that_machine_alone(
    up: Callable[..., dict[str, str]], tmp_path: Path, strategy: str, briefly: set[str]
) -> None:
    up("1")
    point = ("run", "num_workers=2", *SMALL, f"strategy={strategy}")
    with listeners_watched("h1") as listened_at:
        ran_ok(*point, cwd=tmp_path, prefix=on("h1"))
    assert listened_at - briefly == {"127.0.0.1"}


def test_the_doctor_examines_hosts_and_says_what_to_mend(
    up: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    given = up("2")
    names = ("launch.ssh_identity_file", "launch.network_interface")
    keys = [f"{name}={given[name]}" for name in names]
    command = ("doctor", "--json", *keys, "--hosts", "h1:1,h2:1")
    found = json.loads(ran_ok(*command, cwd=tmp_path, prefix=on("h1")).stdout)
    machines = found["machines"]
    assert {host: facts["name"] for host, facts in machines.items()} == {"h1": "h1", "h2": "h2"}
    assert "Gloo" in machines["h2"]["horovod_build"]
    subprocess.run([HOSTS, "cut", "h2"], check=True)
    ill = bsweep(*command, cwd=tmp_path, prefix=on("h1"))
    assert ill.returncode == 1
    (problem,) = json.loads(ill.stdout)["to_mend"]
    assert problem.startswith("h2: ssh cannot enter the host: connect to host h2 port 22: ")
    assert not list(tmp_path.iterdir()), "it leaves nothing"


def test_the_doctor_says_that_nccl_has_too_little_shared_memory() -> None:
    said_here = machine_facts.facts(machine_facts.Request(device="cpu"))
    facts = {**said_here, "slots": None, "gpus": 2}
    machines = {"h1": {**facts, "free_shared_bytes": 64_000_000}, "h2": facts}
    found = [said for said in doctor._to_mend(compose("local_batch=8"), machines) if "shm" in said]
    assert len(found) == 1
    assert found[0].startswith("h1: 64 MB are free in /dev/shm")


def test_a_rate_holds_each_way_and_an_exchange_uses_both_at_once(
    up: Callable[..., dict[str, str]],
) -> None:
    up("3", "100mbit")
    where = {"MASTER_ADDR": "h1", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
    processes = [
        subprocess.Popen(
            [*on(f"h{rank + 1}"), forks().python, "-c", TRANSFERS],
            env={**os.environ, **where, "WORLD_SIZE": "3", "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    output, _ = processes[0].communicate(timeout=120)
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    one_way = 8 * NUM_BYTES / 100e6
    one, to_two, from_two, exchange = (float(word) / one_way for word in output.split())
    # Other work on the machine makes a transfer slower, and nothing may make it faster.
    assert 0.9 < one < 2
    assert 1.8 < to_two < 4
    assert 1.8 < from_two < 4
    assert 0.9 < exchange < 1.5, "taking turns, it would be twice as long"


def listeners_watched(*hosts: str) -> AbstractContextManager[set[str]]:
    """The addresses at which processes of these hosts listen meanwhile, without each sshd."""

    def look() -> Iterator[str]:
        for host in hosts:
            where = ["ip", "netns", "exec", f"{os.environ['BSWEEP_HOSTS_PREFIX']}-{host}"]
            sockets = subprocess.check_output([*where, "ss", "-Hltn", "sport != :22"], text=True)
            for line in sockets.splitlines():
                yield line.split()[3].rpartition(":")[0]

    return seen_meanwhile(look)


@contextmanager
def seen_meanwhile(look: Callable[[], Iterable[str]]) -> Iterator[set[str]]:
    """All that a function returns while the `with` block runs; it is called again and again."""
    found: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            found.update(look())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
