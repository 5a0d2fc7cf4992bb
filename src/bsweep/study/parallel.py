"""The setting `launch.parallel`, by which several points run at the same time on one machine.

Each point gets cores of its own and, if it trains on GPUs, GPUs of its own. Each has a thread,
which runs it as a sweep runs a single point. The processes that a thread starts inherit its cores.
The next point to begin is the first one in the grid that fits into the free GPUs and cores.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations_with_replacement

from bsweep import launch
from bsweep.config.launch import most_at_once
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.words import counted
from bsweep.launch import Outcome, seats
from bsweep.launch.seats import Seats
from bsweep.launch.stop import Signals
from bsweep.runlog.files import RunPaths, write_json
from bsweep.runlog.reading import Damaged, Newer, read_meta
from bsweep.study import attempts, provenance
from bsweep.study.progress import Progress

logger = terminal.logger(__name__)

_POLL_SECONDS = 0.2

RunOne = Callable[[RunConfig, Progress, attempts.Launch], str]
"""The type of a function that runs a point and returns its status."""


def is_possible(configs: Sequence[RunConfig]) -> bool:
    """Return True if `launch.parallel` asks for several points at once and this machine has room
    for two of them.
    """
    if _asked(configs) == 1:
        return False
    room, sizes = seats.of_machine(configs).size, Counter(map(seats.size_of, configs))
    pairs = combinations_with_replacement(sizes, 2)
    return any(
        (one != other or sizes[one] > 1) and (one + other).fits(room) for one, other in pairs
    )


def why_not(configs: Sequence[RunConfig]) -> str:
    """Return a text on why points run one after another although `launch.parallel` asks for several
    at once.

    The text is empty if `launch.parallel` does not ask for that, if there is only one point, or if
    the points do run at once.
    """
    if len(configs) < 2 or _asked(configs) == 1 or is_possible(configs):
        return ""
    room = seats.of_machine(configs)
    gpus = f"{counted(len(room.gpus), 'GPU')} and " if room.gpus else ""
    takes_all = (
        not gpus
        and len(room.cores) > 1
        and any(one.launch.threads_per_worker is None for one in configs)
    )
    remedy = (
        " Workers take all cores by default: give for example launch.threads_per_worker=1."
        * takes_all
    )
    return (
        f"launch.parallel: points run one after another, because this machine's {gpus}"
        f"{counted(len(room.cores), 'core')} have no room for two points.{remedy}"
    )


def _asked(configs: Sequence[RunConfig]) -> float:
    return min((most_at_once(config.launch) for config in configs), default=1)


@dataclass(frozen=True)
class _Running:
    place: int
    seats: Seats


def run_at_once(configs: Sequence[RunConfig], progress: Progress, run_one: RunOne) -> list[str]:
    """Run points, as many at once as `launch.parallel` allows and this machine has room for, and
    return the status of each.

    Args:
        configs: The points.
        progress: Shows the sweep to the user.
        run_one: Runs one point and returns its status.

    Raises:
        KeyboardInterrupt: If the points were asked to stop. All of them have stopped by then.
    """
    # The result is cached here, as a pinned thread would see its own cores only.
    provenance.provenance(configs[0])
    crew = _Crew(configs, progress, run_one)
    with Signals() as signals, ThreadPoolExecutor(len(crew.machine.cores)) as pool:
        try:
            while crew.waiting or crew.running:
                if not signals.have_come:
                    crew.start_what_fits(pool, signals)
                elif not crew.running:
                    break
                crew.wait(signals)
        except BaseException:
            signals.ask_all()
            signals.ask_all()
            raise
    if signals.have_come:
        raise KeyboardInterrupt
    return [crew.statuses[place] for place in range(len(configs))]


class _Crew:
    """The points of a sweep with `launch.parallel`: those that wait, those that run and those that
    have ended.
    """

    def __init__(self, configs: Sequence[RunConfig], progress: Progress, run_one: RunOne) -> None:
        self.machine = seats.of_machine(configs)
        self.waiting = dict(enumerate(configs))
        self._sizes = [seats.size_of(config) for config in configs]
        self.running: dict[Future[str], _Running] = {}
        self.statuses: dict[int, str] = {}
        self._most = min(_asked(configs), len(self.machine.cores))
        self._progress, self._run_one = progress, run_one
        self._at_work: list[threading.Event] = []

    def start_what_fits(self, pool: ThreadPoolExecutor, signals: Signals) -> None:
        free = self.machine.without(one.seats for one in self.running.values())
        for place, config in list(self.waiting.items()):
            if signals.have_come or len(self.running) >= self._most or not free.cores:
                return
            own = free.first(self._sizes[place])
            if own is None:
                continue
            if self._is_over(place, config):
                del self.waiting[place]
                continue
            del self.waiting[place]
            future = pool.submit(self._run_pinned, config, own)
            self.running[future] = _Running(place, own)
            free = free.without([own])

    def wait(self, signals: Signals) -> None:
        """Wait a short time for a point to end, and store the status of each point that
        has ended.
        """
        for future in wait(self.running, _POLL_SECONDS, FIRST_COMPLETED).done:
            ended, error = self.running.pop(future), future.exception()
            self.statuses[ended.place] = future.result() if error is None else "failed"
            # Somebody asked only this point to stop: the sweep stops, too.
            if isinstance(error, KeyboardInterrupt) and not signals.have_come:
                signals.ask_all()
            if isinstance(error, Exception):
                _say_why(error)
        signals.look_after()

    def _is_over(self, place: int, config: RunConfig) -> bool:
        """Return True if a waiting point need not be started, because it has a result already or
        the search for one failed.

        A point with a result is skipped. A point whose search failed gets the status `failed`.
        """
        try:
            if not attempts.result_of(config):
                return False
            # This call skips the point, as it has a result.
            self.statuses[place] = self._run_one(config, self._progress, launch.launch)
        except Exception as error:  # must not end the other points
            self.statuses[place] = "failed"
            _say_why(error)
        return True

    def _run_pinned(self, config: RunConfig, own: Seats) -> str:
        # PR_SET_PDEATHSIG follows the thread: processes that a point starts are killed when this
        # thread ends, not when this process ends. So no point may leave a process for later use.
        own.take()
        return self._run_one(config, self._progress.beside(), self._launch)

    def _launch(self, config: RunConfig, paths: RunPaths, on_poll: Callable[[], None]) -> Outcome:
        """Launch a point, wait for its end, and note in its run folder if other points ran at the
        same time.
        """
        with self._among_others() as has_company:
            note = functools.cache(lambda: _note_company(paths))

            def poll() -> None:
                on_poll()
                if has_company.is_set():
                    note()

            return launch.launch(config, paths, poll)

    @contextmanager
    def _among_others(self) -> Iterator[threading.Event]:
        own = threading.Event()
        self._at_work.append(own)
        if len(self._at_work) > 1:
            for one in list(self._at_work):
                one.set()
        try:
            yield own
        finally:
            self._at_work.remove(own)


def _say_why(error: Exception) -> None:
    """Print the error that kept a point from running, with a traceback if the user cannot correct
    the cause.
    """
    if not isinstance(error, ConfigError | OSError | Newer | Damaged):
        traceback.print_exception(error)
    logger.error(f"bsweep: a point could not be run: {error!r}")


def _note_company(paths: RunPaths) -> None:
    write_json(paths.meta, {**read_meta(paths), "beside_others": True})
