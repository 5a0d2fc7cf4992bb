"""The search for the cause of a point's failure, such as a failed process, a lost host or a full
disk.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bsweep.config.hosts import names_in
from bsweep.config.launch import SshConfig, hosts_of_ranks, nodes_of
from bsweep.config.run import RunConfig
from bsweep.core.whole_files import FULL, why_full
from bsweep.launch import ssh
from bsweep.launch.hosts_check import silent_hosts
from bsweep.launch.launcher import LaunchRequest, Outcome
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_json
from bsweep.runlog.taken import read_taken

_QUOTED_LINES = 15
# They end a process whose libraries do not check whether they got the memory they asked for.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
_KILLED = "killed from outside, perhaps by the kernel for lack of memory"

Ends = Sequence[tuple[int, int]]
"""Pairs of a rank and the exit code of its process."""


def outcome(
    request: LaunchRequest,
    failures: Ends,
    console: Path,
    codes: Sequence[int | None] = (),
    *,
    is_starved: bool = False,
    timeout: str = "",
) -> Outcome:
    """Return the status of a failed point, and a message on the likely cause of the failure.

    A process that SIGKILL ended counts as the cause before all others. Otherwise the cause is the
    first error that a process recorded, then a lost host. Without either, it is taken from the exit
    codes of the failed processes or, if none is known to have failed, from the end of the
    launcher's commands. Signals other than SIGKILL may be consequences: NCCL's watchdog aborts
    workers that wait for a failed one.

    Args:
        request: The point.
        failures: Pairs of a failed rank and its exit code, in the order of the failures.
        console: The file with the output of the commands that started the processes.
        codes: The exit code of each of those commands; None for one that still ran.
        is_starved: True if the kernel of this machine killed a process for lack of memory
            meanwhile.
        timeout: A message on what took too long; empty if nothing did.
    """
    files = {rank: request.paths.rank_logs(rank) / "error.json" for rank in request.ranks}
    errors = {rank: error for rank, file in files.items() if (error := read_json(file))}
    silent = [(rank, code) for rank, code in failures if rank not in errors]
    causes = [rank for rank, error in errors.items() if not error["is_consequence"]]
    if not any(_signal(code) == signal.SIGKILL for _, code in silent):
        if causes:  # errors of processes that failed only because another one failed do not count
            rank = min(causes, key=lambda rank: errors[rank]["time"])
            return _outcome_of_error(request, rank, errors[rank])
        if timeout:
            return _outcome_of_timeout(request, timeout)
        text = console.read_text(errors="replace")
        if lost := _lost_hosts(request.config, silent, text, codes):
            return Outcome("failed", _loss(lost, f"see {console}"), can_be_retried=True)
        if not failures:
            message = f"{_why_command_ended(request.paths, text, codes)}; see {console}"
            return Outcome("failed", message, can_be_retried=True)
    without_error = [rank for rank in request.ranks if rank not in errors]
    return _outcome_of_codes(request, failures, without_error, is_starved)


def _outcome_of_error(request: LaunchRequest, rank: int, error: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a failed point, with a message on the error that a process recorded.

    The message quotes the traceback if the error came from the user's own code, and otherwise the
    end of the process's output, unless the error says all that a user needs.
    """
    message = f"{request.config.process_name(rank)} failed: {error['message']}"
    full = _full_disk(request.paths, message)
    if full not in message:
        message += f": {full}"
    details = error["traceback"]
    if details is None:
        details = "" if full else _last_lines(request.paths, rank)
    message = f"{message}{_unequal_steps(request)}\n{details}"
    return Outcome(error["status"], message.strip())


def _outcome_of_timeout(request: LaunchRequest, timeout: str) -> Outcome:
    config = request.config
    if silent := silent_hosts(config):
        return Outcome("timeout", _loss(silent, timeout), can_be_retried=True)
    apart = _unequal_steps(request)
    quotes = ((rank, _last_lines(request.paths, rank)) for rank in request.ranks)
    printed = [f"{config.process_name(rank)}:\n{lines}" for rank, lines in quotes if lines]
    return Outcome("timeout", "\n".join([timeout + apart, *printed]), can_be_retried=not apart)


