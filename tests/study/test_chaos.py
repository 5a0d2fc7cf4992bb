"""A small sweep whose processes, disk and clock fail at random ends with the records of one that
was left in peace.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

import psutil
import pytest

from tests.launch.test_host_failures import cable, given
from tests.study.test_run import runs, summary
from tests.study.test_surviving import fill, mounted
from tests.support.running import (
    TINY,
    Fork,
    bsweep,
    forks,
    imported_first,
    on,
    popen,
    recorded,
    wait_for,
)
from tests.train.test_resume import records_of

pytestmark = pytest.mark.full

POINT = (
    *("epochs=60", "checkpoint_every=0.5s"),
    *(*TINY, "model=tiny_cnn", "precision=fp32", "channels_last=true", "num_workers=2"),
    *("optimizer.lr=0.02", "log_every_steps=5", "launch.stall_timeout_seconds=20"),
)
Sweep: TypeAlias = "Fork | subprocess.Popen[str]"
FULL_SECONDS = 1.5


@dataclass(frozen=True)
class Typed:
    """A sweep's command, and where it is typed."""

    desk: Path
    grid: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    host: str = ""
    """The host of scripts/hosts.sh where it is typed; empty for this machine."""

    def begin(self, study: str, output: IO[str] | None = None) -> Sweep:
        command = ("run", *self.grid, f"study={study}")
        if not self.host:
            return Fork("bsweep", *command, cwd=self.desk, env=self.env, has_forks=True)
        words = [*on(self.host), forks().bsweep, *command]
        return popen(words, self.desk, env=self.env, output=output)

    def finish(self, study: str) -> None:
        """Type the command until nothing is left to do, as an operator would; what failed by a
        strike is repeated once.
        """
        for _ in range(2):
            result = bsweep(
                *("run", *self.grid, f"study={study}", "launch.stall_timeout_seconds=300"),
                cwd=self.desk,
                env=self.env,
                prefix=on(self.host) if self.host else (),
                timeout=3600,
            )
            if result.returncode == 0:
                return
        raise AssertionError(result.stderr)


CLOCK = """
import pathlib, platform, time
plain, file = time.time, pathlib.Path(FOLDER, f"clock.{platform.node()}")
time.time = lambda: plain() + int(file.read_text() or 0)
"""


def clocks(folder: Path, **seconds: int) -> dict[str, str]:
    """Variables of processes whose host's clock is ahead by what the file `clock.HOST` says."""
    for host, ahead in seconds.items():
        (folder / f"clock.{host}").write_text(str(ahead))
    return imported_first(folder, CLOCK.replace("FOLDER", repr(str(folder))))


@pytest.mark.timeout(3600)
def test_a_sweep_that_is_struck_at_random_ends_as_one_left_in_peace(tmp_path: Path) -> None:
    grid = ("-m", "strategy=parameter_server,allreduce", "local_batch=4", *POINT)
    typed = Typed(tmp_path, grid, clocks(tmp_path, **{platform.node(): 0}))
    every = ("sweep", "disk", "clock", "dates", *KINDS)
    with mounted(tmp_path / "results", "32m"):
        check_as_in_peace(typed, *strike_sweeps(typed, random.Random(12), 12, every))


WITH = {
    "horovod": ("strategy=horovod",),
    "ddp": ("strategy=ddp",),
    "diloco": ("strategy=diloco", "optimizer=adamw_diloco"),
    "servers": ("strategy=parameter_server",),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("strategy", "two_points", "hosts"),
    [
        ("horovod", "compression=none,topk", ""),
        ("servers", "local_batch=4,8", ""),
        ("diloco", "strategy.sync_every=2,4", ""),
        ("horovod", "compression=none,topk", "h2:1,h1:1"),
    ],
)
def test_kills_at_random_leave_every_strategy_whole(
    up: Callable[..., dict[str, str]], tmp_path: Path, strategy: str, two_points: str, hosts: str
) -> None:
    grid = ("-m", *POINT, "local_batch=4", *WITH[strategy], two_points)
    if hosts:
        grid = (*grid, *given(up("2"), hosts))
    typed = Typed(tmp_path, grid, host="h1" if hosts else "")
    draw = random.Random(strategy)
    check_as_in_peace(typed, *strike_sweeps(typed, draw, 8, ("sweep", *KINDS)))


