"""Checks of the hosts that points name: whether they can be reached, and have the same software,
files and data as this machine.

All problems that are found are reported together.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bsweep.config import user_code
from bsweep.config.launch import ProcessesConfig, SshConfig, nodes_of
from bsweep.config.models import LibraryConfig
from bsweep.config.run import RunConfig
from bsweep.config.saved import save_config
from bsweep.core.words import counted, excerpt
from bsweep.launch import machine_facts, ssh
from bsweep.launch.launcher import host_launcher_of
from bsweep.runlog.files import RunPaths

_MOST_AT_ONCE = 64


@dataclass(frozen=True)
class Answer:
    """The facts that a host sent about itself, such as its versions, or the reason why it sent
    none.
    """

    host: str
    facts: Mapping[str, Any] | None
    problem: str = ""


_ready: dict[tuple[Any, ...], dict[str, int]] = {}
"""A cache of the hosts that passed the checks, each with the number of workers for which it passed.

Its keys are the settings of a point on which the checks depend.
"""


def problems(configs: Iterable[RunConfig]) -> list[str]:
    """Check the hosts that the given points name, and return a message for each problem; the list
    is empty if no problem was found.

    Hosts that have passed together, for the same settings and as many workers, are not asked again
    until `forget` is called, after a point has failed on them.
    """
    wanted: dict[tuple[Any, ...], dict[str, int]] = defaultdict(dict)
    points: dict[tuple[Any, ...], RunConfig] = {}
    for config in configs:
        key = _key(config)
        for host, workers in _workers(config).items():
            if workers > _ready.get(key, {}).get(host, -1):
                wanted[key][host] = max(workers, wanted[key].get(host, 0))
                points[key] = config
    found: list[str] = []
    for key, hosts in wanted.items():
        of_these = host_problems(points[key], hosts, ask_all(points[key], list(hosts)))
        if not of_these:
            _ready[key] = {**_ready.get(key, {}), **hosts}
        found += of_these
    return list(dict.fromkeys(found))


def forget(config: RunConfig) -> None:
    """Forget that the hosts of a point have passed the checks, so that they are checked again
    before the next point with the same settings.
    """
    _ready.pop(_key(config), None)


def _key(config: RunConfig) -> tuple[Any, ...]:
    launch = config.launch
    assert isinstance(launch, ProcessesConfig) or not launch.named_hosts
    return (
        launch,
        config.study_dir.absolute(),
        config.data,
        _weights(config),
        getattr(config.program, "files_sha256", None),
        config.device,
        config.strategy.can.uses_horovod,
    )


def _weights(config: RunConfig) -> tuple[str | None, str | None]:
    """Return the path and the hash of a point's file of pretrained weights, or two times None."""
    model = config.model
    return (
        (model.weights, model.weights_sha256) if isinstance(model, LibraryConfig) else (None,) * 2
    )


def _workers(config: RunConfig) -> dict[str, int]:
    """Return a mapping from each host of a point to the number of workers that the host runs.

    Parameter servers are not counted, for they need no GPU. A host that runs only servers has 0.
    """
    hosts = config.launch.named_hosts
    if not hosts:
        return {}
    every = nodes_of(hosts, config.num_workers, config.num_server_processes)
    return dict.fromkeys((host for host, _ in every), 0) | dict(nodes_of(hosts, config.num_workers))


def ask_all(config: RunConfig, hosts: Sequence[str], *, is_thorough: bool = False) -> list[Answer]:
    """Collect facts about this machine and the given hosts, such as versions and GPUs; return this
    machine's facts first.

    Args:
        config: The point.
        hosts: The hosts to ask.
        is_thorough: Also find out what takes seconds.
    """
    launch = config.launch
    assert isinstance(launch, ProcessesConfig), launch
    new = [
        folder for folder in (config.study_dir, *config.study_dir.parents) if not folder.exists()
    ]
    config.study_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preflight.", dir=config.study_dir) as seen:
        point = Path(seen).resolve() / "config.yaml"
        save_config(config, point)
        user_code.save(config, RunPaths(point.parent).own)  # the user's own code may make the data
        request = machine_facts.Request(
            point=str(point), device=config.device, hosts=tuple(hosts), is_thorough=is_thorough
        )
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            asked = [
                pool.submit(ask, host, launch, request) for host in hosts if not ssh.is_here(host)
            ]
            here = json.loads(
                json.dumps(machine_facts.facts(request))
            )  # in the same form as the others' answers
            answers = {answer.host: answer for answer in (future.result() for future in asked)}
    with suppress(OSError):  # another process may have written there by now
        for folder in new:
            folder.rmdir()
    return [Answer("", here), *(answers.get(host, Answer(host, here)) for host in hosts)]


