"""What holds for every run of the tests: where what they start together lies, and an end that
leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bsweep.config import slurm
from bsweep.core import terminal
from tests.report.browser import browser
from tests.support.running import HOSTS, Forks

__all__ = ["browser"]  # a fixture, of which a process can have one

_LONGEST = (
    # Not long, but in a process that has run many other files its downloads can crash, which ends
    # all of pytest-xdist's work in a wait.
    "data",
    "interactive",
    "slurm",
    "resume",
    "run",
    "probe",
    "docs",
    "equivalence",
    "host_failures",
    "checkpoint",
    "plots",
    "experiments",
    "memory",
    "watch",
    "recommend",
    "parallel",
    "report",
    "hosts",
    "predict",
    "analysis",
    "noise",
    "operating",
    "team",
    "chaos",
    "surviving",
    "setup",
    "adding",
    "overrides",
    "readers",
    "diloco",
    "notebook",
    "trackers",
)


_SHARED = pytest.StashKey[Forks]()


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are imported: nothing of that is garbage
    # Before torch is imported, here and in what is started: threads that wait for each other's part
    # of a tiny step would otherwise turn in circles, on cores that other processes of the tests
    # have to share.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    # Fixtures end what they began, and so do processes, to which a shell's background job would
    # pass on a deaf SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has all of them ignore
    forget_allocation()
    if config.getoption("numprocesses", None) and not _is_one_of_several(config):
        folder = tempfile.mkdtemp(prefix="bsweep-forks")  # short, as a socket's path has to be
        os.environ["BSWEEP_TEST_FORKS"] = folder
        config.stash[_SHARED] = Forks(Path(folder))  # it imports while the others collect


def pytest_unconfigure(config: pytest.Config) -> None:
    if _SHARED in config.stash:
        config.stash[_SHARED].end()
        shutil.rmtree(os.environ["BSWEEP_TEST_FORKS"])


def _is_one_of_several(config: pytest.Config) -> bool:
    """Return True in a process in which pytest-xdist runs a part of the tests."""
    return hasattr(config, "workerinput")


def forget_allocation() -> None:
    """Have tests that are run in an allocation of SLURM's see none but their own."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "SLURMD_")) or name == slurm.HOSTS:
            del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "nightly" not in config.option.markexpr:
        items[:] = [item for item in items if "nightly" not in item.keywords]
    # Files of minutes come first: of two processes, one that began such a file at the end would
    # work on alone.
    first = {f"test_{name}": place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))


def pytest_collection_finish() -> None:
    gc.freeze()  # a collection during a test looks through that test's objects alone
    gc.enable()


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    """A function that brings hosts up, and returns the overrides that it tells its user to type."""
    monkeypatch.setenv("BSWEEP_HOSTS_PREFIX", f"test{os.getpid()}")

    def hosts_up(*arguments: str) -> dict[str, str]:
        result = subprocess.run(
            [HOSTS, "up", *arguments], capture_output=True, text=True, check=False
        )
        if result.returncode == 77:
            pytest.skip(result.stderr.strip())
        assert result.returncode == 0, result.stderr
        return dict(word.split("=", 1) for word in shlex.split(result.stdout) if "=" in word)

    yield hosts_up
    subprocess.run([HOSTS, "down"], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def _log_records() -> None:
    """Have log records on standard error, as a command has, where a test calls what one consists
    of.
    """
    terminal.set_up_logging()


@pytest.fixture(autouse=True, scope="session")
def _processes(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    if not _is_one_of_several(pytestconfig):
        os.environ["BSWEEP_TEST_FORKS"] = str(tmp_path_factory.mktemp("forks"))
    yield
    left = psutil.Process().children(recursive=True)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(left, timeout=10)[1]:
        process.kill()
