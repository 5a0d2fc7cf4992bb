"""Other hosts, as ssh reaches them, and what it says where it does not."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from bsweep.config import ProcessesConfig, SshConfig
from bsweep.launch import environment

CONNECT_SECONDS = 10
_SIGNS = 3  # that may be missing before a host counts as gone
_LONGEST_SECONDS = 15

EXIT_CODE = 255
"""With which ssh ends where it was not the command there that failed."""


def is_here(host: str) -> bool:
    return host in (
        "localhost",
        "127.0.0.1",
        socket.gethostname(),
        os.environ.get("SLURMD_NODENAME"),
    )


def as_others_say(host: str) -> str:
    """Return a host's name as it is known on the others."""
    return socket.gethostname() if host in ("localhost", "127.0.0.1") else host


def options(launch: ProcessesConfig) -> list[str]:
    """Ask nobody for a password, and give up a host that is silent, well within the stall
    time-out.
    """
    return [
        *("-o", "BatchMode=yes"),
        *("-o", "StrictHostKeyChecking=no"),
        *("-o", f"ConnectTimeout={CONNECT_SECONDS}"),
        *("-o", f"ServerAliveInterval={interval_seconds(launch)}"),
        *("-o", f"ServerAliveCountMax={_SIGNS}"),
    ]


def interval_seconds(launch: ProcessesConfig) -> int:
    """Return how often a silent host is asked for a sign.

    So much later than another may it be given up that was cut off with it.
    """
    return max(1, min(_LONGEST_SECONDS, launch.stall_timeout_seconds // (2 * _SIGNS)))


def command(host: str, launch: SshConfig, script: str) -> list[str]:
    """Return what runs a line of sh on a host, whatever shell its user has there."""
    where = ["-p", str(launch.ssh_port)] if launch.ssh_port else []
    if launch.ssh_identity_file:
        where += ["-i", str(identity(launch.ssh_identity_file))]
    return ["ssh", "-T", *options(launch), *where, "--", host, f"exec sh -c {shlex.quote(script)}"]


class OverSsh:
    """A launcher that reaches other hosts by ssh."""

    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        """Return what runs words on a host, in the folder where this process is."""
        assert isinstance(launch, SshConfig), launch
        return command(host, launch, script(environment.in_the_open(os.environ, launch), words))


def script(env: Mapping[str, str], words: Sequence[str]) -> str:
    """Return a line of sh that runs words in the folder where this process is, with variables that
    anybody may read.
    """
    variables = [f"{name}={value}" for name, value in env.items()]
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(['env', *variables, *words])}"


def identity(path: str) -> Path:
    return Path(path).expanduser().absolute()


def reason(said: str) -> str | None:
    """Return the line in which ssh says what is wrong, of all that it and others said; None where
    there is none.
    """
    lines = [re.sub(r"^\[\d+\]<\w+>:", "", line).strip() for line in said.splitlines()]
    found = [line for line in lines if _ERROR.search(line)]
    return found[-1].removeprefix("ssh: ").rstrip(".") if found else None


_ERROR = re.compile(
    r"^ssh: |^Timeout, server |client_loop: |kex_exchange_identification|^Connection "
    r"(closed|reset) by"
    r"|^Connection to .* closed by remote|Permission denied \(|Host key verification failed|HOST "
    r"IDENTIFICATION HAS"
    r"|^Bad |^Could not resolve|UNPROTECTED PRIVATE KEY|Broken pipe$|^Too many auth|^Read from "
    r"remote host"
)


def remedy(why: str) -> str:
    """Return what to do about a reason of ssh's."""
    return next((remedy for sign, remedy in _REMEDIES.items() if re.search(sign, why)), _SEE)


_SEE = "try `ssh HOST true` by hand"
_REMEDIES = {
    "Permission denied|Too many auth": (
        "let this key in there (ssh-copy-id), or name one that opens it: launch.ssh_identity_file"
    ),
    "Connection refused": "start an sshd there, or give its port: launch.ssh_port",
    "SLURM|srun": "see what SLURM says of it, scontrol show node HOST",
    "resolve": "give its address, or a name that this machine knows",
    "timed out|No route|unreachable|not responding|Broken pipe|closed by|reset by": (
        "see that the host runs, and that the network lets ssh through"
    ),
    "Host key|IDENTIFICATION": (
        "if the host was set up anew, forget its old key: ssh-keygen -R HOST"
    ),
}
