"""What holds for every run of the tests: where what they start together lies, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil
import pytest


def pytest_configure() -> None:
    # Fixtures end what they began, and so do processes, to which a shell's background job would pass on a deaf SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["BSWEEP_TEST_FORKS"] = str(tmp_path_factory.mktemp("forks"))
    yield
    left = psutil.Process().children(recursive=True)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(left, timeout=10)[1]:
        process.kill()
