"""The ssh commands that reach other hosts, and the meaning of ssh's error messages."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

from bsweep.config.hosts import same_name
from bsweep.config.launch import ProcessesConfig, SshConfig
from bsweep.launch import environment

CONNECT_SECONDS = 10
_SIGNS = 3  # how many signs of life may be missing before a host counts as gone
_LONGEST_SECONDS = 15

EXIT_CODE = 255
"""The exit code of ssh if ssh itself failed, rather than the command on the host."""


def is_here(host: str) -> bool:
    here = "localhost", "127.0.0.1", socket.gethostname(), os.environ.get("SLURMD_NODENAME", "")
    return same_name(host) in map(same_name, here)


def options(launch: SshConfig) -> list[str]:
    """Return the options for ssh commands: first those of the user (`launch.ssh_options`), then
    bsweep's own. Of an option given twice, ssh uses the first value.

    By bsweep's options, ssh asks for no password, accepts a host that it does not know yet but not
    another key of one that it knows, and gives up a host that has left three requests for a sign of
    life unanswered.
    """
    values = [
        *launch.ssh_options,
        "BatchMode=yes",
        "StrictHostKeyChecking=accept-new",
        f"ConnectTimeout={CONNECT_SECONDS}",
        f"ServerAliveInterval={interval_seconds(launch)}",
        f"ServerAliveCountMax={_SIGNS}",
    ]
    return [word for option in values for word in ("-o", option)]


def interval_seconds(launch: ProcessesConfig) -> int:
    """Return after how many seconds of silence ssh asks a host for a sign of life.

    Of two hosts that were cut off together, ssh may give up one later than the other by up to this
    time.
    """
    return max(1, min(_LONGEST_SECONDS, launch.stall_timeout_seconds // (2 * _SIGNS)))


class OverSsh:
    """A mixin class for launchers that run commands on other hosts over ssh."""

    def on_host(self, host: str, launch: ProcessesConfig, words: Sequence[str]) -> list[str]:
        """Return the ssh command that runs a given command on a host, in this process's working
        folder, whatever the user's login shell there is.
        """
        assert isinstance(launch, SshConfig), launch
        variables = environment.in_the_open(os.environ, launch)
        env = ["env", *(f"{name}={value}" for name, value in variables.items())]
        script = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join([*env, *words])}"
        where = ["-p", str(launch.ssh_port)] if launch.ssh_port else []
        if launch.ssh_identity_file:
            where += ["-i", str(identity(launch.ssh_identity_file))]
        shell = f"exec sh -c {shlex.quote(script)}"
        return ["ssh", "-T", *options(launch), *where, "--", host, shell]


def identity(path: str) -> Path:
    return Path(path).expanduser().absolute()


def reason(printed: str) -> str | None:
    """Return an error message of ssh from a text that programs printed, or None if there is none.

    It is the last one, unless a host key has changed: then the message says so, and contains the
    command that forgets the known key.

    Args:
        printed: The output of ssh and of other programs.
    """
    lines = [re.sub(r"^\[\d+\]<\w+>:", "", line).strip() for line in printed.splitlines()]
    if changed := _CHANGED_KEY.search("\n".join(lines)):
        forget = shlex.join(["ssh-keygen", "-f", changed[1], "-R", changed[2]])
        return f"Host key for {changed[2]} has changed (`{forget}` forgets the known one)"
    errors = [line for line in lines if _ERROR.search(line)]
    return errors[-1].removeprefix("ssh: ").rstrip(".") if errors else None


_CHANGED_KEY = re.compile(
    r"(?ms)^Offending \S+ key in ([^\n]+):\d+$.*^Host key for (\S+) has changed"
)
_ERROR = re.compile(
    r"^ssh: |^command-line|^Timeout, server |client_loop: |kex_exchange_identification|^Bad "
    r"|^Connection (closed|reset) by|^Connection to .* closed by remote|Permission denied \("
    r"|Host key verification failed|HOST IDENTIFICATION HAS|^Could not resolve|^Too many auth"
    r"|UNPROTECTED PRIVATE KEY|Broken pipe$|^Read from remote host"
)


def remedy(why: str) -> str:
    """Return advice for the user on an error message of ssh or srun."""
    return next((remedy for sign, remedy in _REMEDIES.items() if re.search(sign, why)), _SEE)


_SEE = "try `ssh HOST true` by hand"
_REMEDIES = {
    "Permission denied|Too many auth": "add this key there (ssh-copy-id), or name a key that opens "
    "the host: launch.ssh_identity_file",
    "Connection refused": "start an sshd there, or give its port: launch.ssh_port",
    "SLURM|srun": "ask SLURM about the node: scontrol show node HOST",
    "resolve": "give its address, or a name that this machine knows",
    "timed out|No route|unreachable|not responding|Broken pipe|closed by|reset by": "make sure "
    "that the host runs and that the network lets ssh through",
    "Host key for .* has changed": "forget the known key only if you know why it has changed. "
    "Otherwise another machine may be posing as the host. If the keys of your hosts change often, "
    "launch.ssh_options=[StrictHostKeyChecking=no] accepts any key",
    "command-line": "correct launch.ssh_options; `man ssh_config` lists the options",
}
