"""The worker process of a point with `program=own`: it starts the user's command, waits for it and,
on rank 0, writes the run's records from what the command reports.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bsweep.config.programs import OwnProgramConfig, values_of
from bsweep.config.run import RunConfig
from bsweep.core import network, signals
from bsweep.core.following import GrowingFile
from bsweep.core.ranks import World
from bsweep.core.signals import end_with_parent
from bsweep.core.words import joined
from bsweep.external.client import POINT
from bsweep.external.recorder import Recorder
from bsweep.external.written import Written
from bsweep.runlog.checkpoint_files import checkpoints, is_stop_requested
from bsweep.runlog.errors import Diverged, ProgramError
from bsweep.runlog.files import RunPaths
from bsweep.runlog.heartbeat import Heartbeat
from bsweep.runlog.reading import read_json
from bsweep.train.worker import enter

_POLL_SECONDS = 0.1
_QUOTED_LINES = 15
_GRACE_SECONDS = 2.5  # the launcher may kill this process 5 s after its signal
_LOST = re.compile(r"(closed|reset) by peer|Broken pipe|HorovodInternalError|EOFError")


class _Signalled(BaseException):
    """The error that ends the command when this process gets a signal to end."""


def run_program(
    config: RunConfig,
    paths: RunPaths,
    world: World,
    on_step: Callable[[], None] = lambda: None,
    *,
    is_launched: bool = False,
) -> None:
    """Run the user's command as this worker until it ends, and record the run on rank 0.

    Args:
        config: The point.
        paths: The paths in the run's folder.
        world: This worker's rank and host.
        on_step: Called a few times a second; an exception that it raises ends the command.
        is_launched: True if a launcher writes this process's output to the worker's log files.
            Otherwise the command's output goes there, and this process's own does not.

    Raises:
        ProgramError: If the program failed, or did not report what a run needs.
        Diverged: On rank 0, if the program reported an infinite loss or NaN.
    """
    command = _Command(config, paths, world, is_launched=is_launched)
    program = command.program
    if program.with_fingerprints().files_sha256 != program.files_sha256:
        raise ProgramError(
            f"{', '.join(program.files or ())} changed since the sweep began: start the sweep "
            "again, which gives the changed program runs of its own"
        )
    if world.rank:
        command.run(on_step)
        return
    with closing(Recorder(config, paths, command.launched_at)) as recorder:
        _run_recorded(command, recorder, on_step)


def _run_recorded(command: _Command, recorder: Recorder, on_step: Callable[[], None]) -> None:
    """Run the command, and record what it says by its calls or by the metrics that it writes."""
    program, calls = command.program, GrowingFile(command.reports)
    command.ends_early.unlink(missing_ok=True)
    command.reports.unlink(missing_ok=True)
    written = Written(command.config, recorder.num_done) if program.metrics else None
    if written and program.most_steps is not None:
        raise ProgramError(
            f"program.metrics={program.metrics} tells no times of steps: call bsweep.join() and "
            "run.steps(...) in the program"
        )
    if written:
        software = {"interpreter": command.words[0]}
        recorder.take({"kind": "facts", "is_ready": False, "facts": {}, "software": software})

    def listen(*, is_last: bool = False) -> bool:
        reports = [json.loads(line) for line in calls.new_lines() or []]
        if written and reports:
            raise ProgramError(
                "the program calls bsweep.join() and has program.metrics: leave one of them out"
            )
        if written:
            try:
                reports = written.end() if is_last else written.reports()
            except ValueError as error:
                raise ProgramError(str(error)) from None
        for report in reports:
            recorder.take(report)
        if written and not is_last:
            is_asked = is_stop_requested(command.paths)
            if is_asked or recorder.reaches_target:
                # A program that makes no calls can only be ended to stop it.
                recorder.take({"kind": "stops", "reason": "asked" if is_asked else "target"})
                command.ends_early.touch()
        return bool(reports)

    command.run(on_step, listen, recorder.scores)
    if written and not recorder.stops:
        listen(is_last=True)
    recorder.end()


class _Command:
    """The user's command of one worker."""

    def __init__(
        self, config: RunConfig, paths: RunPaths, world: World, *, is_launched: bool
    ) -> None:
        assert isinstance(config.program, OwnProgramConfig), config.program
        self.config, self.program, self.paths = config, config.program, paths
        self._world, self._is_launched = world, is_launched
        self._logs, first = paths.rank_logs(world.rank), paths.rank_logs(0)
        self.reports = first / "reports.jsonl"
        self.ends_early = first / "enough"  # rank 0 makes it if all workers shall end the command
        self.words = self.program.command_of(values_of(config))
        self.launched_at: float | None = (read_json(paths.meta) or {}).get("launched_at")

    def run(
        self,
        on_step: Callable[[], None],
        listen: Callable[[], bool] = lambda: False,
        scores: Sequence[float] = (),
    ) -> None:
        """Start the command and wait until it ends.

        Args:
            on_step: As for `run_program`.
            listen: Records what the command reported since the last call, and returns True if it
                reported something.
            scores: Those of earlier attempts that count for the target.

        Raises:
            ProgramError: If the command failed, also because it ran out of memory.
        """
        child = self._start(scores)
        heartbeat, num_seen = Heartbeat(self.paths.heartbeat(self._world.rank)), -1
        outputs = [self._logs / "stdout", self._logs / "stderr"]
        try:
            while True:
                code = child.poll()
                on_step()
                has_reports = listen()
                num_bytes = sum(path.stat().st_size for path in outputs if path.exists())
                if has_reports or num_bytes != num_seen:
                    heartbeat.beat()
                num_seen = num_bytes
                if code is not None:
                    break
                if self.ends_early.exists():
                    return
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_SECONDS)
        finally:
            signals.end([child], _GRACE_SECONDS, asks_all=True)
        if code:
            raise self._error(code)

    def _start(self, scores: Sequence[float]) -> subprocess.Popen[bytes]:
        self._logs.mkdir(parents=True, exist_ok=True)
        (self._logs / "host").write_text(platform.node())
        self.paths.program.mkdir(exist_ok=True)
        point = self._logs / "point.json"
        point.write_text(json.dumps(self._point(scores)))
        self.paths.taken(self._world.rank).unlink(missing_ok=True)
        environment = {
            **self._environment(),
            POINT: str(point.absolute()),
            **({"PYTHONPATH": _path_to_bsweep(self._logs)} if self.program.python else {}),
        }
        with ExitStack() as files:
            stdout, stderr = (
                None if self._is_launched else files.enter_context((self._logs / name).open("ab"))
                for name in ("stdout", "stderr")
            )
            return subprocess.Popen(
                self.words,
                cwd=self.program.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C asks bsweep to stop, which tells the program
                preexec_fn=end_with_parent,
            )

    def _environment(self) -> dict[str, str]:
        """Return the environment variables of the command: those of this process, those of the
        point, and those that the user gave. A variable that the user gave as null is left out.
        """
        config, world = self.config, self._world
        variables = {
            **os.environ,
            **{
                re.sub(r"\W", "_", f"BSWEEP_{name}").upper(): value
                for name, value in values_of(config).items()
            },
            "OMP_NUM_THREADS": world.threads(config.launch.threads_per_worker),
            **self.program.environment,
            **({"CUDA_VISIBLE_DEVICES": ""} if config.device == "cpu" else {}),
            "BSWEEP_RANK": world.rank,
            "BSWEEP_LOCAL_RANK": world.local_rank,
            "BSWEEP_ADDRESS": _address(config),
            "PYTHONUNBUFFERED": "1",
        }
        return {name: str(value) for name, value in variables.items() if value is not None}

    def _point(self, scores: Sequence[float]) -> dict[str, Any]:
        """Return what `bsweep.join()` knows of the point and of this worker, for a JSON file."""
        config, saved = self.config, checkpoints(self.paths)
        facts = saved[0].facts if saved else None
        target = config.target if config.stop_at_target else None
        return {
            **values_of(config),
            "options": dict(self.program.options),
            "rank": self._world.rank,
            "local_rank": self._world.local_rank,
            "checkpoint_folder": str(self.paths.program.absolute()),
            "first_epoch": facts["epoch"] if facts else 1,
            "most_steps": self.program.most_steps,
            "stop_file": str(self.paths.stop.absolute()),
            "target": asdict(target) if target else None,
            "scores": scores,
            "num_train": getattr(config.data, "num_train", None),
            "launched_at": self.launched_at,
            "address": _free_address(config),
        }

    def _error(self, code: int) -> ProgramError:
        """Return the error that says how the command failed, with the last lines that it
        printed.
        """
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        path = self._logs / "stderr"
        text = path.read_text(errors="replace").strip() if path.exists() else ""
        lines = text.splitlines()[-_QUOTED_LINES:]
        last = lines[-1].strip() if lines else ""
        if "MemoryError" in last:
            how += ", out of memory"
        return ProgramError(
            f"`{shlex.join(self.words)}` ended with {joined((how, last), ': ')}; see {path}",
            "\n".join(lines) if len(lines) > 1 else "",
            is_consequence=_LOST.search(last) is not None,
            number=-code if code < 0 else None,
        )


