"""What a command says beside its answer: log records and progress on standard error."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import logging.config
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from bsweep.core import terminal

logger = terminal.logger("bsweep.core.of_a_test")
LONG = "bsweep: " + "[a] message, " * 40 + "\tends"


@pytest.fixture(autouse=True)
def _kept_logging() -> Iterator[None]:
    """Leave the loggers of other tests enabled."""
    every = logging.root.manager.loggerDict.values()
    enabled = [one for one in every if isinstance(one, logging.Logger) and not one.disabled]
    yield
    for one in enabled:
        one.disabled = False


def test_another_librarys_configuration_mutes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    roots = logging.root.handlers[:]
    try:
        logging.config.dictConfig({"version": 1})
    finally:
        logging.root.handlers[:] = roots
    assert logging.getLogger("bsweep.core.of_a_test").disabled
    logger.info("timed")
    assert capsys.readouterr().err == "timed\n"


def test_each_record_is_shown_once_however_often_a_command_began(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = logging.NullHandler()
    package = logging.getLogger("bsweep")
    package.addHandler(own)
    for _ in range(3):
        terminal.set_up_logging()
    names = [one.get_name() for one in package.handlers]
    assert names.count("bsweep") == 1
    assert own in package.handlers
    package.removeHandler(own)
    elsewhere = io.StringIO()
    root = logging.StreamHandler(elsewhere)
    logging.root.addHandler(root)
    try:
        logger.warning("once")
    finally:
        logging.root.removeHandler(root)
    assert capsys.readouterr().err == "once\n"
    assert not elsewhere.getvalue()


def test_a_message_in_a_file_is_as_it_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    logger.error(LONG)
    logger.error("100 % of 'it'")
    assert capsys.readouterr().err == f"{LONG}\n100 % of 'it'\n"
    redirected = io.StringIO()
    with contextlib.redirect_stderr(redirected):
        logger.error(LONG)
    assert redirected.getvalue() == f"{LONG}\n"


def test_a_stderr_that_nobody_reads_ends_nothing() -> None:
    code = (
        "import os; from bsweep.core import terminal; terminal.set_up_logging()\n"
        "terminal.logger('bsweep.x').warning('lost')\n"
        "from bsweep.study.progress import Progress; Progress(1).say('lost, too'); print('answer')"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as unread:
        printed = subprocess.check_output([sys.executable, "-c", code], stderr=unread)
    assert printed == b"answer\n"


def python(code: str) -> str:
    """What Python code writes to standard error, without a command and without pytest."""
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stderr


def test_without_a_command_warnings_are_shown_and_rich_is_not_imported() -> None:
    code = (
        "import sys; from bsweep.core import terminal; logger = terminal.logger('bsweep.x')\n"
        "logger.info('a note'); logger.warning('bsweep: in doubt')\n"
        "assert 'rich' not in sys.modules"
    )
    assert python(code) == "bsweep: in doubt\n"


PROGRESS = """
import sys
from bsweep.core import terminal
from bsweep.data.pictures import with_progress
terminal.set_up_logging()
logger = terminal.logger("bsweep.x")
for number in with_progress(range(3), "reading all", 3):
    logger.info(f"note {number} " + "x" * 100)
logger.info("the end")
"""


def on_terminal(code: str, **variables: str) -> str:
    """What Python code shows on a terminal of 80 columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "TERM": "xterm", **variables}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=its, env=env)
    os.close(its)
    shown = b""
    with contextlib.suppress(OSError):  # the end, on Linux
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.wait(60) == 0
    return shown.decode().replace("\r\n", "\n")


def test_records_come_above_the_progress_on_a_terminal() -> None:
    shown = on_terminal(PROGRESS)
    for number in range(3):
        assert f"note {number} {'x' * 100}\n" in shown
    assert shown.endswith("reading all: 3 of 3\nthe end\n")
    assert shown.index("0%") < shown.index("note 0"), "a display was shown from the start"
    assert shown.index("note 2") < shown.rindex("%"), "and below the last note"
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor is shown again"
    assert "\x1b[3" in shown
    assert "\x1b[3" not in on_terminal(PROGRESS, NO_COLOR="1")


def test_a_dumb_terminal_and_a_pipe_get_lines_alone() -> None:
    lines = [f"note {number} {'x' * 100}" for number in range(3)]
    expected = [*lines, "reading all: 3 of 3", "the end"]
    assert on_terminal(PROGRESS, TERM="dumb").splitlines() == expected
    assert python(PROGRESS).splitlines() == expected


def test_a_reading_that_fails_leaves_the_terminal_as_it_was() -> None:
    code = PROGRESS.replace("    logger.info", "    break; logger.info")
    shown = on_terminal(code)
    assert shown.endswith("the end\n")
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")


def test_control_characters_are_escaped() -> None:
    shown = python(PROGRESS.replace("note {number}", "note \x1b[2J{number}"))
    assert shown.count("note \\u001b[2J") == 3
