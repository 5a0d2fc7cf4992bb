"""Access to the examples of a data set by index, as tensors on the device that computes.

The examples are on the device that computes, or a thread streams them to it ahead of their step.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from bsweep.core import gpus


class Part:
    """The training, test or validation examples of a data set; the method `take` returns those with
    given indices.

    If they are not on the device, a thread gathers those of the coming steps into pinned memory. It
    copies them on a CUDA stream of its own while the device computes the previous step.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, device: torch.device) -> None:
        self._inputs, self._labels, self._device = inputs, labels, device
        self.streams = inputs.device != device
        self._coming: deque[tuple[Tensor, Future[_Fetched]]] = deque()
        self._taken, self._position = _Fetched(torch.empty(0, dtype=torch.int64), (), None), 0
        if self.streams:
            self._thread = ThreadPoolExecutor(1, "examples", gpus.use, (device,))
            self._stream = gpus.stream_for(device, "examples") if device.type == "cuda" else None
            self._buffers = itertools.cycle(
                (_Buffer(self._stream is not None), _Buffer(self._stream is not None))
            )

    def __len__(self) -> int:
        return len(self._labels)

    def expect(self, steps: Sequence[Tensor]) -> None:
        """Start to copy the examples of the coming steps to the device that computes, unless it
        already holds all examples.

        Args:
            steps: The numbers of each step's examples, on the CPU.
        """
        for indices in steps if self.streams else ():
            if len(indices) and not any(torch.equal(indices, coming) for coming, _ in self._coming):
                self._coming.append((indices, self._thread.submit(self._fetch, indices)))

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs, labels and indices of the examples at `indices`, on the device that
        computes.

        If a step has several passes, call this once for each pass, in their order.
        """
        if not self.streams:
            return self._inputs[indices], self._labels[indices], indices
        indices = indices.cpu()
        start, stop = self._position, self._position + len(indices)
        if not torch.equal(self._taken.indices[start:stop], indices):
            self._taken, start, stop = self._arrived(indices), 0, len(indices)
        self._position = stop
        inputs, labels, numbers = (tensor[start:stop] for tensor in self._taken.tensors)
        return inputs, labels, numbers

    def batches(self, indices: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs and labels of the examples at `indices`, `size` at a time, and fetch the
        next ones meanwhile.
        """
        steps = indices.to(self._labels.device).split(size) if len(indices) else ()
        for number, step in enumerate(steps):
            self.expect(steps[number : number + 2])
            inputs, labels, _ = self.take(step)
            yield inputs, labels

    def _arrived(self, indices: Tensor) -> _Fetched:
        """Return the inputs, labels and indices that `expect` has fetched for the step whose
        examples begin with `indices`. Fetch them now if `expect` was not called for this step.

        On a GPU, the current stream waits until the examples have arrived.
        """
        fetched = None
        while self._coming and fetched is None:
            coming, future = self._coming.popleft()
            fetched = future.result() if torch.equal(coming[: len(indices)], indices) else None
        fetched = fetched or self._thread.submit(self._fetch, indices).result()
        if fetched.event is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(fetched.event)
            for tensor in fetched.tensors:
                tensor.record_stream(computing)  # Its memory must not be reused before that.
        return fetched

    def _fetch(self, indices: Tensor) -> _Fetched:
        buffer = next(self._buffers)
        if buffer.left is not None:
            buffer.left.synchronize()
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            staged = (
                buffer.gather(0, self._inputs, indices),
                buffer.gather(1, self._labels, indices),
            )
            sent = tuple(
                torch.empty_like(tensor, device=self._device).copy_(tensor, non_blocking=True)
                for tensor in (*staged, buffer.gather(2, indices, torch.arange(len(indices))))
            )
            if self._stream:
                buffer.left = self._stream.record_event()
        return _Fetched(indices, sent, buffer.left)


@dataclass(frozen=True)
class _Fetched:
    """The inputs, labels and indices of one step's examples, copied to the device that computes."""

    indices: Tensor  # the numbers of the examples, on the CPU
    tensors: tuple[Tensor, ...]  # inputs, labels and numbers, on the device
    event: torch.cuda.Event | None  # occurs when they have arrived


class _Buffer:
    """The memory of the CPU in which examples are gathered before they are copied to the GPU.

    It grows to the size of the largest step.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._tensors: dict[int, Tensor] = {}
        self.left: torch.cuda.Event | None = None  # occurs when the last content has been copied

    def gather(self, number: int, source: Tensor, indices: Tensor) -> Tensor:
        if number not in self._tensors or len(self._tensors[number]) < len(indices):
            room = torch.empty(
                len(indices), *source.shape[1:], dtype=source.dtype, pin_memory=self._pinned
            )
            self._tensors[number] = room
        return torch.index_select(source, 0, indices, out=self._tensors[number][: len(indices)])
