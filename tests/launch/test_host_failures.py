"""Hosts that are not there, not alike, or cut off while they train: named before anything starts,
or as the cause.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bsweep.config.run import RunConfig
from bsweep.launch import Outcome, horovodrun, hosts_check, machine_facts, ssh
from bsweep.launch.launcher import LaunchRequest
from bsweep.runlog.files import RunPaths
from bsweep.study.progress import Progress
from bsweep.study.run_point import run_point
from tests.support.launching import Scripted
from tests.support.running import HOSTS, TINY, compose, exits, forks, on, popen, ran_ok, wait_for

pytestmark = pytest.mark.full

SMALL = ("model=tiny_cnn", "precision=fp32", "channels_last=true", *TINY)
POINT = ("num_workers=2", "study=s", *SMALL)
STALL_SECONDS = 12


def given(overrides: dict[str, str], hosts: str) -> list[str]:
    every = {**overrides, "launch.hosts": f"'{hosts}'"}
    return [f"{key}={value}" for key, value in every.items()]


def cable(what: str, host: str) -> None:
    subprocess.run([HOSTS, what, host], check=True)


def test_hosts_that_cannot_run_a_point_are_all_named_before_it(
    up: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    overrides = {**up("3"), "num_workers": "4", "launch.network_interface": "ib0"}
    cable("cut", "h2")
    point = ("run", *POINT, *given(overrides, "h1:1,h2:1,h3:1,h9:1"), "local_batch=8")
    result = exits(2, *point, cwd=tmp_path, prefix=on("h1"))
    for said in (
        "h2: ssh cannot enter the host: connect to host h2 port 22",
        "h3: launch.network_interface=ib0 is not there, or has no address",
        "this host has lo (127.0.0.1), eth0 (10.213.7.3)",
        "h3: it cannot resolve h9",
        "h9: ssh cannot enter the host: Could not resolve hostname h9",
    ):
        assert said in result.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was begun"


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_a_cut_link_is_named_and_the_same_command_resumes_the_run(
    up: Callable[..., dict[str, str]], tmp_path: Path, strategy: str
) -> None:
    arguments = (
        *("run", "-m", "local_batch=8,16", "epochs=600", f"strategy={strategy}"),
        *(*POINT, *given({**up("3"), "num_workers": "3"}, "h1:1,h2:1,h3:1")),
        f"launch.stall_timeout_seconds={STALL_SECONDS}",
    )
    with (tmp_path / "said").open("w+") as said:
        sweep = popen([*on("h1"), forks().bsweep, *arguments], tmp_path, output=said)
        sign = "results/s/*/logs/rank.1/heartbeat"
        wait_for(lambda: [*tmp_path.glob(sign)], sweep, 120, (tmp_path / "said").read_text)
        cable("cut", "h2")
        wait_for(
            lambda: all("sshd" in process.info["name"] for process in processes_on("h2")),
            seconds=5 * STALL_SECONDS,
            said=lambda: "what was cut off has not ended",
        )
        assert sweep.wait(90) == 1
    printed = (tmp_path / "said").read_text()
    first, second = printed.split("[2/2]")
    assert "host h2 is lost: " in first, printed
    assert "server h2 not responding" in first, printed
    assert "skipped, not tried: h2: ssh cannot enter the host" in second
    assert len(list(tmp_path.glob("results/s/b*"))) == 1, "the second point is as new"
    cable("join", "h2")
    shorter = [word.replace("epochs=600", "epochs=1") for word in arguments]
    ran_ok(*shorter, cwd=tmp_path, prefix=on("h1"))


def processes_on(host: str) -> list[psutil.Process]:
    """All processes on a host of scripts/hosts.sh, its sshd too."""
    command = ["ip", "netns", "pids", f"{os.environ['BSWEEP_HOSTS_PREFIX']}-{host}"]
    pids = {int(pid) for pid in subprocess.check_output(command, text=True).split()}
    return [process for process in psutil.process_iter(["name"]) if process.pid in pids]


def over(*overrides: str) -> RunConfig:
    return compose(*POINT, "local_batch=8", "launch.hosts='localhost:1,h2:1'", *overrides)


def test_only_hosts_whose_connection_ended_are_named_as_lost(tmp_path: Path) -> None:
    """A ssh that is told to end does so with the code of one that lost its way; one may notice
    later than another.
    """
    paths = RunPaths(tmp_path)
    paths.metrics.touch()
    waits = "trap 'exit 255' TERM; sleep 60 & wait"
    lost, lost_later = (
        f"sleep {late}; echo 'Timeout, server h3 not responding.'; exit 255" for late in (0, 1.5)
    )
    hosts = "launch.hosts='localhost:1,h2:1,h3:1,h4:1'"
    config = over("strategy=ddp", "num_workers=4", hosts, "launch.stall_timeout_seconds=6")
    commands = [["sleep", "60"], *(["sh", "-c", script] for script in (waits, lost, lost_later))]
    outcome = Scripted(*commands).launch(LaunchRequest(config, paths, lambda: None))
    lost_hosts = re.findall(r"host (h\d) is lost: Timeout, server h3 not", outcome.message)
    assert lost_hosts == ["h3", "h4"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh")
def test_on_a_host_that_is_gone_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = "launch.hosts='localhost:1,nowhere.invalid:1'"
    config = over(hosts, f"results_dir={tmp_path}", "launch.retries=1")
    monkeypatch.setattr("bsweep.launch.launch", lambda *_: pytest.fail("started"))
    assert run_point(config, "bsweep run", [], Progress(1)) == "unready"
    said = " ".join(capsys.readouterr().err.split())
    assert "skipped, not tried: " in said
    assert "nowhere.invalid: ssh cannot enter the host: Could not resolve" in said
    assert not list(tmp_path.glob("s/b*"))
    answers, lost = iter([[], ["it is gone"]]), Outcome("failed", "lost", can_be_retried=True)
    monkeypatch.setattr(hosts_check, "problems", lambda configs: next(answers))
    starts = iter([lost])
    monkeypatch.setattr("bsweep.launch.launch", lambda *_: next(starts))
    assert run_point(config, "bsweep run", [], Progress(1)) == "failed"
    assert "not tried: it is gone" in capsys.readouterr().err


def problems_of(config: RunConfig, **changes: object) -> list[str]:
    """What is wrong with h2 if it says what this machine says, but for these changes."""
    here = json.loads(json.dumps(machine_facts.facts(device="cpu")))
    return hosts_check.host_problems(config, {"h2": 2}, {"": here, "h2": {**here, **changes}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": "3.9.1"}, "h2: Python 3.9 there, "),
        ({"code": "c0ffee"}, "h2: its bsweep has different code"),
        ({"point": "c0ffee"}, "is not the same folder there: put results_dir on a file system"),
        (
            {"data": {"num_train": 5}},
            "h2: data=synthetic differs between there and here: give all hosts the same files",
        ),
        ({"gpus": 1}, "h2: it has 1 GPU for 2 workers: give it no more slots than GPUs"),
        ({"without_ipv4": ["h3"]}, "h2: it reaches h3 by IPv6 only, and Horovod needs IPv4: give"),
        ({"versions": dict.fromkeys(machine_facts.PACKAGES)}, "h2: torch is not there, "),
        ({"problems": ["/data: Permission denied"]}, "h2: /data: Permission denied"),
    ],
)
def test_what_differs_on_a_host_is_told_with_a_remedy(
    changes: dict[str, object], said: str
) -> None:
    assert said in "\n".join(problems_of(over("launch.network_interface=null"), **changes))


def test_equal_hosts_and_another_build_of_one_torch_are_accepted() -> None:
    versions = machine_facts.facts()["versions"]
    other = f"{versions['torch'].partition('+')[0]}+other"
    assert problems_of(over(), versions={**versions, "torch": other}) == []


@pytest.mark.parametrize(
    ("hosts", "is_named"), [("localhost:2", False), ("localhost:1,h2:1", True)]
)
def test_horovodrun_gets_the_interface_that_reaches_other_machines(
    tmp_path: Path, hosts: str, is_named: bool
) -> None:
    """Where all workers are here it looks for the loopback, and ends if it may use another
    interface alone.
    """
    config = over(f"launch.hosts='{hosts}'", "launch.network_interface=eth0")
    paths = RunPaths(tmp_path)
    paths.logs.mkdir()
    request = LaunchRequest(config, paths, lambda: None)
    (words,) = horovodrun.Horovodrun().commands(request, [], list)
    assert ("--network-interfaces" in words) is is_named


DATA = """
import torch

