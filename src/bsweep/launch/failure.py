"""The search for the cause of a point's failure, such as a failed process, a lost host or a full
disk.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from bsweep.config.hosts import names_in
from bsweep.config.launch import SshConfig, hosts_of_ranks, nodes_of
from bsweep.config.run import RunConfig
from bsweep.core.whole_files import FULL, why_full
from bsweep.launch import ssh
from bsweep.launch.outcome import Outcome, first_error
from bsweep.runlog.files import RunPaths
from bsweep.runlog.taken import read_taken

_QUOTED_LINES = 15
# They end a process whose libraries do not check whether they got the memory they asked for.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
_KILLED = "killed from outside, perhaps by the kernel for lack of memory"


def outcome(
    config: RunConfig,
    paths: RunPaths,
    failures: Sequence[tuple[int, int]],
    console: Path,
    codes: Sequence[int | None] = (),
    *,
    is_starved: bool = False,
) -> Outcome:
    """Return the status of a failed point, and a message on the likely cause of the failure.

    A process that SIGKILL ended counts as the cause before all others. Otherwise the cause is the
    first error that a process recorded, then a lost host. Without either, it is taken from the exit
    codes of the failed processes or, if none is known to have failed, from the end of the
    launcher's commands. Signals other than SIGKILL may be consequences: NCCL's watchdog aborts
    workers that wait for a failed one.

    Args:
        config: The point.
        paths: The files of its run folder.
        failures: Pairs of a failed rank and its exit code, in the order of the failures.
        console: The file with the output of the commands that started the processes.
        codes: The exit code of each of those commands; None for one that still ran.
        is_starved: True if the kernel of this machine killed a process for lack of memory
            meanwhile.
    """
    num_processes = config.num_workers + config.num_server_processes
    silent = [(r, code) for r, code in failures if not (paths.rank_logs(r) / "error.json").exists()]
    is_killed = any(_signal(code) == signal.SIGKILL for _, code in silent)
    error = first_error(paths, num_processes)
    if error and not is_killed:
        rank, outcome, trace = error
        said = f"{config.process_name(rank)} failed: {outcome.message}"
        full = _full_disk(paths, said)
        if full not in said:
            said += f": {full}"
        said += unequal_steps(config, paths)
        more = trace if trace is not None else "" if full else _last_lines(paths, rank)
        message = f"{said}\n{more}"
        return Outcome(outcome.status, message.strip())
    lost = _lost_hosts(config, silent, console, codes)
    if lost and not is_killed:
        # ssh also ends so, without a word, if a signal ends the command on the host.
        is_by_ssh = isinstance(config.launch, SshConfig)
        loss_of = (
            "the connection ended, or what ran there was killed"
            if is_by_ssh
            else "SLURM lost the node"
        )
        why = ssh.reason(_text_of(console)) or loss_of
        return Outcome("failed", loss(dict.fromkeys(lost, why), f"see {console}"), may_pass=True)
    if not failures:
        return Outcome("failed", _why_command_ended(paths, console, codes), may_pass=True)
    return _outcome_of_codes(config, paths, failures, silent, is_starved)


def _outcome_of_codes(
    config: RunConfig,
    paths: RunPaths,
    failures: Sequence[tuple[int, int]],
    silent: Sequence[tuple[int, int]],
    is_starved: bool,
) -> Outcome:
    """Return the outcome of a failed point, with a message that names the process that most likely
    failed first, and its exit code or signal.

    The pairs in `silent` are those of `failures` whose process recorded no error.
    """
    killed = [(rank, code) for rank, code in silent if _signal(code) == signal.SIGKILL]
    crashed = [(rank, code) for rank, code in silent if _signal(code) not in (None, signal.SIGTERM)]
    rank, code = (killed or crashed or silent or failures)[0]
    limits = config.launch.memory_limit_mb
    if limits and rank < config.num_workers and _signal(code) in _CRASHES:
        cause = (
            f"{_cause(code)} under its memory limit of {limits[rank]:g} MiB, as happens when a "
            "kernel finds no room"
        )
        return Outcome("out_of_memory", f"{config.process_name(rank)} {cause}")
    if is_starved and _signal(code) == signal.SIGKILL and _is_here(config, rank):
        return Outcome(
            "out_of_memory",
            f"{config.process_name(rank)} was killed by the kernel, which had no memory left",
        )
    apart = "" if killed else unequal_steps(config, paths)
    process_and_cause = f"{config.process_name(rank)} {_cause(code)}{apart}"
    # A launcher may first notice a process that waited for the ones that really failed.
    if not silent and not apart and (others := _without_a_word(config, paths)):
        process_and_cause = f"{others}; then {process_and_cause}"
    lines = _last_lines(paths, rank)
    if full := _full_disk(paths, "" if _signal(code) == signal.SIGBUS else lines):
        return Outcome("failed", f"{process_and_cause}: {full}", may_pass=True)
    return Outcome("failed", f"{process_and_cause}\n{lines}".strip(), may_pass=not apart)


def _is_here(config: RunConfig, rank: int) -> bool:
    hosts = config.launch.named_hosts
    return not hosts or ssh.is_here(
        hosts_of_ranks(hosts, config.num_workers, config.num_server_processes)[rank]
    )


def _full_disk(paths: RunPaths, said: str) -> str:
    """Return a message that names the full disk and says what to do; return an empty text if no
    disk is known to be full.

    Args:
        paths: The files of the run that failed.
        said: What a failed process said. If it said something that does not name a full disk, no
            disk is looked at.
    """
    if ours := re.findall("no space left for .+", said):
        return str(ours[-1])
    if said and not any(os.strerror(number) in said for number in FULL):
        return ""
    disks = {
        paths.logs: "give another results_dir=...",
        Path(os.environ.get("TMPDIR", "/tmp")): "name another folder by TMPDIR",
        Path("/dev/shm"): "give it a larger SIZE: mount -o remount,size=SIZE /dev/shm",
    }
    found = (why_full(folder, otherwise) for folder, otherwise in disks.items())
    return next(filter(None, found), "")


def _without_a_word(config: RunConfig, paths: RunPaths) -> str:
    """Return which processes ended without an error of their own, and how; an empty text if there
    are none.
    """
    every = range(config.num_workers + config.num_server_processes)
    silent = [rank for rank in every if not (paths.rank_logs(rank) / "error.json").exists()]
    if clean := [rank for rank in silent if paths.clean_exit(rank).exists()]:
        return f"{' and '.join(map(config.process_name, clean))} ended with exit code 0"
    names = " or ".join(map(config.process_name, silent))
    return names and f"{names} ended without a message, perhaps killed from outside"


def unequal_steps(config: RunConfig, paths: RunPaths) -> str:
    """Return the end of a message that names two ranks of the user's own program, of which one has
    ended an epoch and the other has begun another step of it; an empty text if there are none.
    """
    ranks = range(config.num_workers if config.program.is_own else 0)
    every = [(rank, read_taken(paths.taken(rank))) for rank in ranks]
    for epoch in range(1, config.epochs + 1):
        counts = [
            (sum(one.num_begun for one in taken[:epoch]), rank, taken[epoch - 1].has_ended)
            for rank, taken in every
            if len(taken) >= epoch
        ]
        ended, behind = ([one for one in counts if one[2] is has] for has in (True, False))
        if ended and behind and (least := min(ended))[0] < (most := max(behind))[0]:
            return (
                f": rank {least[1]} ended epoch {epoch} after {least[0]} steps in all, and rank "
                f"{most[1]} has begun step {most[0]}. Give all ranks equally many batches"
            )
    return ""


def last_lines_of_all(config: RunConfig, paths: RunPaths) -> str:
    ranks = range(config.num_workers + config.num_server_processes)
    quotes = ((rank, _last_lines(paths, rank)) for rank in ranks)
    return "\n".join(f"{config.process_name(rank)}:\n{lines}" for rank, lines in quotes if lines)


def _lost_hosts(
    config: RunConfig, silent: Sequence[tuple[int, int]], console: Path, codes: Sequence[int | None]
) -> list[str]:
    """Return the hosts of a failed run that ssh or SLURM could not reach, or to which the
    connection was lost.

    In both cases ssh ends with an exit code of its own. With launch=srun, srun's messages tell.
    """
    hosts = config.launch.named_hosts
    if hosts is None:
        return []
    if not isinstance(config.launch, SshConfig):
        said = re.findall(_LOST_BY_SLURM, _text_of(console), re.MULTILINE)
        return list(dict.fromkeys(host for listed in said for host in _spelled_out(listed)))
    nodes = [host for host, _ in nodes_of(hosts, config.num_workers, config.num_server_processes)]
    if not config.launch.uses_horovod:  # torchrun has one command for each host
        ended = [host for host, code in zip(nodes, codes, strict=False) if code == ssh.EXIT_CODE]
    else:
        of_rank = hosts_of_ranks(hosts, config.num_workers, config.num_server_processes)
        ended = [of_rank[rank] for rank, code in silent if code == ssh.EXIT_CODE]
        # Horovodrun prints this for hosts that it could not reach.
        said = re.findall(r"^ssh not successful for host (\S+):$", _text_of(console), re.MULTILINE)
        ended += [host for host in said if host in nodes]
    return list(dict.fromkeys(host for host in ended if not ssh.is_here(host)))


_LOST_BY_SLURM = r"^srun: error: (?:Node failure on|.* failed on node) ([\w.,\[\]-]*[\w\]])"


def _spelled_out(listed: str) -> list[str]:
    """Return the host names in a SLURM host list such as `n[1-2]`. Return any other text unchanged,
    as the only item.
    """
    try:
        return names_in(listed)
    except ValueError:
        return [listed]


def loss(hosts: Mapping[str, str], more: str) -> str:
    """Return an error message that names the lost hosts, why each was lost, and what the user can
    do.

    Args:
        hosts: The reason for each lost host.
        more: Where to read more, or what else is known.
    """
    said = "; ".join(f"host {host} is lost: {why}" for host, why in hosts.items())
    return f"{said}: {ssh.remedy(said)} ({more})"


def _why_command_ended(paths: RunPaths, console: Path, codes: Sequence[int | None]) -> str:
    """Return an error message on why launcher commands such as torchrun ended, if no worker is
    known to have failed.
    """
    began = any(paths.logs.glob("rank.*/alive"))
    event = (
        "the workers' launcher ended while they trained"
        if began
        else "the workers could not be started"
    )
    signals = [_signal(code) for code in codes if code]
    ended = [
        one.name if one else f"exit code {code}"
        for one, code in zip(signals, filter(None, codes), strict=True)
    ]
    lines = _plain(_text_of(console).splitlines())
    why = (
        _full_disk(paths, "\n".join(lines))
        or ssh.reason("\n".join(lines))
        or next((line for line in reversed(lines) if _ERROR.match(line)), "")
    )
    why = why or (_KILLED if signal.SIGKILL in signals else "")
    why = why or (lines[-1] if lines else "it printed nothing")
    return f"{event} ({', '.join(ended) or 'exit code 0'}): {why.rstrip('.')}; see {console}"


_ERROR = re.compile(r"[\w.]*(Error|Exception)\b|.*\berror:", re.IGNORECASE)


def _cause(code: int) -> str:
    number = _signal(code)
    if number:
        hint = f" ({_KILLED})" if number == signal.SIGKILL else ""
        return f"was ended by {number.name}{hint}"
    return f"ended with exit code {code}"


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
    quoted = lines[-_QUOTED_LINES:]
    # Drop the rest of a traceback frame whose beginning is cut off.
    while len(quoted) > 1 and re.match(r"\s+(?!File )\S", quoted[0]):
        del quoted[0]
    return "\n".join(quoted)


def _plain(lines: Sequence[str]) -> list[str]:
    """Return the lines of a program's output without horovodrun's prefixes, empty lines, indented
    lines such as traceback frames, and the headings of tracebacks.
    """
    said = (re.sub(r"^\[\d+\]<\w+>:", "", line).rstrip() for line in lines)
    return [
        line
        for line in said
        if line and not re.match(r"\s|Traceback \(most recent|During handling|The above exc", line)
    ]


def _text_of(console: Path) -> str:
    return console.read_text(errors="replace")
