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
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import psutil

from bsweep.config.program_point import values_of
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig
from bsweep.core import network
from bsweep.core.following import GrowingFile
from bsweep.core.parent_process import end_with_parent
from bsweep.core.ranks import Place
from bsweep.programs.joined import POINT
from bsweep.programs.recorder import Recorder
from bsweep.programs.written import Written
from bsweep.runlog.checkpoint_files import checkpoints, is_stop_requested
from bsweep.runlog.errors import Diverged, ProgramError
from bsweep.runlog.files import RunPaths, SignOfLife
from bsweep.runlog.locks import held
from bsweep.runlog.reading import read_json, read_records
from bsweep.train.worker import do_nothing, enter

_POLL_SECONDS = 0.1
_QUOTED_LINES = 15
_GRACE_SECONDS = 5.0
_LOST = re.compile(r"(closed|reset) by peer|Broken pipe|HorovodInternalError|EOFError")
_LEFT = "an earlier process of this run still works; start the same sweep again later"


def measure(
    config: RunConfig,
    paths: RunPaths,
    place: Place,
    on_step: Callable[[], None] = do_nothing,
    *,
    is_launched: bool = False,
) -> None:
    """Run the user's command as this worker until it ends, and record the run on rank 0.

    Args:
        config: The point.
        paths: The paths in the run's folder.
        place: This worker's rank and host.
        on_step: Called a few times a second; an exception that it raises ends the command.
        is_launched: True if a launcher writes this process's output to the worker's log files.
            Otherwise the command's output goes there, and this process's own does not.

    Raises:
        ProgramError: If the program failed, or did not report what a run needs.
        Diverged: On rank 0, if the program reported an infinite loss or NaN.
    """
    program = config.program
    assert isinstance(program, OwnProgramConfig), program
    if program.resolved().files_sha256 != program.files_sha256:
        raise ProgramError(
            f"{', '.join(program.files or ())} changed since the sweep began: start the sweep "
            "again, which gives the changed program runs of its own"
        )
    with held(paths.worker_claim(place.rank), _LEFT):
        if place.rank:
            child = _started(config, program, paths, place, is_launched)
            _follow(child, paths, place, on_step, lambda: False)
            return
        _ends_early(paths).unlink(missing_ok=True)
        _reports(paths).unlink(missing_ok=True)
        launched_at = (read_json(paths.meta) or {}).get("launched_at")
        recorder = Recorder(config, paths, launched_at)
        metrics = _Metrics(config, program, paths, recorder) if program.metrics else None
        reports = GrowingFile(_reports(paths))

        def listen() -> bool:
            lines = reports.new_lines() or []
            for line in lines:
                recorder.take(json.loads(line))
            return bool(lines)

        child = _started(config, program, paths, place, is_launched)
        try:
            _follow(child, paths, place, on_step, metrics.listen if metrics else listen)
            if metrics:
                metrics.end()
            recorder.end()
        finally:
            recorder.close()


class _Metrics:
    """The reader of the metrics that a command writes. The command can only be ended to stop it."""

    def __init__(
        self, config: RunConfig, program: OwnProgramConfig, paths: RunPaths, recorder: Recorder
    ) -> None:
        if program.most_steps is not None:
            raise ProgramError(
                f"program.metrics={program.metrics} tells no times of steps: call bsweep.join() "
                "and run.steps(...) in the program"
            )
        self._paths, self._recorder = paths, recorder
        self._written = Written(config, recorder.num_done)
        self._target = config.target if config.stop_at_target else None
        self._scores: list[float] = []
        interpreter = program.command_of(values_of(config))[0]
        recorder.take({"kind": "joined", "software": {"interpreter": interpreter}, "facts": {}})

    def listen(self) -> bool:
        """Record what the command wrote since the last call; return True if it wrote something."""
        if _reports(self._paths).exists():
            raise ProgramError(
                "the program calls bsweep.join(), and program.metrics is given: leave one of them "
                "out"
            )
        has_new = self._take(self._written.reports)
        if is_stop_requested(self._paths):
            self._stop("asked")
        elif self._target and self._target.is_confirmed_by(self._scores):
            self._stop("target")
        return has_new

    def end(self) -> None:
        """Record the last words of the command, which has ended without an error."""
        if not self._recorder.stops:
            self._take(self._written.end)

    def _take(self, reports: Callable[[], list[dict[str, Any]]]) -> bool:
        try:
            new_reports = reports()
        except ValueError as error:
            raise ProgramError(str(error)) from None
        for report in new_reports:
            self._recorder.take(report)
            if report["kind"] == "evaluated" and self._target:
                self._scores += [
                    value for name, value in report["values"].items() if name == self._target.metric
                ]
        return bool(new_reports)

    def _stop(self, reason: str) -> None:
        self._recorder.take({"kind": "stops", "reason": reason, "cuts": True})
        _ends_early(self._paths).touch()