def build():
    return tuple((torch.zeros(16, 3, 4, 4), torch.arange(16) % 2) for _ in range(2))
"""


def test_a_host_can_look_for_data_that_code_of_ones_own_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The far end is a process in another folder, with a cache of its own."""
    (tmp_path / "mydata.py").write_text(DATA)
    elsewhere = ["env", "-C", "/", f"XDG_CACHE_HOME={tmp_path}/there"]
    monkeypatch.setattr(ssh.OverSsh, "on_host", lambda *given: [*elsewhere, *given[-1]])
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/here")
    data = ("data=own", f"data.target={tmp_path}/mydata.py:build", f"results_dir={tmp_path}")
    (tmp_path / "w.pth").write_text("weights")
    model = ("model=timm", "model.architecture=resnet18", f"model.weights={tmp_path}/w.pth")
    hosts = "launch.hosts='localhost:1,h2:1'"
    config = compose("num_workers=2", "local_batch=8", hosts, *data, *model).with_fingerprints()
    here, _, there = hosts_check.ask_all(config, ["localhost", "h2"]).values()
    assert there["problems"] == []
    assert there["data"] == here["data"] is not None
    assert there["weights"] == hashlib.sha256(b"weights").hexdigest()
    for digest, said in (("", "cannot be read there"), ("c0ffee", "is another file there")):
        answers = {"": here, "h2": {**there, "weights": digest}}
        problems = hosts_check.host_problems(config, {"h2": 1}, answers)
        assert f"h2: model.weights={tmp_path}/w.pth {said}: give all" in "\n".join(problems)
    assert "weights" not in "\n".join(
        hosts_check.host_problems(config, {"h2": 1}, {"": here, "h2": there})
    )
    (tmp_path / "w.pth").unlink()
    assert machine_facts.weights_digest(config.model) == ""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo '{\"versions\"'; exit 0", "its shell ended before bsweep answered: see what runs"),
        ("printf '%0100000d' 7 >&2; exit 255", "ssh cannot enter the host: 0000"),
        ("printf '%0100000d' 7 >&2; exit 3", "bsweep does not run there by "),
    ],
    ids=["a torn answer", "a flood of ssh", "a flood of Python"],
)
def test_a_host_that_does_not_answer_is_told_in_few_words(
    script: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh.OverSsh, "on_host", lambda *given: ["sh", "-c", script])
    answer = hosts_check.ask("h2", over().launch, {})  # type: ignore[arg-type]
    assert answer["problem"].startswith(said)
    assert len(answer["problem"]) < 800


def test_a_key_that_ssh_would_not_take_is_told(tmp_path: Path) -> None:
    key = tmp_path / "key"
    config = over(f"launch.ssh_identity_file={key}")
    (missing,) = problems_of(config)
    assert "there is no such file" in missing
    key.touch(mode=0o644)
    (open_to_all,) = problems_of(config)
    assert f"chmod 600 {key}" in open_to_all


def test_other_code_anywhere_in_the_package_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_facts, "__file__", str(tmp_path / "launch/machine_facts.py"))
    module = tmp_path / "train/step.py"
    module.parent.mkdir()
    digests = set()
    for text in ("a = 1", "a = 2"):
        module.write_text(text)
        digests.add(machine_facts.code_digest())
    assert len(digests) == 2


def test_other_files_of_the_same_names_are_told(tmp_path: Path) -> None:
    prints = []
    for content in ("one text", "two text", "one text"):
        (tmp_path / "text.txt").write_text(content)
        text = ("data=text", f"data.path={tmp_path}/text.txt", "model=llama_tiny")
        prints.append(machine_facts.fingerprint(compose("local_batch=2", *text).data))
    assert prints[0] == prints[2] != prints[1]
