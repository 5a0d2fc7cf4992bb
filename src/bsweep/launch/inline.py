"""One worker in the parent process, for debuggers: breakpoints and tracebacks are where one expects them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from bsweep.config import RunConfig
from bsweep.launch.outcome import Outcome, recorded
from bsweep.launch.processes import Entry
from bsweep.runlog import RunPaths


def launch(config: RunConfig, paths: RunPaths, on_poll: Callable[[], None], entry: Entry) -> Outcome:
    from bsweep import probe, worker  # torch is imported only where a worker runs
    from bsweep.errors import Diverged, status_of
    from bsweep.place import Place

    try:
        if entry == "bsweep.probe":
            probe.measure(config, paths, Place(), on_step=on_poll)
        else:
            worker.train(config, paths, Place(), launched_at=time.time(), on_step=on_poll)
    except Diverged:
        pass
    except Exception as error:
        traceback.print_exc()
        return Outcome(status_of(error), f"{type(error).__name__}: {error}")
    ended = recorded(paths)
    assert ended, "the worker returned without its last record"
    return ended
