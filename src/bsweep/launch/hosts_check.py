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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from bsweep.config import user_code
from bsweep.config.card import load_object
from bsweep.config.launch import ProcessesConfig, SshConfig, nodes_of
from bsweep.config.models import LibraryConfig
from bsweep.config.run import RunConfig
from bsweep.config.saved import save_config
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.words import counted, excerpt
from bsweep.launch import machine_facts, ssh
from bsweep.runlog.files import RunPaths

_MOST_AT_ONCE = 64

Facts = Mapping[str, Any]
"""The facts that a host sent about itself, such as its versions; or only `problem`, the reason why
it sent none.
"""

_ready: dict[tuple[Any, ...], dict[str, int]] = {}
"""A cache of the hosts that passed the checks, each with the number of workers for which it passed.

Its keys are the settings of a point on which the checks depend.
"""


def problems(configs: Iterable[RunConfig]) -> list[str]:
    """Check the hosts that the given points name, and return a message for each problem; the list
    is empty if no problem was found, and inside horovodrun, which has reached the hosts.

    Hosts that have passed together, for the same settings and as many workers, are not asked again
    until `forget` is called, after a point has failed on them.
    """
    to_check: dict[tuple[Any, ...], dict[str, int]] = defaultdict(dict)
    points: dict[tuple[Any, ...], RunConfig] = {}
    for config in configs if not inside_horovodrun() else ():
        key = _key(config)
        for host, workers in _workers(config).items():
            if workers > _ready.get(key, {}).get(host, -1):
                to_check[key][host] = max(workers, to_check[key].get(host, 0))
                points[key] = config
    messages: dict[str, None] = {}  # each once, in order
    for key, hosts in to_check.items():
        try:
            new = host_problems(points[key], hosts, ask_all(points[key], hosts))
        except OSError as error:
            new = [f"results_dir: {error}."]
        if not new:
            _ready[key] = {**_ready.get(key, {}), **hosts}
        messages |= dict.fromkeys(new)
    return list(messages)


def forget(config: RunConfig) -> None:
    """Forget that the hosts of a point have passed the checks, so that they are checked again
    before the next point with the same settings.
    """
    _ready.pop(_key(config), None)


def _key(config: RunConfig) -> tuple[Any, ...]:
    return (
        config.launch,
        config.study_dir.absolute(),
        config.data,
        _weights(config),
        getattr(config.program, "files_sha256", None),
        config.device,
        config.strategy.can.uses_horovod,
        # Packages that each host needs; those of the data are in its card.
        *(card.needs for card in (config.model, config.optimizer, config.strategy)),
    )


def _weights(config: RunConfig) -> tuple[str | None, str | None]:
    """Return the path and the hash of a point's file of pretrained weights, or two times None."""
    model = config.model
    if not isinstance(model, LibraryConfig):
        return None, None
    return model.weights, model.weights_sha256


def _workers(config: RunConfig) -> dict[str, int]:
    """Return a mapping from each host of a point to the number of workers that the host runs.

    Parameter servers are not counted, for they need no GPU. A host that runs only servers has 0.
    """
    hosts, workers = config.launch.named_hosts, config.num_workers
    if not hosts:
        return {}
    nodes = nodes_of(hosts, workers, config.num_server_processes)
    return dict.fromkeys((host for host, _ in nodes), 0) | dict(nodes_of(hosts, workers))


def ask_all(
    config: RunConfig, hosts: Iterable[str], *, is_thorough: bool = False
) -> dict[str, Facts]:
    """Collect facts about this machine and the given hosts, such as versions and GPUs, by host;
    this machine comes first, and its name is empty.

    Args:
        config: The point.
        hosts: The hosts to ask.
        is_thorough: Also find out what takes seconds.
    """
    launch, study_dir, hosts = config.launch, config.study_dir, list(hosts)
    assert isinstance(launch, ProcessesConfig), launch
    new = [folder for folder in (study_dir, *study_dir.parents) if not folder.exists()]
    study_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preflight.", dir=study_dir) as folder:
        point = Path(folder).resolve() / "config.yaml"
        save_config(config, point)
        user_code.save(config, RunPaths(point.parent).own)  # the user's own code may make the data
        request: dict[str, Any] = {"point": str(point), "device": config.device, "hosts": hosts}
        request["is_thorough"] = is_thorough
        others = [host for host in hosts if not ssh.is_here(host)]
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            answers = pool.map(lambda host: ask(host, launch, request), others)
            # In the same form as the others' answers.
            here = json.loads(json.dumps(machine_facts.facts(**request)))
            facts = dict(zip(others, answers, strict=True))
    with suppress(OSError):  # another process may have written there by now
        for path in new:
            path.rmdir()
    return {"": here} | {host: facts.get(host, here) for host in hosts}