def _outcome_of_codes(
    request: LaunchRequest, failures: Ends, without_error: Sequence[int], is_starved: bool
) -> Outcome:
    """Return the outcome of a failed point, with a message that names the process that most likely
    failed first, and its exit code or signal.

    The processes `without_error` recorded none.
    """
    silent = [end for end in failures if end[0] in without_error]
    killed = [end for end in silent if _signal(end[1]) == signal.SIGKILL]
    crashed = [end for end in silent if _signal(end[1]) not in (None, signal.SIGTERM)]
    rank, code = (killed or crashed or silent or failures)[0]
    config = request.config
    process, number = config.process_name(rank), _signal(code)
    limits = config.launch.memory_limit_mb
    if limits and rank < config.num_workers and number in _CRASHES:
        limit = f"its memory limit of {limits[rank]:g} MiB"
        why = f"{_cause(code)} under {limit}, as happens when a kernel finds no room"
        return Outcome("out_of_memory", f"{process} {why}")
    host = _host_of(config, rank)
    if is_starved and number == signal.SIGKILL and (host is None or ssh.is_here(host)):
        why = "was killed by the kernel, which had no memory left"
        return Outcome("out_of_memory", f"{process} {why}")
    apart = "" if killed else _unequal_steps(request)
    message = f"{process} {_cause(code)}{apart}"
    # A launcher may first notice a process that waited for the ones that really failed.
    if not silent and not apart and (others := _ends_without_error(request, without_error)):
        message = f"{others}; then {message}"
    lines = _last_lines(request.paths, rank)
    full = _full_disk(request.paths, "" if number == signal.SIGBUS else lines)
    message = f"{message}: {full}" if full else f"{message}\n{lines}".strip()
    return Outcome("failed", message, can_be_retried=bool(full) or not apart)


def _host_of(config: RunConfig, rank: int) -> str | None:
    """Return the host that runs a process, or None if no hosts are named."""
    hosts = config.launch.named_hosts
    shape = config.num_workers, config.num_server_processes
    return hosts_of_ranks(hosts, *shape)[rank] if hosts else None


def _full_disk(paths: RunPaths, text: str) -> str:
    """Return a message that names the full disk and says what to do; return an empty text if no
    disk is known to be full.

    Args:
        paths: The files of the run that failed.
        text: What a failed process printed. If it printed something that does not name a full disk,
            no disk is looked at.
    """
    if messages := re.findall("no space left for .+", text):
        return str(messages[-1])
    if text and not any(os.strerror(number) in text for number in FULL):
        return ""
    disks = {
        paths.logs: "give another results_dir=...",
        Path(os.environ.get("TMPDIR", "/tmp")): "name another folder by TMPDIR",
        Path("/dev/shm"): "give it a larger SIZE: mount -o remount,size=SIZE /dev/shm",
    }
    reasons = (why_full(folder, otherwise) for folder, otherwise in disks.items())
    return next(filter(None, reasons), "")


def _ends_without_error(request: LaunchRequest, silent: Sequence[int]) -> str:
    """Return how the processes ended that recorded no error; an empty text if there are none.

    Of ranks of the user's own program, the text also has the epochs that they have ended.
    """
    name = request.config.process_name
    if clean := [rank for rank in silent if request.paths.clean_exit(rank).exists()]:
        taken = [*filter(None, (read_taken(request.paths.taken(rank)) for rank in clean))]
        ended = [  # an attempt that resumed has nothing of the epochs before
            str(max((n for n, steps in enumerate(epochs, 1) if steps.has_ended), default=0))
            for epochs in taken
        ]
        after = f" after {' and '.join(ended)} of {request.config.epochs} epochs" * bool(ended)
        return f"{' and '.join(map(name, clean))} ended with exit code 0{after}"
    names = " or ".join(map(name, silent))
    return names and f"{names} ended without a message, perhaps killed from outside"


def _unequal_steps(request: LaunchRequest) -> str:
    """Return the end of a message that names two ranks of the user's own program, of which one has
    ended an epoch and the other has begun another step of it; an empty text if there are none.
    """
    config = request.config
    ranks = range(config.num_workers if config.program.is_own else 0)
    counts = [(rank, read_taken(request.paths.taken(rank))) for rank in ranks]
    for epoch in range(1, config.epochs + 1):
        ended, behind = (
            [
                (sum(steps.num_begun for steps in taken[:epoch]), rank)
                for rank, taken in counts
                if len(taken) >= epoch and taken[epoch - 1].has_ended is has_ended
            ]
            for has_ended in (True, False)
        )
        if ended and behind and (least := min(ended))[0] < (most := max(behind))[0]:
            return (
                f": rank {least[1]} ended epoch {epoch} after {least[0]} steps in all, and rank "
                f"{most[1]} has begun step {most[0]}. Give all ranks equally many batches"
            )
    return ""


def _spelled_out(names: str) -> list[str]:
    """Return the hosts of a list such as `n[1-2]`; any other text stays as it is."""
    try:
        return names_in(names)
    except ValueError:
        return [names]