@pytest.mark.timeout(3600)
def test_two_hosts_sweep_one_study_at_once_through_kills(
    up: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """The clock of one is hours ahead."""
    up("2")
    env = clocks(tmp_path, h1=0, h2=5 * 3600)
    grid = ("-m", "strategy=allreduce,parameter_server", "local_batch=4,8", *POINT)
    both = [Typed(tmp_path, grid, env, host) for host in ("h1", "h2")]
    draw, struck, number = random.Random("clocks"), Counter[str](), 0
    while struck.total() < 4:
        sweeps = [typed.begin(f"s{number}") for typed in both]
        while any(sweep.poll() is None for sweep in sweeps):
            time.sleep(draw.uniform(0.2, 3))
            if struck.total() == 4:
                continue
            for place, typed in enumerate(both):
                if sweeps[place].poll():
                    sweeps[place] = typed.begin(f"s{number}")
            struck[strike(draw.choice(sweeps), tmp_path, draw, ("sweep", *KINDS))] += 1
            print(f"{time.strftime('%X')} s{number}: {dict(struck)}", flush=True)
        number += all(sweep.returncode == 0 for sweep in sweeps)
    check_as_in_peace(both[0], number, struck, is_resumed=None)  # few strikes meet a checkpoint


CUT_SECONDS = 20


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("strategy", "stall_seconds"), [("horovod", 12), ("ddp", 12), ("ddp", 300), ("servers", 300)]
)
def test_a_link_that_is_cut_for_a_while_costs_no_strategy_its_run(
    up: Callable[..., dict[str, str]], tmp_path: Path, strategy: str, stall_seconds: int
) -> None:
    stall = f"launch.stall_timeout_seconds={stall_seconds}"
    grid = (*POINT, stall, "local_batch=4", *WITH[strategy], *given(up("2"), "h1:1,h2:1"))
    typed = Typed(tmp_path, (*grid, "epochs=150"), host="h1")
    with (tmp_path / "said").open("w") as output:
        sweep = typed.begin("s0", output)
        wait_for_checkpoint(sweep, tmp_path)
        cable("cut", "h2")
        time.sleep(CUT_SECONDS)
        cable("join", "h2")
        end(sweep, tmp_path)
    printed = (tmp_path / "said").read_text()
    assert sweep.returncode == 0 or "host h2 is lost: " in printed, printed
    check_as_in_peace(typed, 0, Counter({"cut": 1}), is_resumed=sweep.returncode != 0)


def strike_sweeps(
    typed: Typed, draw: random.Random, num_strikes: int, kinds: Sequence[str]
) -> tuple[int, Counter[str]]:
    """Strike sweep after sweep, and type each again; the last one's number, and what struck how
    often.
    """
    struck, number = Counter[str](), 0
    while struck.total() < num_strikes:
        sweep = typed.begin(f"s{number}")
        if not struck:
            wait_for_checkpoint(sweep, typed.desk)
        while struck.total() < num_strikes and not has_ended_at_random(sweep, typed.desk, draw):
            struck[strike(sweep, typed.desk, draw, kinds)] += 1
            print(f"{time.strftime('%X')} s{number}: {dict(struck)}", flush=True)
        end(sweep, typed.desk, waits=draw.random() < 0.5)
        number += sweep.returncode == 0  # what is left is struck in a sweep of its own
    return number, struck