def _started(
    config: RunConfig,
    program: OwnProgramConfig,
    paths: RunPaths,
    place: Place,
    is_launched: bool,
) -> subprocess.Popen[bytes]:
    """Start the command of a worker."""
    folder = paths.rank_logs(place.rank)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "host").write_text(platform.node())
    paths.program.mkdir(exist_ok=True)
    point = folder / "point.json"
    point.write_text(json.dumps(_point(config, program, paths, place)))
    paths.taken(place.rank).unlink(missing_ok=True)
    environment = {
        **_environment(config, program, place),
        POINT: str(point.absolute()),
        **({"PYTHONPATH": _path_to_bsweep(folder)} if program.python else {}),
    }
    with ExitStack() as files:
        stdout, stderr = (
            None if is_launched else files.enter_context((folder / name).open("ab"))
            for name in ("stdout", "stderr")
        )
        return subprocess.Popen(
            program.command_of(values_of(config)),
            cwd=program.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C asks bsweep to stop, which tells the program
            preexec_fn=end_with_parent,
        )


def _environment(config: RunConfig, program: OwnProgramConfig, place: Place) -> dict[str, str]:
    """Return the environment variables of a worker's command: those of this process, those of the
    point, and those that the user gave. A variable that the user gave as null is left out.
    """
    variables = {
        **os.environ,
        **{_variable(name): value for name, value in values_of(config).items()},
        "OMP_NUM_THREADS": place.threads(config.launch.threads_per_worker),
        **program.environment,
        **({"CUDA_VISIBLE_DEVICES": ""} if config.device == "cpu" else {}),
        "BSWEEP_RANK": place.rank,
        "BSWEEP_LOCAL_RANK": place.local_rank,
        "BSWEEP_ADDRESS": _address(config),
        "PYTHONUNBUFFERED": "1",
    }
    return {name: str(value) for name, value in variables.items() if value is not None}


def _point(
    config: RunConfig, program: OwnProgramConfig, paths: RunPaths, place: Place
) -> dict[str, Any]:
    """Return what `bsweep.join()` knows of the point and of this worker, for a JSON file."""
    saved = checkpoints(paths)
    facts = saved[0].facts() if saved else None
    records, _ = read_records(paths.metrics, with_steps=False)
    metric = config.target.metric if config.target else None
    scores = [r[metric] for r in records if r["type"] == "evaluation" and metric]
    values = values_of(config)
    return {
        **{name: values[name] for name in ("local_batch", "global_batch", "epochs", "seed", "lr")},
        "options": dict(program.options),
        "num_workers": config.num_workers,
        "rank": place.rank,
        "local_rank": place.local_rank,
        "checkpoint_folder": str(paths.program.absolute()),
        "first_epoch": facts["epoch"] if facts else 1,
        "most_steps": program.most_steps,
        "stop_file": str(paths.stop.absolute()),
        "target": asdict(config.target) if config.target else None,
        "stop_at_target": config.stop_at_target,
        "scores": [score for score in scores if score is not None],
        "reports": str(_reports(paths).absolute()),
        "taken": str(paths.taken(place.rank).absolute()),
        "meeting": str((paths.rank_logs(0) / "meeting.json").absolute()),
        "num_train": getattr(config.data, "num_train", None),
        "launched_at": (read_json(paths.meta) or {}).get("launched_at"),
        "address": _free_address(config),
        "points": [
            str((paths.rank_logs(rank) / "point.json").absolute())
            for rank in range(config.num_workers)
        ],
    }


