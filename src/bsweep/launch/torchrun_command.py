"""A program that runs torchrun with a store that listens at only one network interface, if the
store's address belongs to the interface that is given.

`python torchrun_command.py ARGUMENTS...` runs it. By `--rdzv-conf=rank=N,interface=NAME`, each
agent is told its number, and the first agent where its store shall listen. torchrun's own stores
listen at all interfaces and ask for no secret; with `--standalone`, agents even unpickle what they
find in the store.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "bsweep"
"""The value of `--rdzv-backend`."""


def _handler(parameters: RendezvousParameters) -> RendezvousHandler:
    from bsweep.core import network
    from bsweep.core.torch_private import private

    class Handler(private("handler")):  # type: ignore[misc]
        def get_backend(self) -> str:
            return BACKEND

    host, port = private("parse_endpoint")(parameters.endpoint, 0)
    rank, num_hosts = parameters.get_as_int("rank"), parameters.max_nodes
    assert rank is not None, parameters
    handler = Handler(host, port, rank, num_hosts, parameters.run_id, _TIMEOUT_SECONDS)
    if rank == 0 and (
        store := network.store_at(
            host, port, parameters.get("interface"), num_hosts, handler.timeout
        )
    ):
        handler._store, handler.master_port = store, store.port
    return handler


_TIMEOUT_SECONDS = 600  # torchrun's own


def main() -> None:
    folder = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != folder]  # its modules are in a package
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(BACKEND, _handler)
    run.main()


if __name__ == "__main__":
    main()
