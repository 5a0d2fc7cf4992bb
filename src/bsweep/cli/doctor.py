"""The command `bsweep doctor`, which shows facts about this machine and the hosts that the user
names, and what the user has to correct on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bsweep.cli.commands import parser_of
from bsweep.compose import hydra_grid, words
from bsweep.config.launch import ProcessesConfig, slots_by_host
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core.words import aligned
from bsweep.launch import check_slurm, hosts_check, ssh

_LEAST_FREE_BYTES = 1 << 30


def run(arguments: Sequence[str]) -> int:
    """Print facts about this machine and the given hosts, and the problems that the user has to
    correct.

    Returns:
        The exit code: 0 if all is well, 1 if there is something to mend, 2 if the arguments are
        wrong.
    """
    parser = parser_of("doctor")
    add = parser.add_argument
    add("--hosts", help="hosts in the form of launch.hosts: h1:4,h2:4, h[1-2]:4 or @FILE")
    add("--json", action="store_true", help="print everything as JSON")
    add("overrides", nargs="*", metavar="key=value", help="a point to check, as for bsweep run")
    options = parser.parse_intermixed_args(arguments)
    hosts = [f"launch.hosts='{options.hosts}'"] if options.hosts else []
    # A point without a batch gets one, which the doctor does not use.
    config = hydra_grid.first_point(words.read([*options.overrides, *hosts]), local_batch=8)
    if not isinstance(config.launch, ProcessesConfig):
        raise ConfigError(f"launch={config.launch.name} starts no processes: leave launch out.")
    check_slurm(config)
    slots = slots_by_host(config.launch.named_hosts)
    answers = hosts_check.ask_all(config, slots, is_thorough=True)
    machines = {
        host or "this machine": {**facts, "slots": slots.get(host)}
        for host, facts in answers.items()
        if host or not any(map(ssh.is_here, slots))
    }
    problems = [*hosts_check.host_problems(config, slots, answers), *_to_mend(config, machines)]
    findings = {"machines": machines, "to_mend": list(dict.fromkeys(problems))}
    print(json.dumps(findings, indent=2) if options.json else _as_text(findings))
    return 1 if problems else 0


def _to_mend(config: RunConfig, machines: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield messages about problems of machines that `hosts_check.host_problems` does not report,
    such as a full disk.
    """
    for name, facts in machines.items():
        if "problem" in facts:
            continue  # `hosts_check.host_problems` has reported it
        if name == "this machine":
            yield from (f"{name}: {problem}" for problem in facts["problems"])
            if config.launch.uses_horovod and facts["unresolved_name"]:
                yield f"{name}: {facts['unresolved_name']}"
        yield from (f"{name}: {problem}" for problem in facts["torch_problems"])
        build = facts["horovod_build"] or ""
        is_missing = facts["versions"]["horovod"] is None and config.launch.uses_horovod
        if is_missing or build.startswith("broken"):
            why = "not installed" if is_missing else build
            yield f"{name}: Horovod is {why}: run `bsweep setup-horovod`, or use strategy=ddp"
        elif facts["gpus"] and build and "NCCL" not in build:
            yield f"{name}: it has GPUs, but its Horovod has no NCCL: run `bsweep setup-horovod`"
        folders = {"results": "free_bytes", "temporary files": "free_temporary_bytes"}
        for contents, key in folders.items():
            if facts[key] < _LEAST_FREE_BYTES:
                yield f"{name}: {facts[key] / 1e6:.0f} MB are free for {contents}: free some space"
        shared = facts.get("free_shared_bytes")
        if facts["gpus"] > 1 and shared is not None and shared < _LEAST_FREE_BYTES:
            yield (
                f"{name}: {shared / 1e6:.0f} MB are free in /dev/shm, which NCCL uses: mount -o "
                "remount,size=8G /dev/shm, or start the container with --shm-size=8g"
            )
        if (facts["slots"] or 0) > max(facts["cores"], facts["gpus"]):
            yield f"{name}: {facts['slots']} slots share {facts['cores']} cores: use fewer slots"


def _as_text(findings: Mapping[str, Any]) -> str:
    """Return what `bsweep doctor` found: a table of facts with a column for each machine, and a
    line for each problem to correct.
    """
    examined = findings["machines"].items()
    machines = {name: facts for name, facts in examined if "problem" not in facts}
    rows = [[name, *map(show, machines.values())] for name, show in _FACTS.items()]
    problems = [f"to correct: {line}" for line in findings["to_mend"]] or ["nothing to correct"]
    table = aligned([["", *machines], *rows], left=range(1 + len(machines)))
    return "\n".join([*table, *problems])


_FACTS: Mapping[str, Callable[[Any], str]] = {
    "bsweep": lambda facts: f"{facts['versions']['bsweep']} ({facts['code'][:8]})",
    "Python": lambda facts: facts["python"],
    "torch": lambda facts: facts["versions"]["torch"] or "-",
    "torchvision": lambda facts: facts["versions"]["torchvision"] or "-",
    "tested together": lambda facts: "yes" if facts["are_tested"] else "no",
    "not installed": lambda facts: ", ".join(facts["missing_extras"]) or "-",
    "Horovod": lambda facts: facts["versions"]["horovod"] or "-",
    "built with": lambda facts: facts["horovod_build"] or "-",
    "driver": lambda facts: facts["driver"] or "-",
    "slots": lambda facts: str(facts["slots"] or "-"),
    "cores": lambda facts: str(facts["cores"]),
    "memory": lambda facts: f"{facts['memory_bytes'] / 2**30:.0f} GiB",
    "GPUs": lambda facts: str(facts["gpus"]),
    "interfaces": lambda facts: ", ".join(
        f"{name} {address}" for name, address in facts["interfaces"].items()
    ),
    "free, results": lambda facts: f"{facts['free_bytes'] / 1e9:.0f} GB",
    "free, shared": lambda facts: (
        "-" if (free := facts.get("free_shared_bytes")) is None else f"{free / 1e9:.1f} GB"
    ),
    "free, temporary": lambda facts: f"{facts['free_temporary_bytes'] / 1e9:.0f} GB",
}