def _reports(paths: RunPaths) -> Path:
    return paths.rank_logs(0) / "reports.jsonl"


def _ends_early(paths: RunPaths) -> Path:
    """Return the file that rank 0 makes when all workers shall end their commands."""
    return paths.rank_logs(0) / "enough"


def _variable(name: str) -> str:
    return "BSWEEP_" + re.sub(r"\W", "_", name).upper()


def _address(config: RunConfig) -> str:
    """Return the address of this host by which the run's other workers reach it."""
    if not config.launch.named_hosts:
        return "127.0.0.1"
    chosen = getattr(config.launch, "network_interface", None)
    found = network.interfaces()
    return found.get(chosen or "") or next(
        (address for name, address in found.items() if name != network.loopback()), "127.0.0.1"
    )


def _free_address(config: RunConfig) -> str:
    """Return an address and a port at which the command of this worker may listen."""
    host = _address(config)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
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


def _follow(
    child: subprocess.Popen[bytes],
    paths: RunPaths,
    place: Place,
    on_step: Callable[[], None],
    listen: Callable[[], bool],
) -> None:
    """Wait until the command ends, and pass on what it reports: `listen` records what it said since
    the last call, and returns True if it said something.

    Raises:
        ProgramError: If the command failed.
        MemoryError: If it ran out of memory.
    """
    alive, seen = SignOfLife(paths.alive(place.rank)), -1
    try:
        while True:
            code = child.poll()
            on_step()
            says = listen()
            size = _num_output_bytes(paths, place)
            if says or size != seen:
                alive.show()
            seen = size
            if code is None and _ends_early(paths).exists():
                return
            if code is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
    finally:
        _end(child)
    if code:
        raise _error(child, code, paths, place)


def _num_output_bytes(paths: RunPaths, place: Place) -> int:
    folder = paths.rank_logs(place.rank)
    files = [folder / "stdout", folder / "stderr"]
    return sum(path.stat().st_size for path in files if path.exists())


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started, if it still runs."""
    if child.poll() is not None:
        return
    command = psutil.Process(child.pid)
    _end_all([command, *command.children(recursive=True)], _GRACE_SECONDS)
    child.wait()


def _end_all(processes: Sequence[psutil.Process], seconds: float) -> None:
    """Ask processes to end, and kill those that have not ended in time: TensorFlow goes on after
    SIGTERM.
    """
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=seconds)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _error(
    child: subprocess.Popen[bytes], code: int, paths: RunPaths, place: Place
) -> ProgramError:
    """Return the error that says how a command failed, with the last lines that it printed."""
    command = shlex.join(map(str, child.args))  # type: ignore[arg-type]
    how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    path = paths.rank_logs(place.rank) / "stderr"
    text = path.read_text(errors="replace").strip() if path.exists() else ""
    *lines, said = text.splitlines()[-_QUOTED_LINES:] or [""]
    if "MemoryError" in said:
        how += ", out of memory"
    return ProgramError(
        f"`{command}` ended with {how}{': ' if said else ''}{said.strip()}; see {path}",
        "\n".join([*lines, said] if lines else []),
        is_consequence=_LOST.search(said) is not None,
        number=-code if code < 0 else None,
    )


def _work(config: RunConfig, paths: RunPaths, place: Place) -> None:
    signal.signal(signal.SIGTERM, _leave)
    try:
        measure(config, paths, place, is_launched=True)
    except Diverged:
        sys.stderr.flush()
        os._exit(1)  # the launcher ends the other workers; the record says why
    except ProgramError as error:
        if error.number is None:
            raise
        _leave(error.number, None)  # as a worker that crashes: another attempt may succeed


def _leave(number: int, frame: object) -> NoReturn:
    """End the command, and then this process by the same signal."""
    with suppress(OSError):  # of SIGKILL
        signal.signal(number, signal.SIG_IGN)  # launchers repeat it
    # The launcher may kill this process 5 s after its signal.
    _end_all(psutil.Process().children(recursive=True), _GRACE_SECONDS / 2)
    with suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(1)


def main() -> NoReturn:
    """Run `python -m bsweep.programs.worker RUN_FOLDER`."""
    enter(_work)


if __name__ == "__main__":
    main()
