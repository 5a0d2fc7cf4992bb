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
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bsweep.config import slurm
from bsweep.core import terminal
from tests.report.browser import browser
from tests.support.running import HOSTS, Forks, captured

__all__ = ["browser"]  # a fixture, of which a process can have one

_SHARED = pytest.StashKey[Forks]()
_QUICK_SECONDS = 3  # of processor time, the most that a quick test may take


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are imported: nothing of that is garbage
    # Before torch is imported, here and in what is started: threads that wait for each other's part
    # of a tiny step would otherwise turn in circles, on cores that other processes of the tests
    # have to share.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    _handle_signals()
    forget_allocation()
    file, os.environ["BSWEEP_TEST_SECONDS"] = tempfile.mkstemp(prefix="bsweep-seconds")
    os.close(file)
    if config.getoption("numprocesses", None) and not _is_one_of_several(config):
        folder = tempfile.mkdtemp(prefix="bsweep-forks")  # short, as a socket's path has to be
        os.environ["BSWEEP_TEST_FORKS"] = folder
        config.stash[_SHARED] = Forks(Path(folder))  # it imports while the others collect


def pytest_unconfigure(config: pytest.Config) -> None:
    Path(os.environ["BSWEEP_TEST_SECONDS"]).unlink()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not _is_one_of_several(config):
        num = {
            outcome: len(reporter.stats.get(outcome, ()))
            for outcome in ("passed", "failed", "error", "skipped", "deselected")
        }
        print(
            f"{num['passed'] + num['failed'] + num['error']} tests ran, {num['skipped']} could not "
            f"run here, {num['deselected']} were left out: scripts/test.sh --full runs all."
        )
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run all tests, not the quick ones alone")


@pytest.hookimpl(tryfirst=True)  # before a plug-in shuffles the cases, of which the first are quick
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("full"):
        return
    quick: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    num_cases = Counter[str]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        num_cases[function] += 1
        mark = item.get_closest_marker("full")
        is_quick = mark is None or num_cases[function] <= mark.kwargs.get("but", 0)
        (quick if is_quick else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    if _is_one_of_several(config):
        config.workeroutput["num_left_out"] = len(left_out)  # type: ignore[attr-defined]
    items[:] = quick


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Count in this process what the processes of pytest-xdist have left out: each counts all."""
    num = getattr(node, "workeroutput", {}).get("num_left_out", 0)
    if not node.config.pluginmanager.get_plugin("terminalreporter").stats.get("deselected"):
        node.config.hook.pytest_deselected(items=[SimpleNamespace()] * num)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _handle_signals()  # whatever the test before has left, such as a command that it called
    before = _processor_seconds()
    yield
    seconds = _processor_seconds() - before
    item.user_properties.append(("processor_seconds", seconds))
    if seconds > _QUICK_SECONDS and not item.config.getoption("full"):
        pytest.fail(
            f"it took {seconds:.1f} s of the processor: mark it `full`, or make it quicker than "
            f"{_QUICK_SECONDS} s."
        )


def _handle_signals() -> None:
    # Fixtures end what they began, and so do processes, to which a shell's background job would
    # pass on a deaf SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has all of them ignore
    # A command that just prints ends with its reader; a test's server must not.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _processor_seconds() -> float:
    """Return the processor time of this process and of all that it started and that have ended."""
    forked = Path(os.environ["BSWEEP_TEST_SECONDS"]).read_text().split()
    return sum(os.times()[:4]) + sum(map(float, forked))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    requires_all = os.environ.get("BSWEEP_REQUIRE_ALL") == "1"
    if report.skipped and requires_all and "gpu" not in item.keywords:
        report.outcome = "failed"
    return report


def pytest_collection_finish() -> None:
    gc.freeze()  # a collection during a test looks through that test's objects alone
    gc.enable()


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    """A function that brings hosts up, and returns the overrides that it tells its user to type."""
    monkeypatch.setenv("BSWEEP_HOSTS_PREFIX", f"test{os.getpid()}")

    def hosts_up(*arguments: str) -> dict[str, str]:
        result = captured([HOSTS, "up", *arguments])
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
