"""Which of the parent's variables processes get, and how: what is on a command line, every user of
a host can read.

Names do not tell a secret. So nothing is passed but what is known to be needed, and what
`launch.environment` names; and that in a file of the run folder, which its owner alone can read and
which is gone as soon as it was read.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from bsweep.config import ProcessesConfig, slurm
from bsweep.runlog import RunPaths

_OPEN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TERM|TZ|TMPDIR|SSH_AUTH_SOCK|VIRTUAL_ENV|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|DYLD_\w+|PYTHON(PATH|HOME|USERBASE|NOUSERSITE|DONTWRITEBYTECODE)|HOROVOD_\w+"
    r"|SLURM_CONF|SLURM_JOB_ID"
)
"""What launchers need themselves: horovodrun writes all of its own environment on workers' command
lines.
"""

_KNOWN = re.compile(
    r"(LD|CUDA|CUBLAS|CUBLASLT|CUDNN|NVIDIA|NCCL|OMP|GOMP|KMP|MKL|OPENBLAS|NUMEXPR|ONEDNN|DNNL|ATEN|TORCH|PYTORCH)_\w+"
    r"|(TORCHDYNAMO|TORCHINDUCTOR|TRITON|GLOO|UCX|FI|MALLOC|BSWEEP|XDG)_\w+|PYTHON\w*|HF_HOME|CONDA_PREFIX"
)

_OWN_GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


own_gpus: ContextVar[str | None] = ContextVar("own_gpus", default=None)
"""The GPUs of the point that this thread runs, as CUDA_VISIBLE_DEVICES names them; None: all that
this process has.
"""


def missing(launch: ProcessesConfig) -> list[str]:
    """Return the variables that `launch.environment` names, and that are not set here."""
    return [name for name in launch.environment if name not in os.environ]


def in_the_open(parent: Mapping[str, str], launch: ProcessesConfig) -> dict[str, str]:
    """Return what may be seen, of launchers and on their command lines."""
    shown = {
        name: value
        for name, value in parent.items()
        if _OPEN.fullmatch(name) and name not in launch.environment
    }
    if launch.network_interface:
        shown["HOROVOD_GLOO_IFACE"] = launch.network_interface
    return shown


def by_file(parent: Mapping[str, str], launch: ProcessesConfig) -> dict[str, str]:
    """Return what processes get beside that."""
    shown = in_the_open(parent, launch)
    hidden = {
        name: value
        for name, value in parent.items()
        if name in launch.environment or (_KNOWN.fullmatch(name) and name not in shown)
    }
    if launch.gives_gpus:  # of each node its own, which the parent's would hide
        hidden = {
            name: value
            for name, value in hidden.items()
            if name not in _OWN_GPUS or name in launch.environment
        }
    if (gpus := own_gpus.get()) is not None:
        hidden["CUDA_VISIBLE_DEVICES"] = gpus
    if launch.named_hosts:
        hidden[slurm.HOSTS] = launch.named_hosts
    if launch.network_interface:
        hidden["GLOO_SOCKET_IFNAME"] = hidden["NCCL_SOCKET_IFNAME"] = launch.network_interface
    return hidden


def write(path: Path, variables: Mapping[str, str]) -> None:
    """Write what sh reads, and nobody else may."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(
        "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    )


def remove_when_read(paths: RunPaths, ranks: Sequence[int]) -> None:
    """Remove the file when each process has opened its output, which it does after it has read the
    file.
    """
    try:
        written = paths.environment.stat().st_mtime
        begun = [(paths.rank_logs(rank) / "stdout").stat().st_mtime >= written for rank in ranks]
    except FileNotFoundError:
        return
    if all(begun):
        paths.environment.unlink(missing_ok=True)
