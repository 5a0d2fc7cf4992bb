"""The process that records a stand-alone run, of a program that called `bsweep.join(study=...)` and
that no sweep started.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bsweep.compose import hydra_grid, overrides
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig
from bsweep.core.whole_files import write_whole
from bsweep.launch import Outcome
from bsweep.launch.outcome import recorded
from bsweep.programs import worker
from bsweep.runlog.errors import Diverged, described, status_of
from bsweep.runlog.files import RunPaths
from bsweep.study import attempts, attendance
from bsweep.study.progress import Progress


def main() -> NoReturn:
    """Run `python -m bsweep.study.alone_worker FOLDER`, whose `request.json` has the point."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())
    sys.argv = ["python", *request["command"]]  # recorded in the run as its command
    try:
        config = _config(request)
    except ValueError as error:
        raise SystemExit(f"bsweep: {error}") from None

    def follow(config: RunConfig, paths: RunPaths, on_poll: Callable[[], None]) -> Outcome:
        def begin(point: Path) -> None:
            write_whole(folder / "answer", str(point.absolute()).encode())

        try:
            with suppress(Diverged):
                worker.record_process(config, paths, request["pid"], on_poll, begin)
        except Exception as error:
            return Outcome(status_of(error), described(error))
        ended = recorded(paths)
        assert ended, "the recorder returned without its last record"
        return ended

    config.study_dir.mkdir(parents=True, exist_ok=True)
    present = attendance.Attendance()
    present.join(config.study_dir)
    status = attempts.run_point(config, [], Progress(1), follow)
    present.leave()
    sys.stdout.flush()
    os._exit(status != "completed")


def _config(request: dict[str, Any]) -> RunConfig:
    """Return the point that a stand-alone program asked to record.

    Raises:
        ConfigError: If a value is out of range.
    """
    workers = int(request["num_workers"])
    given = {
        "study": request["study"],
        "local_batch": request["local_batch"],
        "num_workers": workers,
        "epochs": request["epochs"],
        "seed": request["seed"],
        "optimizer.lr": "null" if request["lr"] is None else request["lr"],
        "launch": "inline" if workers == 1 else "torchrun",
        "results_dir": request.get("results_dir", "results"),
    }
    words = ["program=own", "program.command=python", *(f"{k}={v}" for k, v in given.items())]
    with hydra_grid.composed(overrides.arranged(words)) as grid:
        (config,) = grid.configs
    program = config.program
    assert isinstance(program, OwnProgramConfig), program
    command = shlex.join(["python", *request["command"]])
    options = type(program.options)(request["options"])
    own = replace(program, command=command, options=options, files=None)
    return replace(config, program=own.resolved())


if __name__ == "__main__":
    main()
