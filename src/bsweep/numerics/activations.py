"""A count of the memory that autograd keeps for backward passes."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Activations:
    """A count of the bytes of the tensors that forward passes keep for their backward passes.

    Tensors that share memory count once. Parameters do not count.
    """

    def __init__(self, parameters: Tensor) -> None:
        """Create a count that is 0.

        Args:
            parameters: The flat tensor of the parameters, whose memory does not count.
        """
        self.peak_bytes = 0
        """The most bytes that were kept at one time."""
        self._num_bytes = 0
        self._uses: Counter[int] = Counter()  # by the address of the memory
        self._not_counted: set[int] = set()
        self.leave_out(parameters)

    def leave_out(self, parameters: Tensor) -> None:
        """Do not count the memory of a tensor, which holds parameters too."""
        self._not_counted.add(parameters.untyped_storage().data_ptr())

    def counted(self) -> AbstractContextManager[object]:
        """Return a context manager whose block contains the passes that count."""
        return saved_tensors_hooks(lambda tensor: _Kept(tensor, self), lambda kept: kept.tensor)

    def add(self, tensor: Tensor, uses: int) -> None:
        """Count that a tensor is kept once more (`uses` is 1), or once less (-1)."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in self._not_counted:
            return
        before = self._uses[place]
        self._uses[place] += uses
        self._num_bytes += (bool(self._uses[place]) - bool(before)) * storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._num_bytes)


class _Kept:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: Tensor, count: Activations) -> None:
        self.tensor, self._count = tensor, count
        count.add(tensor, 1)

    def __del__(self) -> None:
        self._count.add(self.tensor, -1)