def check_as_in_peace(
    typed: Typed, number: int, struck: Counter[str], is_resumed: bool | None = True
) -> None:
    """Finish the sweeps, and compare each with one that was left in peace."""
    desk = typed.desk
    for study in (*(f"s{each}" for each in range(number + 1)), "whole"):
        typed.finish(study)
    whole = [records_of(paths) for paths in runs(desk, "whole")]
    assert whole
    for each in range(number + 1):
        ours = runs(desk, f"s{each}")
        assert [records_of(paths) for paths in ours] == whole, struck
        assert all(summary(paths)["status"] == "completed" for paths in ours)
        assert all(0 < summary(paths)["wall_seconds"] < 3600 for paths in ours), (
            "also where the clock was set back"
        )
        assert not list((desk / f"results/s{each}").glob(".team.*"))
        of_all = [start for paths in ours for start in recorded(paths.folder, "start")]
        starts = [start["start_seconds"] for start in of_all]
        assert all(0 < seconds < 3600 for seconds in starts), starts
    events = [event for paths in runs(desk, "s0") for event in recorded(paths.folder, "event")]
    if is_resumed is not None:
        assert any(one["event"] == "resumed" for one in events) == is_resumed, struck
    print(f"{struck.total()} strikes in {number + 1} sweeps: {dict(struck)}")


def wait_for_checkpoint(sweep: Sweep, desk: Path) -> None:
    """Wait until a run has something to go on from."""
    wait_for(lambda: [*desk.glob("results/*/*/checkpoint/*/complete.json")], sweep)


def has_ended_at_random(sweep: Sweep, desk: Path, draw: random.Random) -> bool:
    """Wait for a moment, mostly for one while workers train; whether the sweep has ended by
    then.
    """
    if draw.random() < 0.7:
        while sweep.poll() is None and not any(KINDS["worker"](one) for one in below(desk)):
            time.sleep(0.1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        sweep.wait(draw.uniform(0.2, 3))
    return sweep.returncode is not None


def strike(sweep: Sweep, desk: Path, draw: random.Random, kinds: Sequence[str]) -> str:
    """Have something of these kinds go wrong; what it was."""
    started = {kind: [p for p in below(desk) if is_so(p)] for kind, is_so in KINDS.items()}
    kind = draw.choice([kind for kind in kinds if started.get(kind, True)])
    seconds = draw.choice([-86_400, 86_400])
    if kind == "disk":
        filler = fill(desk / "results")
        time.sleep(FULL_SECONDS)
        filler.unlink()
    elif kind == "clock":
        (desk / f"clock.{platform.node()}").write_text(str(seconds))
    elif kind == "dates":
        for folder, _, names in os.walk(desk / "results"):  # some vanish meanwhile
            for name in names:
                with contextlib.suppress(OSError):
                    os.utime(f"{folder}/{name}", (time.time() + seconds,) * 2)
    else:
        victim = sweep.pid if kind == "sweep" else draw.choice(started[kind]).pid
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.kill(victim, signal.SIGKILL)
    return kind


def below(desk: Path) -> list[psutil.Process]:
    """What a sweep has started: its launchers and their processes are told by the paths on their
    command lines.
    """
    found = psutil.process_iter(["cmdline", "environ"])
    return [one for one in found if any(str(desk) in word for word in one.info["cmdline"] or ())]


def rank_of(process: psutil.Process) -> str | None:
    variables = process.info["environ"] or {}
    return variables.get("HOROVOD_RANK", variables.get("RANK"))


KINDS: dict[str, Callable[[psutil.Process], bool]] = {
    "launcher": lambda one: rank_of(one) is None,
    "worker": lambda one: rank_of(one) in ("0", "1"),
    "server": lambda one: rank_of(one) == "2",
}


def end(sweep: Sweep, desk: Path, waits: bool = True) -> None:
    """Wait for a sweep and, unless an operator would not, for all that it started: what a kill
    leaves behind has to end by itself.
    """
    try:
        sweep.wait(300)
        wait_for(lambda: not (waits and below(desk)), seconds=120, said=lambda: str(below(desk)))
    finally:
        sweep.kill()
