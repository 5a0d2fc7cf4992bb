"""A context that records which operations torch runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Names of those that are launched, and of those that make the host wait for the device or copy
    between them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launched: list[str] = []
        self.waited: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        allocates = name in ("empty", "empty_like", "empty_strided")
        if not function.is_view and function.namespace == "aten" and not allocates:
            self.launched.append(name)
        tensors = [value for value in (result, *args) if isinstance(value, Tensor)]
        crosses = name in ("_to_copy", "copy_") and len({tensor.device for tensor in tensors}) > 1
        if crosses or name in ("_local_scalar_dense", "nonzero", "masked_select", "unique"):
            self.waited.append(name)
        return result