def _lost_hosts(
    config: RunConfig, silent: Ends, text: str, codes: Sequence[int | None]
) -> dict[str, str]:
    """Return the hosts of a failed run that ssh or SLURM could not reach, or to which the
    connection was lost, each with the reason.

    In both cases ssh ends with an exit code of its own. With launch=srun, srun's messages tell.
    """
    hosts, launch = config.launch.named_hosts, config.launch
    if hosts is None:
        return {}
    if not isinstance(launch, SshConfig):
        lists = re.findall(_LOST_BY_SLURM, text, re.MULTILINE)
        lost = [host for names in lists for host in _spelled_out(names)]
        return dict.fromkeys(lost, ssh.reason(text) or "SLURM lost the node")
    nodes = [host for host, _ in nodes_of(hosts, config.num_workers, config.num_server_processes)]
    if launch.uses_horovod:
        lost = [str(_host_of(config, rank)) for rank, code in silent if code == ssh.EXIT_CODE]
        # Horovodrun prints this for hosts that it could not reach.
        unreached = re.findall(r"^ssh not successful for host (\S+):$", text, re.MULTILINE)
        lost += [host for host in unreached if host in nodes]
    else:  # torchrun has one command for each host
        lost = [host for host, code in zip(nodes, codes, strict=False) if code == ssh.EXIT_CODE]
    # ssh also ends so, without a word, if a signal ends the command on the host.
    why = ssh.reason(text) or "the connection ended, or what ran there was killed"
    return dict.fromkeys((host for host in lost if not ssh.is_here(host)), why)


_LOST_BY_SLURM = r"^srun: error: (?:Node failure on|.* failed on node) ([\w.,\[\]-]*[\w\]])"


def _loss(hosts: Mapping[str, str], more: str) -> str:
    """Return an error message that names the lost hosts, why each was lost, and what the user can
    do.

    Args:
        hosts: The reason for each lost host.
        more: Where to read more, or what else is known.
    """
    reasons = "; ".join(f"host {host} is lost: {why}" for host, why in hosts.items())
    return f"{reasons}: {ssh.remedy(reasons)} ({more})"


def _why_command_ended(paths: RunPaths, text: str, codes: Sequence[int | None]) -> str:
    """Return an error message on why launcher commands such as torchrun ended, if no worker is
    known to have failed.

    Args:
        paths: The files of the run that failed.
        text: What the commands printed.
        codes: Their exit codes.
    """
    event = (
        "the workers' launcher ended while they trained"
        if any(paths.logs.glob("rank.*/heartbeat"))
        else "the workers could not be started"
    )
    signals = {code: _signal(code) for code in codes if code}
    ends = [number.name if number else f"exit code {code}" for code, number in signals.items()]
    lines = _plain(text.splitlines())
    printed = "\n".join(lines)
    why = (
        _full_disk(paths, printed)
        or ssh.reason(printed)
        or next((line for line in reversed(lines) if _ERROR.match(line)), "")
        or (_KILLED if signal.SIGKILL in signals.values() else "")
        or (lines[-1] if lines else "it printed nothing")
    )
    return f"{event} ({', '.join(ends) or 'exit code 0'}): {why.rstrip('.')}"


_ERROR = re.compile(r"[\w.]*(Error|Exception)\b|.*\berror:", re.IGNORECASE)


def _cause(code: int) -> str:
    number = _signal(code)
    if not number:
        return f"ended with exit code {code}"
    hint = f" ({_KILLED})" if number == signal.SIGKILL else ""
    return f"was ended by {number.name}{hint}"


def _signal(code: int) -> signal.Signals | None:
    """Return the signal that ended a process, or None if no signal ended it. The exit code `code`
    is that of the process or of the shell around it.
    """
    number = -code if code < 0 else code - 128
    return signal.Signals(number) if number in set(signal.Signals) else None


def _last_lines(paths: RunPaths, rank: int) -> str:
    """Return at most 15 of the last lines that a worker or server wrote to its standard error."""
    stderr = paths.rank_logs(rank) / "stderr"
    if not stderr.exists():
        return ""
    lines = stderr.read_text(errors="replace").strip().splitlines()
    # Traceback frames inside Horovod say nothing about the cause.
    if any("/horovod/" in line for line in lines[-_QUOTED_LINES:]):
        lines = [*_plain(lines), f"see {stderr}"]
    return "\n".join(lines[-_QUOTED_LINES:])


def _plain(lines: Sequence[str]) -> list[str]:
    """Return the lines of a program's output without horovodrun's prefixes, empty lines, indented
    lines such as traceback frames, and the headings of tracebacks.
    """
    plain = (re.sub(r"^\[\d+\]<\w+>:", "", line).rstrip() for line in lines)
    headings = r"\s|Traceback \(most recent|During handling|The above exc"
    return [line for line in plain if line and not re.match(headings, line)]
