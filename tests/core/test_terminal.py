"""What a command says beside its answer: log records and progress on standard error."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from bsweep.core import terminal

logger = terminal.logger("bsweep.core.of_a_test")
LONG = "bsweep: " + "[a] message, " * 40 + "\tends"


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
    usual = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with os.fdopen(write, "w") as unread:
        printed = subprocess.check_output([sys.executable, "-c", code], stderr=unread, env=usual)
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


def test_control_characters_are_escaped() -> None:
    shown = python(PROGRESS.replace("note {number}", "note \x1b[2J{number}"))
    assert shown.count("note \\u001b[2J") == 3