def _address(config: RunConfig) -> str:
    """Return the address of this host by which the run's other workers reach it."""
    interfaces = network.interfaces() if config.launch.named_hosts else {}
    chosen = getattr(config.launch, "network_interface", None) or ""
    others = [address for name, address in interfaces.items() if name != network.loopback()]
    return interfaces.get(chosen) or [*others, "127.0.0.1"][0]


def _free_address(config: RunConfig) -> str:
    """Return an address and a port at which the command of this worker may listen."""
    host = _address(config)
    with network.listening(host) as server:
        port = server.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _path_to_bsweep(folder: Path) -> str:
    """Return a value of PYTHONPATH with which another interpreter finds bsweep, and nothing else of
    this one's packages.
    """
    path = (folder / "path").absolute()
    path.mkdir(exist_ok=True)
    link = path / "bsweep"
    if not link.exists():
        link.symlink_to(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(path)]))


def _work(config: RunConfig, paths: RunPaths, world: World) -> None:
    signal.signal(signal.SIGTERM, _raise_signalled)
    try:
        run_program(config, paths, world, is_launched=True)
        return
    except Diverged:
        sys.stderr.flush()
        os._exit(1)  # the launcher ends the other workers; the record says why
    except ProgramError as error:
        if error.number is None:
            raise
        number = error.number  # as a worker that crashes: another attempt may succeed
    except _Signalled:
        number = signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(OSError):  # of SIGKILL
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _raise_signalled(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # launchers repeat it
    raise _Signalled


def main() -> NoReturn:
    """Run `python -m bsweep.external.worker TEAM_FOLDER`."""
    enter(_work)


if __name__ == "__main__":
    main()
