"""The environment variables that a launcher passes to workers and servers, on command lines or in a
private file.

Every user of a host can read what is on a command line, and the name of a variable does not tell
whether its value is secret. Of its own variables, bsweep therefore passes on only those that are
known to be needed and those that `launch.environment` names. Except for the few that launchers need
themselves, these are passed in a file of the run folder. Only its owner can read that file, and it
is removed once all processes have read it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bsweep.config import slurm
from bsweep.config.launch import ProcessesConfig
from bsweep.core import network
from bsweep.runlog.files import RunPaths

_OPEN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TERM|TZ|TMPDIR|SSH_AUTH_SOCK|VIRTUAL_ENV"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|DYLD_\w+|SLURM_CONF|SLURM_JOB_ID"
    r"|PYTHON(PATH|SAFEPATH|HOME|USERBASE|NOUSERSITE|DONTWRITEBYTECODE)"
)
"""The pattern for names of environment variables that launcher commands such as horovodrun need
themselves. Horovodrun writes all of its own environment on the workers' command lines, so these
variables are visible to every user.
"""

_KNOWN = re.compile(
    r"(LD|CUDA|CUBLAS|CUBLASLT|CUDNN|NVIDIA|NCCL|OMP|GOMP|KMP|MKL|OPENBLAS|NUMEXPR|ONEDNN|DNNL|ATEN|TORCH|PYTORCH)_\w+"
    r"|(TORCHDYNAMO|TORCHINDUCTOR|TRITON|GLOO|HOROVOD|UCX|FI|MALLOC|BSWEEP|XDG)_\w+"
    r"|PYTHON\w*|HF_HOME|CONDA_PREFIX"
)

_OWN_GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def in_the_open(parent: Mapping[str, str], launch: ProcessesConfig) -> dict[str, str]:
    """Return those environment variables of `parent` that may appear on command lines, where all
    users of a host can read them.
    """
    return {
        name: value
        for name, value in parent.items()
        if _OPEN.fullmatch(name) and name not in launch.environment
    }


def by_file(parent: Mapping[str, str], launch: ProcessesConfig) -> dict[str, str]:
    """Return the environment variables that workers and servers read from a private file, where
    other users cannot see them.
    """
    shown = in_the_open(parent, launch)
    # A launcher that gives GPUs gives those of each node. The parent's value would hide them.
    left_out = _OWN_GPUS if launch.gives_gpus else ()
    hidden = {
        name: value
        for name, value in parent.items()
        if name in launch.environment
        or (_KNOWN.fullmatch(name) and name not in shown and name not in left_out)
    }
    if launch.named_hosts:
        hidden[slurm.HOSTS] = launch.named_hosts
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if launch.network_interface:
            hidden[name] = launch.network_interface
        elif not launch.named_hosts and (loopback := network.loopback()):
            hidden.setdefault(name, loopback)  # nothing has to leave this machine
    return hidden


def write(path: Path, variables: Mapping[str, str]) -> None:
    """Write environment variables to a shell script that only the owner of the file may read.

    The script also sets the umask to that of this process; processes that an sshd starts would
    otherwise have the sshd's umask. Variables of Horovod that are set where the script runs, such
    as the rank, keep their values.
    """
    # Python can only read the umask by changing it, which other threads would notice.
    umask = subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True, check=True).stdout
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    lines = [f"umask {umask}"]
    for name, value in variables.items():
        unless_set = f'[ "${{{name}+set}}" ] || ' if name.startswith("HOROVOD_") else ""
        lines.append(f"{unless_set}export {name}={shlex.quote(value)}\n")
    path.write_text("".join(lines))


def remove_when_read(paths: RunPaths, ranks: Sequence[int]) -> None:
    """Remove a run's file of environment variables if all processes of the run have read the file.

    The sign is that each process has opened its output file, which it does only after it has read
    the variables.
    """
    try:
        written = paths.environment.stat().st_mtime
        begun = [(paths.rank_logs(rank) / "stdout").stat().st_mtime >= written for rank in ranks]
    except FileNotFoundError:
        return
    if all(begun):
        paths.environment.unlink(missing_ok=True)