def ask(host: str, launch: ProcessesConfig, request: machine_facts.Request) -> Answer:
    """Ask a host for facts about itself, such as versions and GPUs, and return its answer."""
    words = [sys.executable, "-m", "bsweep.launch.machine_facts"]
    if not ssh.is_here(host):
        words = host_launcher_of(launch).on_host(host, launch, words)
    try:
        asked = subprocess.run(
            words,
            input=json.dumps(asdict(request)) + "\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=launch.start_timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(
            host,
            None,
            f"it did not answer within {launch.start_timeout_seconds} s: find out why, or raise "
            "launch.start_timeout_seconds",
        )
    except FileNotFoundError:
        return Answer(
            host,
            None,
            "there is no ssh on this machine to reach it: install an OpenSSH client",
        )
    if asked.returncode:
        return Answer(host, None, _explain(asked.returncode, asked.stderr))
    for line in reversed(asked.stdout.splitlines()):  # a shell there may print before and after it
        with suppress(ValueError):
            if line.startswith("{") and "versions" in (facts := json.loads(line)):
                return Answer(host, facts)
    return Answer(
        host,
        None,
        "its shell ended before bsweep answered: see what runs there at a login without a terminal "
        "(such as an `exit` in ~/.bashrc)",
    )


def _explain(code: int, said: str) -> str:
    """Return a message on why the program that collects facts failed on a host, and what the user
    can do.

    Args:
        code: The exit code of the command that was to run it.
        said: What that command printed on standard error.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    of_host = [line for line in lines if not line.startswith("srun: ")]
    last = excerpt((of_host or lines or [f"exit code {code}"])[-1], "its output", 500)
    if code < 0:
        return (
            f"{signal.Signals(-code).name} ended the command that asks the host what it has: type "
            "the command again"
        )
    if code == ssh.EXIT_CODE:
        why = excerpt(ssh.reason(said) or last, "its output", 500)
        return f"ssh cannot enter the host: {why}: {ssh.remedy(why)}"
    if unreachable := re.search(
        r"^srun: error: (Unable .*|.* failed on node .*|Node failure on .*)", said, re.MULTILINE
    ):
        return (
            f"srun cannot enter the host: {unreachable[1]}: ask SLURM about the node (scontrol "
            "show node)"
        )
    if re.search(r"^env: \W*srun\b", said, re.MULTILINE):
        return "there is no srun on this machine: run bsweep where SLURM's commands are installed"
    if "cd:" in last:
        return (
            f"the folder {Path.cwd()} is not there: every host needs it, for example on a shared "
            "file system"
        )
    return (
        f"bsweep does not run there by {sys.executable} ({last}): every host needs this "
        "environment at the same path"
    )


def host_problems(
    config: RunConfig, workers: Mapping[str, int], answers: Sequence[Answer]
) -> list[str]:
    """Return a message for each problem of the hosts that are to run a point, such as another
    version of torch.

    Args:
        config: The point.
        workers: How many workers each host is to run.
        answers: This machine's answer, then each host's.
    """
    launch, here = config.launch, answers[0].facts
    assert isinstance(launch, ProcessesConfig), launch
    assert here is not None
    found = [] if all(ssh.is_here(host) for host in workers) else _key_problems(launch)
    # Horovodrun needs the interface on this machine, too.
    if launch.uses_horovod and not any(ssh.is_here(answer.host) for answer in answers[1:]):
        found += [f"this machine: {problem}" for problem in _interface_problems(launch, here)]
    has_gpus = config.device == "cuda" or any(
        answer.facts and answer.facts["gpus"] for answer in answers
    )
    for answer in answers[1:]:
        if answer.facts is None:
            found.append(f"{answer.host}: {answer.problem}")
            continue
        there = [
            *_version_problems(config, answer.facts, here),
            *_interface_problems(launch, answer.facts),
        ]
        there += [*_file_problems(config, answer.facts, here), *answer.facts["problems"]]
        if answer.facts["unresolved"]:
            names = ", ".join(answer.facts["unresolved"])
            there.append(f"it cannot resolve {names}: hosts must know each other's names")
        if _uses_horovod(config) and answer.facts["unresolved_name"]:
            there.append(answer.facts["unresolved_name"])
        if _uses_horovod(config) and (names := ", ".join(answer.facts["without_ipv4"])):
            there.append(
                f"it reaches {names} by IPv6 only, and Horovod needs IPv4: give the hosts IPv4 "
                "addresses, or use a strategy that torchrun starts, such as strategy=allreduce"
            )
        if has_gpus and workers[answer.host] > (gpus := answer.facts["gpus"]):
            there.append(
                f"it has {counted(gpus or 'no', 'GPU')} for {workers[answer.host]} workers: "
                "give it no more slots than GPUs, or set device=cpu"
            )
        found += [f"{answer.host}: {problem}" for problem in there]
    return list(dict.fromkeys(found))


def _uses_horovod(config: RunConfig) -> bool:
    return config.launch.uses_horovod or config.strategy.can.uses_horovod


def _key_problems(launch: ProcessesConfig) -> list[str]:
    """Return a message if ssh cannot use the private key that `launch.ssh_identity_file` names."""
    given = launch.ssh_identity_file if isinstance(launch, SshConfig) else None
    if not given:
        return []
    path = ssh.identity(given)
    name = f"launch.ssh_identity_file={given}"
    if not path.is_file():
        return [f"{name}: there is no such file: name the private key that opens the hosts"]
    if not os.access(path, os.R_OK):
        return [f"{name}: it cannot be read: check its owner and its permissions"]
    if path.stat().st_mode & 0o077:
        return [
            f"{name}: other users may read it, and ssh ignores such a key: run chmod 600 {path}"
        ]
    return []


def _version_problems(
    config: RunConfig, there: Mapping[str, Any], here: Mapping[str, Any]
) -> list[str]:
    found = []
    pairs = {"Python": tuple(facts["python"].rpartition(".")[0] for facts in (there, here))}
    for package in machine_facts.PACKAGES:
        if package != "horovod" or _uses_horovod(config):
            pairs[package] = tuple(_public(facts["versions"][package]) for facts in (there, here))
    for name, (its, ours) in pairs.items():
        if its != ours:
            found.append(
                f"{name} {its or 'is not'} there, {ours or 'none'} here: give all hosts the same "
                "environment"
            )
    if not found and there["code"] != here["code"]:
        found.append(
            "its bsweep has different code from the one here: give all hosts the same checkout or "
            "wheel"
        )
    return found


def _public(version: str | None) -> str | None:
    """Return a package's version without its build suffix, such as +cpu or +cu130, which may differ
    between hosts.
    """
    return version and version.partition("+")[0]


def _interface_problems(launch: ProcessesConfig, facts: Mapping[str, Any]) -> list[str]:
    wanted, there = launch.network_interface, facts["interfaces"]
    if not wanted or wanted in there:
        return []
    known = ", ".join(f"{name} ({address})" for name, address in there.items())
    missing = f"launch.network_interface={wanted} is not there, or has no address"
    return [f"{missing}: choose one that every host has; this host has {known}"]


def _file_problems(
    config: RunConfig, there: Mapping[str, Any], here: Mapping[str, Any]
) -> list[str]:
    if there["point"] != here["point"]:
        folder = config.study_dir.absolute()
        return [
            (
                f"{folder} is not the same folder there: put results_dir on a file system that all "
                "hosts share"
            )
        ]
    if there["data"] and there["data"] != here["data"]:
        return [
            f"data={config.data.name} differs between there and here: give all hosts the same files"
        ]
    path, digest = _weights(config)
    if there["weights"] not in (None, digest):
        what = "is another file there" if there["weights"] else "cannot be read there"
        return [f"model.weights={path} {what}: give all hosts the same file at this path"]
    return []


def silent_hosts(config: RunConfig) -> dict[str, str]:
    """Try to reach each host of a point except this machine, and return those that do not answer,
    each with what is known of the reason.
    """
    launch = config.launch
    if not isinstance(launch, ProcessesConfig) or not launch.named_hosts:
        return {}
    others = [host for host in _workers(config) if not ssh.is_here(host)]
    silence = "no answer" if isinstance(launch, SshConfig) else "no answer to srun"

    def knock(host: str) -> str | None:
        try:
            said = subprocess.run(
                host_launcher_of(launch).on_host(host, launch, ["true"]),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2 * ssh.CONNECT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return silence
        return (ssh.reason(said.stderr) or silence) if said.returncode else None

    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return {host: why for host, why in zip(others, pool.map(knock, others), strict=True) if why}
