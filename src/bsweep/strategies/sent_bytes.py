"""The bytes that a worker sends by the collectives within a model's passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from bsweep.core.torch_private import private


class SentBytes(private("dispatch_mode")):  # type: ignore[misc]
    """A context that counts the bytes of torch's functional collectives in its block, which also
    DTensors call.

    It sees each operation and so costs time. An all-reduce is counted as a ring.
    """

    def __init__(self, num_workers: int) -> None:
        """Begin with no bytes.

        Args:
            num_workers: The number of workers that take part in each collective.
        """
        super().__init__()
        self.num_bytes = 0
        others = num_workers - 1
        self._share_sent = {
            "all_reduce": 2 * others / num_workers,
            "all_gather_into_tensor": others,
            "reduce_scatter_tensor": others / num_workers,
            "all_to_all_single": others / num_workers,
        }

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # its own operations follow
        namespace, _, name = function.name().partition("::")
        if namespace == "_c10d_functional" and name.rstrip("_") in self._share_sent:
            sent: Tensor = args[0]
            num_bytes = sent.numel() * sent.element_size()
            self.num_bytes += round(self._share_sent[name.rstrip("_")] * num_bytes)
        return function(*args, **(kwargs or {}))
