"""A CUDA graph of a step's forward and backward passes: the host launches one graph instead of each
kernel.

With small batches a fast GPU computes a step in less time than the host takes to launch it. The
graph ends with this worker's gradient in the vector; any exchange and any optimizer follow as
without a graph. The inputs that change, the examples of a step and the crops of an epoch, are in
tensors that the graph reads. Steps of another size, such as an epoch's last, are launched kernel by
kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bsweep.core import memory

Compute = Callable[[Tensor, Tensor], Tensor]
"""A function that computes the gradient of some examples, and returns the sums of their losses,
correct answers and labels.

It takes the indices of the examples and the crops of the epoch. It leaves the gradient in the
vector.
"""


class Graph:
    """A CUDA graph of the forward and backward passes of a step with a fixed number of examples."""

    def __init__(
        self, compute: Compute, part: Tensor, crops: Tensor, num_all: int, num_passes: int
    ) -> None:
        """Capture the forward and backward passes of a step as a CUDA graph.

        Args:
            compute: Computes the passes.
            part: The indices of this worker's examples in a step; the graph keeps their number.
            crops: The crops of all training examples in an epoch; the graph keeps their number.
            num_all: The number of examples of all workers in a round.
            num_passes: The number of passes in which the part is computed.

        Raises:
            RuntimeError: If the passes cannot be captured, or there is not enough memory.
        """
        self._size = len(part), num_all, num_passes
        self._part = part.clone()
        self._crops, self._drawn = crops.clone(), crops
        self._sums, self._replay, self.replay_bytes = capture(
            lambda: compute(self._part, self._crops)
        )

    def fits(self, part: Tensor, num_all: int, num_passes: int) -> bool:
        """Return True if the graph was captured for the given numbers of examples and passes."""
        return (len(part), num_all, num_passes) == self._size

    def replay(self, part: Tensor, crops: Tensor) -> Tensor:
        """Replay the captured passes on the training examples whose indices are `part`.

        Return the sums of their losses, correct answers and labels, valid until the next call.
        """
        self._part.copy_(part)
        if crops is not self._drawn:  # another epoch has begun
            self._crops.copy_(crops)
            self._drawn = crops
        self._replay()
        return self._sums


def capture(work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None], int]:
    """Capture the GPU work of the function `work` as a CUDA graph, which can be replayed.

    Returns:
        The tensor that will hold the result, the function that replays the graph, and the bytes
        that the graph needs in addition to what was allocated before. The graph owns these bytes
        for as long as it exists; they do not count as allocated during a replay.

    Raises:
        RuntimeError: If a part of `work` cannot be captured, or there is not enough memory.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # The context leaves the stream even if a capture breaks off.
        work()  # Libraries set themselves up once for each stream.
        torch.cuda.synchronize()
        memory.reset_peak(stream.device)
        before = memory.allocated_bytes(stream.device)
        # Threads of Horovod and NCCL go on during the capture and must not break it.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = work()
        replay_bytes = (memory.peak_bytes(stream.device) or 0) - before
    torch.cuda.current_stream().wait_stream(stream)
    return result, graph.replay, replay_bytes
