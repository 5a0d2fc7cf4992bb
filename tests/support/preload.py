"""A library that stands before libc in processes of the tests: a clock that is wrong."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support.running import preloaded

_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static char set_by[4096];
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    if (!*set_by) {
        char host[256] = "";
        gethostname(host, sizeof host - 1);
        snprintf(set_by, sizeof set_by, "%s/clock.%s", FOLDER, host);
    }
    int failed = real(id, now), file = id == CLOCK_REALTIME ? open(set_by, O_RDONLY) : -1;
    char seconds[16] = "";
    if (file >= 0) {
        now->tv_sec += read(file, seconds, sizeof seconds - 1) > 0 ? atol(seconds) : 0;
        close(file);
    }
    return failed;
}
"""


def clock_of(folder: Path, host: str = "") -> Path:
    """The file that says by how many seconds a host's clock is ahead; without a name, this
    machine's.
    """
    return folder / f"clock.{host or platform.node()}"


def clock(folder: Path) -> dict[str, str]:
    """Variables of processes whose clock is ahead by what the file `clock_of` their host says."""
    clock_of(folder).write_text("0")
    variables = preloaded(folder / "clock.so", _CLOCK.replace("FOLDER", f'"{folder}"'))
    if not variables:
        pytest.skip("no C compiler")
    return variables
