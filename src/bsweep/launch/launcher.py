"""The interface of launchers, the classes that run the workers of a point; each variant of `launch`
has such a class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bsweep.config.launch import ProcessesConfig
from bsweep.config.programs import ProgramConfig
from bsweep.config.run import RunConfig
from bsweep.runlog import reading
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import Status

if TYPE_CHECKING:
    from bsweep.launch.pool import ProcessPool


@dataclass(frozen=True)
class LaunchRequest:
    """A request to a launcher: the point to run, and what the launcher needs for it, such as its
    run folder.
    """

    config: RunConfig
    paths: RunPaths
    """The paths of the files in the point's run folder, which must already contain the point's
    configuration.
    """
    on_poll: Callable[[], None]
    """A function that the launcher calls again and again while the point runs, a few times a second
    or after each step. If it raises an exception, the run ends.
    """
    entry: str = ProgramConfig.worker
    """The module that says what the processes of a point do, such as train or measure, and the
    function that does it in a worker. Processes that a launcher starts run the module, whose own
    `__main__` calls the function; `inline` calls the function itself.
    """
    pool: ProcessPool | None = None
    """The processes that are kept between the points of a sweep; None to start fresh ones."""

    @property
    def ranks(self) -> range:
        """The ranks of all processes of the point: first the workers, then the servers."""
        return range(self.config.num_workers + self.config.num_server_processes)

    @property
    def card(self) -> ProcessesConfig:
        """The card of the point's launcher, which must be one that starts processes, unlike
        `inline`.
        """
        assert isinstance(self.config.launch, ProcessesConfig), self.config.launch
        return self.config.launch


@dataclass(frozen=True)
class Outcome:
    status: Status
    message: str = ""
    can_be_retried: bool = False
    """True if the failure may not come from the point itself, so that another attempt may succeed:
    for example after a lost host, a stall or a kill from outside.
    """


def recorded(paths: RunPaths) -> Outcome | None:
    """Return how a run ended (completed, diverged or interrupted), as its workers recorded it;
    return None if the last record is not such a record.
    """
    content = reading.content_of(paths.metrics) or b""
    line = content.rpartition(b"\n")[0].rpartition(b"\n")[2]  # the last whole one
    record = reading.checked(line, str(paths.metrics)) if line else {}
    if record.get("type") != "end":
        return None
    return Outcome(record["status"], record["message"])


class Launcher(Protocol):
    """The interface of a launcher, an object that runs the workers of a point and waits for them.

    The value `builds` of a launcher's card names the launcher's class, which takes no arguments.
    """

    def launch(self, request: LaunchRequest) -> Outcome:
        """Run the workers of a point, wait until the run ends, and return how it ended.

        Args:
            request: The point, with its run folder.

        Returns:
            The status, and the cause of a failure.
        """
