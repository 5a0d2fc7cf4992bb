"""Access to the examples of a data set by index, as tensors on the device that computes.

The examples are on the device that computes, or a thread streams them to it ahead of their step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from bsweep.core import gpus

Arrival = tuple[tuple[Tensor, ...], torch.cuda.Event | None]
"""The inputs, labels and indices of some examples on the device that computes, and the event that
occurs when they have arrived there.
"""


class Part:
    """The training, test or validation examples of a data set; the method `take` returns those with
    given indices.

    If they are not on the device, a thread gathers those of the coming steps into pinned memory. It
    copies them on a CUDA stream of its own while the device computes the previous step.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, device: torch.device) -> None:
        self._inputs, self._labels, self._device = inputs, labels, device
        self.streams = inputs.device != device
        # The indices of each step that is expected, on the CPU, and its examples.
        self._coming: list[tuple[Tensor, Future[Arrival]]] = []
        if self.streams:
            self._thread = ThreadPoolExecutor(1, "examples", gpus.use, (device,))
            self._stream = gpus.stream_for(device, "examples") if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._labels)

    def expect(self, steps: Sequence[Tensor]) -> None:
        """Start to copy the examples of the coming steps to the device that computes, unless it
        already holds all examples. Steps that were expected before are forgotten.

        Args:
            steps: The numbers of each step's examples, on the CPU.
        """
        coming = []
        for indices in steps if self.streams else ():
            known = [step for step in self._coming if torch.equal(step[0], indices)]
            coming += known[:1] or [(indices, self._thread.submit(self._fetch, indices))]
        self._coming = coming

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs, labels and indices of the examples at `indices`, on the device that
        computes. They may be a whole step that was expected, or follow each other in it.

        On a GPU, the current stream waits until the examples have arrived.
        """
        if not self.streams:
            return self._inputs[indices], self._labels[indices], indices
        indices = indices.cpu()
        start, future = self._fetched(indices)
        tensors, event = future.result()
        if event is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(event)
            for tensor in tensors:
                tensor.record_stream(computing)  # Its memory must not be reused before that.
        inputs, labels, numbers = (tensor[start : start + len(indices)] for tensor in tensors)
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

    def _fetched(self, indices: Tensor) -> tuple[int, Future[Arrival]]:
        """Return a step that was expected or, if none has these examples, the examples themselves,
        and the position at which they begin.
        """
        for step, future in self._coming:
            if (start := _position(indices, step)) is not None:
                return start, future
        return 0, self._thread.submit(self._fetch, indices)

    def _fetch(self, indices: Tensor) -> Arrival:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            tensors = tuple(
                self._gathered(source, rows).to(self._device, non_blocking=True)
                for source, rows in (
                    (self._inputs, indices),
                    (self._labels, indices),
                    (indices, torch.arange(len(indices))),
                )
            )
            return tensors, self._stream.record_event() if self._stream else None

    def _gathered(self, source: Tensor, rows: Tensor) -> Tensor:
        """Return the given rows of a tensor on the CPU, for a GPU in pinned memory.

        Torch keeps pinned memory for later steps, but not before it has been copied.
        """
        staged = torch.empty(
            len(rows), *source.shape[1:], dtype=source.dtype, pin_memory=self._stream is not None
        )
        return torch.index_select(source, 0, rows, out=staged)


def _position(indices: Tensor, step: Tensor) -> int | None:
    """Return the position in a step's indices from which on `indices` stand there; None if they do
    not.
    """
    for start in torch.isin(step, indices[:1]).nonzero().flatten().tolist():
        if torch.equal(step[start : start + len(indices)], indices):
            return int(start)
    return None