def ask(host: str, launch: ProcessesConfig, request: Mapping[str, Any]) -> Facts:
    """Ask another host for facts about itself, such as versions and GPUs, and return its answer.

    Args:
        host: The host.
        launch: The launcher's card, with the options of the connection.
        request: The arguments of `machine_facts.facts`.
    """
    program = [sys.executable, "-m", "bsweep.launch.machine_facts"]
    seconds = launch.start_timeout_seconds
    try:
        run = _run(host, launch, program, seconds, json.dumps(request) + "\n")
    except subprocess.TimeoutExpired:
        problem = f"it did not answer within {seconds} s: raise launch.start_timeout_seconds"
        return {"problem": problem}
    except FileNotFoundError:
        return {"problem": "this machine has no ssh to reach it: install an OpenSSH client"}
    if run.returncode:
        return {"problem": _explain(run.returncode, run.stderr)}
    for line in reversed(run.stdout.splitlines()):  # a shell there may print before and after it
        with suppress(ValueError):
            if line.startswith("{") and "versions" in (facts := json.loads(line)):
                return dict(facts)
    problem = (
        "its shell ended before bsweep answered: see what runs there at a login without a terminal "
        "(such as an `exit` in ~/.bashrc)"
    )
    return {"problem": problem}


def _run(
    host: str, launch: ProcessesConfig, words: Sequence[str], seconds: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command on a host, with a text as its input, for at most so many seconds."""
    return subprocess.run(
        load_object(launch.builds)().on_host(host, launch, words),
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def _explain(code: int, stderr: str) -> str:
    """Return a message on why the program that collects facts failed on a host, and what the user
    can do.

    Args:
        code: The exit code of the command that was to run it.
        stderr: What that command printed on standard error.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    by_host = [line for line in lines if not line.startswith("srun: ")]
    last = excerpt((by_host or lines or [f"exit code {code}"])[-1], "its output", 500)
    if code < 0:
        return f"{signal.Signals(-code).name} ended the command that asks it: type this one again"
    if code == ssh.EXIT_CODE:
        why = excerpt(ssh.reason(stderr) or last, "its output", 500)
        return f"ssh cannot enter the host: {why}: {ssh.remedy(why)}"
    by_srun = r"^srun: error: (Unable .*|.* failed on node .*|Node failure on .*)"
    if match := re.search(by_srun, stderr, re.MULTILINE):
        why = match[1]
        return f"srun cannot enter the host: {why}: ask SLURM about the node (scontrol show node)"
    if re.search(r"^env: \W*srun\b", stderr, re.MULTILINE):
        return "there is no srun on this machine: run bsweep where SLURM's commands are installed"
    if "cd:" in last:
        return f"it has no folder {Path.cwd()}: every host needs it, as on a shared file system"
    return (
        f"bsweep does not run there by {sys.executable} ({last}): every host needs this "
        "environment at the same path"
    )


def host_problems(
    config: RunConfig, workers: Mapping[str, int], answers: Mapping[str, Facts]
) -> list[str]:
    """Return a message for each problem of the hosts that are to run a point, such as another
    version of torch.

    Args:
        config: The point.
        workers: How many workers each host is to run.
        answers: The answer of this machine, whose name is empty, and of each host.
    """
    launch, here = config.launch, answers[""]
    hosts = {host: facts for host, facts in answers.items() if host}
    assert isinstance(launch, ProcessesConfig), launch
    messages = [] if all(map(ssh.is_here, workers)) else [*_key_problems(launch)]
    # Horovodrun needs the interface on this machine, too.
    if launch.uses_horovod and not any(map(ssh.is_here, hosts)):
        messages += [f"this machine: {text}" for text in _interface_problems(launch, here)]
    has_gpus = config.device == "cuda" or any(facts.get("gpus") for facts in answers.values())
    for host, there in hosts.items():
        texts = [there["problem"]] if "problem" in there else []
        if not texts:
            num_gpus = workers[host] if has_gpus else 0
            texts += [*_differences(config, there, here), *_own_problems(config, there, num_gpus)]
        messages += [f"{host}: {text}" for text in texts]
    return list(dict.fromkeys(messages))


def _uses_horovod(config: RunConfig) -> bool:
    return config.launch.uses_horovod or config.strategy.can.uses_horovod


def _key_problems(launch: ProcessesConfig) -> Iterator[str]:
    """Yield a message if ssh cannot use the private key that `launch.ssh_identity_file` names."""
    key = launch.ssh_identity_file if isinstance(launch, SshConfig) else None
    if not key:
        return
    path, name = ssh.identity(key), f"launch.ssh_identity_file={key}"
    if not path.is_file():
        yield f"{name}: there is no such file: name the private key that opens the hosts"
    elif not os.access(path, os.R_OK):
        yield f"{name}: it cannot be read: check its owner and its permissions"
    elif path.stat().st_mode & 0o077:
        yield f"{name}: other users may read it, and ssh ignores such a key: run chmod 600 {path}"


def _interface_problems(launch: ProcessesConfig, facts: Facts) -> Iterator[str]:
    name, interfaces = launch.network_interface, facts["interfaces"]
    if name and name not in interfaces:
        known = ", ".join(f"{name} ({address})" for name, address in interfaces.items())
        yield (
            f"launch.network_interface={name} is not there, or has no address: choose one that "
            f"every host has; this host has {known}"
        )


def _own_problems(config: RunConfig, there: Facts, num_gpus: int) -> Iterator[str]:
    """Yield messages about what a host lacks for a point, whatever other hosts have.

    Args:
        config: The point.
        there: The facts about the host.
        num_gpus: How many GPUs it needs.
    """
    assert isinstance(config.launch, ProcessesConfig), config.launch
    yield from _interface_problems(config.launch, there)
    yield from there["problems"]
    if names := ", ".join(there["unresolved"]):
        yield f"it cannot resolve {names}: hosts must know each other's names"
    if _uses_horovod(config) and there["unresolved_name"]:
        yield there["unresolved_name"]
    if _uses_horovod(config) and (names := ", ".join(there["without_ipv4"])):
        yield (
            f"it reaches {names} by IPv6 only, and Horovod needs IPv4: give the hosts IPv4 "
            "addresses, or use a strategy that torchrun starts, such as strategy=allreduce"
        )
    if num_gpus > (gpus := there["gpus"]):
        yield (
            f"it has {counted(gpus or 'no', 'GPU')} for {num_gpus} workers: give it no more slots "
            "than GPUs, or set device=cpu"
        )


def _differences(config: RunConfig, there: Facts, here: Facts) -> Iterator[str]:
    """Yield messages about what differs between a host and this machine, but must be the same."""
    pairs = {"Python": [facts["python"].rpartition(".")[0] for facts in (there, here)]}
    for package in machine_facts.PACKAGES:
        if package != "horovod" or _uses_horovod(config):
            # Without the suffix of a build, such as +cpu or +cu130, which may differ.
            versions = [facts["versions"][package] or "" for facts in (there, here)]
            pairs[package] = [version.partition("+")[0] for version in versions]
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    for name, (version, ours) in differing.items():
        yield (
            f"{name} {version or 'is not'} there, {ours or 'none'} here: give all hosts the same "
            "environment"
        )
    if not differing and there["code"] != here["code"]:
        yield "its bsweep has different code: give all hosts the same checkout or wheel"
    path, digest = _weights(config)
    if there["point"] != here["point"]:
        folder = config.study_dir.absolute()
        yield (
            f"{folder} is not the same folder there: put results_dir on a file system that all "
            "hosts share"
        )
    elif there["data"] and there["data"] != here["data"]:
        data = config.data.name
        yield f"data={data} differs between there and here: give all hosts the same files"
    elif there["weights"] not in (None, digest):
        state = "is another file there" if there["weights"] else "cannot be read there"
        yield f"model.weights={path} {state}: give all hosts the same file at this path"


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
            run = _run(host, launch, ["true"], 2 * ssh.CONNECT_SECONDS)
        except subprocess.TimeoutExpired:
            return silence
        return (ssh.reason(run.stderr) or silence) if run.returncode else None

    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        return {host: why for host, why in zip(others, pool.map(knock, others), strict=True) if why}
