"""Workers on several hosts, which scripts/hosts.sh emulates, and the ssh keys of these."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bsweep.config.launch import SshConfig
from bsweep.launch import ssh
from tests.support.running import (
    HOSTS,
    ROOT,
    TINY,
    captured,
    compose,
    exits,
    forks,
    on,
    ran_ok,
    summaries,
)

pytestmark = pytest.mark.full

OTHERS = ("horovod", "ddp", "diloco", "parameter_server")
SMALL = ("local_batch=8", "epochs=1", "precision=fp32", "model=tiny_cnn", *TINY)


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
    shutil.copy(ROOT / "examples/small_network.py", tmp_path / "mine.py")
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
    code = 2 if strategy == "horovod" else 0
    with listeners_watched("h1", "h2") as listened_at:
        result = exits(code, *point, cwd=tmp_path, prefix=on("h1"))
    if strategy == "horovod":
        assert "h1: it reaches h1, h2 by IPv6 only, and Horovod needs IPv4: " in result.stderr
        return
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
    ill = exits(1, *command, cwd=tmp_path, prefix=on("h1"))
    (problem,) = json.loads(ill.stdout)["to_mend"]
    assert problem.startswith("h2: ssh cannot enter the host: connect to host h2 port 22: ")
    assert not list(tmp_path.iterdir()), "it leaves nothing"


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


def test_a_changed_host_key_is_refused_until_the_user_accepts_it(
    up: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """The keys that scripts/hosts.sh tells ssh are left out: ssh keeps what it sees in `known`.
    Horovod's own ssh has the same options as bsweep's.
    """
    known, other = tmp_path / "known", tmp_path / "other"
    options = [f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=/dev/null"]
    keys = [f"{key}={value}" for key, value in up("2").items()]
    point = (*keys, *TINY, "local_batch=8", "model=tiny_cnn", "epochs=1", "study=s")

    def typed(
        code: int, *words: str, more: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        given = f"launch.ssh_options=[{','.join([*options, *more])}]"
        return exits(code, *words, *point, given, cwd=tmp_path, prefix=on("h1"))

    typed(0, "run")
    assert known.read_text().startswith("h2 ssh-ed25519 "), "a key that was unknown is remembered"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    known.write_text(f"h2 {other.with_suffix('.pub').read_text()}")
    changed = typed(2, "run", "seed=1")
    assert f"Host key for h2 has changed (`ssh-keygen -f {known} -R h2`" in changed.stderr
    assert "launch.ssh_options=[StrictHostKeyChecking=no]" in changed.stderr
    (to_mend,) = json.loads(typed(1, "doctor", "--json").stdout)["to_mend"]
    assert f"`ssh-keygen -f {known} -R h2`" in to_mend
    typed(0, "run", "seed=1", more=("StrictHostKeyChecking=no",))
    hosts = ("num_workers=2", "local_batch=8", "launch.hosts='h1:1,h2:1'")
    card = compose(*hosts, f"launch.ssh_options={json.dumps(options)}").launch
    assert isinstance(card, SshConfig)
    words = shlex.join(ssh.options(card))
    (identity,) = [key.partition("=")[2] for key in keys if "identity" in key]
    horovodrun = ("bsweep.launch.horovodrun_command", words, "-np", "2", "-H", "h1:1,h2:1")
    start = (*on("h1"), forks().python, "-m", *horovodrun)
    alone = captured([*start, "--ssh-identity-file", identity, "true"], cwd=tmp_path)
    assert alone.returncode != 0
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in alone.stdout + alone.stderr
