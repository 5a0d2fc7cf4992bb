"""A small sweep whose processes, disk and clock fail at random ends with the records of one that
was left in peace.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

from bsweep.runlog.reading import read_records
from tests.study.test_run import runs, summary
from tests.support.running import TINY, Fork, bsweep, popen, tool
from tests.train.test_resume import records_of

GRID = (
    *(
        "-m",
        "strategy=parameter_server,allreduce",
        "local_batch=4",
        "epochs=60",
        "checkpoint_every=0.5s",
    ),
    *(
        *TINY,
        "model=tiny_cnn",
        "precision=fp32",
        "channels_last=true",
        "num_workers=2",
        "optimizer.lr=0.02",
    ),
    *("log_every_steps=5", "launch.stall_timeout_seconds=20"),
)
Sweep: TypeAlias = "Fork | subprocess.Popen[str]"
DISK_BYTES = 32 << 20
FULL_SECONDS = 1.5


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Path]:
    """A folder whose results lie on a small disk of their own, where that can be had."""
    results = tmp_path / "results"
    results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(results)]
    has_disk = (
        os.geteuid() == 0
        and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
    yield tmp_path
    if has_disk:
        subprocess.run(["umount", "--lazy", str(results)], check=True)


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now), file = id == CLOCK_REALTIME ? open(SET_BY, O_RDONLY) : -1;
    char seconds[16] = "";
    if (file >= 0) {
        now->tv_sec += read(file, seconds, sizeof seconds - 1) > 0 ? atol(seconds) : 0;
        close(file);
    }
    return failed;
}
"""


def with_clock(desk: Path) -> dict[str, str]:
    """Variables of processes whose clock is ahead by what the desk's file `clock` says."""
    library, source = desk / "clock.so", desk / "clock.c"
    source.write_text(CLOCK)
    compile_it = [
        "cc",
        "-shared",
        "-fPIC",
        f'-DSET_BY="{desk / "clock"}"',
        "-o",
        str(library),
        str(source),
        "-ldl",
    ]
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    subprocess.run(compile_it, check=True)
    (desk / "clock").write_text("0")
    return {"LD_PRELOAD": str(library)}


@pytest.mark.slow
@pytest.mark.parametrize("num_strikes", [2, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_sweep_that_is_struck_at_random_ends_as_one_left_in_peace(
    desk: Path, num_strikes: int
) -> None:
    draw, struck, number = random.Random(num_strikes), Counter[str](), 0
    # Forks, which are faster, have the clock that is there.
    env = with_clock(desk) if num_strikes > 4 else {}
    while struck.total() < num_strikes:
        sweep = begin(desk, f"s{number}", env)
        # by what few strikes at random may leave out: a server's end, in a run that then goes on
        if not struck:
            wait_for_server_that_saved(sweep, desk)
            struck[strike(sweep, desk, draw, "server")] += 1
        while struck.total() < num_strikes and not has_ended_at_random(sweep, desk, draw):
            struck[strike(sweep, desk, draw)] += 1
        end(sweep, desk)
        number += sweep.returncode == 0  # what is left is struck in a sweep of its own
    for study in (*(f"s{each}" for each in range(number + 1)), "whole"):
        assert finish(desk, study, env) == 0, struck
    whole = [records_of(paths) for paths in runs(desk, "whole")]
    for each in range(number + 1):
        ours = runs(desk, f"s{each}")
        assert [records_of(paths) for paths in ours] == whole, struck
        assert all(summary(paths)["status"] == "completed" for paths in ours)
        assert all(summary(paths)["wall_seconds"] > 0 for paths in ours), (
            "also where the clock was set back"
        )
        assert not list((desk / f"results/s{each}").glob(".team.*"))
    events = [
        record
        for paths in runs(desk, "s0")
        for record in read_records(paths.metrics)[0]
        if "event" in record
    ]
    assert any(one["event"] == "resumed" for one in events), struck
    print(f"{struck.total()} strikes in {number + 1} sweeps: {dict(struck)}")


def begin(desk: Path, study: str, env: dict[str, str]) -> Sweep:
    command = ("run", *GRID, f"study={study}")
    return (
        popen([tool("bsweep"), *command], desk, env=env)
        if env
        else Fork("bsweep", *command, cwd=desk, has_forks=True)
    )


def wait_for_server_that_saved(sweep: Sweep, desk: Path) -> None:
    """Wait until a run on a parameter server has something to go on from."""
    while not list(desk.glob("results/*/*parameter_server*/checkpoint/*/complete.json")):
        assert sweep.poll() is None, "it has ended"
        time.sleep(0.05)


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


def strike(sweep: Sweep, desk: Path, draw: random.Random, wanted: str | None = None) -> str:
    """Have something go wrong, at random unless something is wanted; what it was."""
    started = {kind: [p for p in below(desk) if is_so(p)] for kind, is_so in KINDS.items()}
    there = {
        "disk": os.path.ismount(desk / "results"),
        "clock": (desk / "clock").exists(),
        "dates": True,
        **started,
    }
    kind = wanted or draw.choice(["sweep", *(kind for kind, is_there in there.items() if is_there)])
    seconds = draw.choice([-86_400, 86_400])
    if kind == "disk":
        fill(desk / "results/filler")
    elif kind == "clock":
        (desk / "clock").write_text(str(seconds))
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


def fill(filler: Path) -> None:
    """Leave no space for a moment."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 14))
    time.sleep(FULL_SECONDS)
    filler.unlink()


def below(desk: Path) -> list[psutil.Process]:
    """What a sweep has started: its launchers and their processes are told by the paths on their
    command lines.
    """
    found = psutil.process_iter(["cmdline", "environ"])
    return [one for one in found if any(str(desk) in word for word in one.info["cmdline"] or ())]


KINDS: dict[str, Callable[[psutil.Process], bool]] = {
    "launcher": lambda one: "RANK" not in (one.info["environ"] or ()),
    "worker": lambda one: (one.info["environ"] or {}).get("RANK") in ("0", "1"),
    "server": lambda one: (one.info["environ"] or {}).get("RANK") == "2",
}


def end(sweep: Sweep, desk: Path) -> None:
    """Wait for a sweep, and for all that it started: what a kill leaves behind has to end by
    itself.
    """
    try:
        sweep.wait(240)
        ends = time.monotonic() + 60
        while left := below(desk):
            assert time.monotonic() < ends, left
            time.sleep(0.1)
    finally:
        sweep.kill()


def finish(desk: Path, study: str, env: dict[str, str]) -> int:
    """Type the command until nothing is left to do, as an operator would; what failed by a strike
    is repeated once.
    """
    for _ in range(2):
        result = bsweep("run", *GRID, f"study={study}", cwd=desk, env=env, fresh=bool(env))
        if result.returncode == 0:
            break
    assert result.returncode == 0, result.stderr
    return result.returncode
