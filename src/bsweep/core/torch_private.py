"""The private names of torch that bsweep uses, each of which a version of torch may lack.

torch promises nothing about these names. All of them were seen in torch 2.6, 2.13 and 2.15. No
other module of bsweep names them. Torch is imported when a name is asked for, so that processes
without torch can import this module.
"""

from __future__ import annotations

import functools
import importlib
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from bsweep.core.torch_versions import TESTED

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

COMPILER = "torch._dynamo"
"""A module that torch's optimizers import when they are built, which takes seconds."""

NAMES = {
    "batchnorm": "torch.nn.modules.batchnorm:_BatchNorm",
    "dispatch_mode": "torch.utils._python_dispatch:TorchDispatchMode",
    "handler": "torch.distributed.elastic.rendezvous.static_tcp_rendezvous:StaticTCPRendezvous",
    "is_view": "torch:Tensor._is_view",
    "parse_endpoint": "torch.distributed.elastic.rendezvous.utils:parse_rendezvous_endpoint",
    "unscale": "torch:_amp_foreach_non_finite_check_and_unscale_",
    "update_scale": "torch:_amp_update_scale_",
}
"""Private names of torch, each as `module:name`, by the words that bsweep uses for them."""


@functools.cache  # each step asks for some
def private(name: str) -> Any:
    """Return a private class or function of the installed torch.

    Args:
        name: A key of `NAMES`.

    Raises:
        ValueError: If the installed torch does not have it.
    """
    import torch

    module, _, path = NAMES[name].partition(":")
    try:
        return attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError):
        raise ValueError(
            f"this needs {module}.{path}, which torch {torch.__version__} lacks: install a tested "
            f"version of torch ({', '.join(TESTED)})"
        ) from None


def is_of_accelerator(error: BaseException) -> bool:
    """Return True if the error is one of a GPU, and none of another worker."""
    import torch

    kind = getattr(torch, "AcceleratorError", None)  # torch 2.6 lacks it
    return isinstance(error, kind) if kind else "CUDA error" in str(error)


def is_of_compiler(error: BaseException) -> bool:
    """Return True if the error is one of torch.compile."""
    return type(error).__module__.startswith((COMPILER, "torch._inductor"))


def joins_gloo_safely() -> bool:
    """Return True if a group of Gloo may be dropped after another one is there.

    With torch 2.6 the process may then hang, with torch 2.13 it does not; versions between them
    were not tried.
    """
    return _release() >= (2, 13)


def allocator_variable() -> str:
    """Return the environment variable from which torch reads the settings of its GPU memory.

    torch 2.6 does not know the newer name, and torch 2.9.1 was reported to ignore settings in it,
    which torch 2.11 heeds (pytorch's issue 183387). Newer versions warn of the older name.
    """
    return "PYTORCH_ALLOC_CONF" if _release() >= (2, 11) else "PYTORCH_CUDA_ALLOC_CONF"


def _release() -> tuple[int, int]:
    """Return the minor release of torch, such as (2, 13)."""
    import torch

    major, release, *_ = torch.__version__.split(".")
    return int(major), int(release)


def listening_store(
    address: str, port: int, num_processes: int, timeout: timedelta, socket: int
) -> TCPStore:
    """Return a store of torch that accepts connections at a socket that listens already.

    Args:
        address: The address of the socket.
        port: The port of the socket.
        num_processes: The number of processes that meet.
        timeout: How long they wait for each other.
        socket: The file descriptor of the socket, which the store closes.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    arguments = (address, port, num_processes, True, timeout, False)
    try:
        return TCPStore(*arguments, master_listen_fd=socket)
    except NotImplementedError:  # torch 2.6: the store that uses libuv takes no socket
        return TCPStore(*arguments, master_listen_fd=socket, use_libuv=False)
