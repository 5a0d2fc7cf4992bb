"""A step's forward and backward passes as one CUDA graph, which the host launches at once instead
of some 200 kernels.

With small batches a fast GPU computes a step in less time than the host takes to launch it. What is
captured ends with this worker's gradient in the vector: any exchange and any optimizer follow it as
ever. An update by SGD is one kernel, by AdamW two; those by LARS and LAMB, of which a GPU takes all
layers at once but for their ratios, are some 45 and 60. What changes from step to step, the
examples and the random bits of their crops, lies in tensors that the graph reads. Steps of another
size, as the last of an epoch, are launched kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bsweep.core import memory

Launch = Callable[[Tensor, Tensor], Tensor]
"""Leaves the gradient of examples in the vector, by their numbers and their `crop_stream`, and
gives their sums.
"""


class Graph:
    """Passes on as many examples as `part` has, of the `num_all` of a step, captured once."""

    def __init__(self, launch: Launch, part: Tensor, num_all: int, num_passes: int) -> None:
        self._size = len(part), num_all, num_passes
        self._part = part.clone()
        self._crops = torch.zeros((), dtype=torch.int64, device=part.device)
        self._sums, self._replay, self.replay_bytes = capture(
            lambda: launch(self._part, self._crops)
        )

    def fits(self, part: Tensor, num_all: int, num_passes: int) -> bool:
        return (len(part), num_all, num_passes) == self._size

    def passes(self, part: Tensor, crops: int) -> Tensor:
        """What was captured, with other examples; the sums stay until the next call."""
        self._part.copy_(part)
        self._crops.fill_(crops)
        self._replay()
        return self._sums


def capture(work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None], int]:
    """Where the result of `work` will be, what computes it anew, and the bytes that this takes
    beside what is there.

    They are the graph's for as long as there is one, and do not count as allocated while it is
    replayed.

    Raises:
        RuntimeError: something in it cannot be captured, or there is not enough memory.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # which is left even where a capture is broken off
        work()  # libraries set something up for each stream
        torch.cuda.synchronize()
        memory.reset_peak(stream.device)
        before = memory.allocated_bytes(stream.device)
        # Threads of Horovod and NCCL go on meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = work()
        replay_bytes = (memory.peak_bytes(stream.device) or 0) - before
    torch.cuda.current_stream().wait_stream(stream)
    return result, graph.replay, replay_bytes
