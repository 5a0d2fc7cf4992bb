"""CUDA graphs of a step's forward and backward passes: the host launches one graph instead of each
kernel.

With small batches a fast GPU computes a step in less time than the host takes to launch it. A graph
ends with this worker's gradient in the vector; any exchange and any optimizer follow as without a
graph. The inputs that change, the examples of a step and the crops of an epoch, are in tensors.
There is a graph for each size of a step, such as a full step and an epoch's last. The graphs never
run at the same time and share their memory. Steps of another size are launched kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bsweep.core import gpus, memory

Compute = Callable[[Tensor, Tensor], Tensor]
"""A function that computes the gradient of some examples, and returns the sums of their losses,
correct answers and labels.

It takes the indices of the examples and the crops of the epoch. It leaves the gradient in the
vector.
"""


class BrokenCapture(RuntimeError):
    """The error of a capture that broke off. torch 2.13 then keeps the memory that the capture had
    allocated for as long as the process lives.
    """


@dataclass(frozen=True)
class Captured:
    """GPU work that was captured as a CUDA graph."""

    replay: Callable[[], None]
    # The bytes that the graph needs in addition to what was allocated before. The graph owns them
    # for as long as it exists; they do not count as allocated during a replay.
    num_bytes: int
    pool: Any  # torch's handle of its memory, which other graphs may share


@dataclass
class Graph:
    """A CUDA graph of the forward and backward passes of a step with a fixed number of examples."""

    captured: Captured
    # The graph reads the first two and writes the third, which no other graph overwrites.
    indices: Tensor
    crops: Tensor
    sums: Tensor
    drawn: Tensor  # the epoch's crops of which `crops` is a copy

    def replay(self, indices: Tensor, crops: Tensor) -> Tensor:
        """Replay the captured passes on the training examples with these indices.

        Return the sums of their losses, correct answers and labels, valid until the next call.
        """
        self.indices.copy_(indices)
        if crops is not self.drawn:  # another epoch has begun
            self.crops.copy_(crops)
            self.drawn = crops
        self.captured.replay()
        return self.sums


class Graphs:
    """The CUDA graphs of one worker, one for each size of a step."""

    def __init__(self, shares: Sequence[object]) -> None:
        """Create an empty collection of graphs, for the rounds in which the workers have the given
        shares.
        """
        self.shares = tuple(shares)
        self._by_size: dict[tuple[int, int, int], Graph] = {}

    def __bool__(self) -> bool:
        """Return True if there are graphs, as there are until `drop` is called."""
        return bool(self._by_size)

    @property
    def replay_bytes(self) -> int:
        """The bytes that the graphs' shared memory adds to what is allocated."""
        return max((graph.captured.num_bytes for graph in self._by_size.values()), default=0)

    def capture(
        self, compute: Compute, indices: Tensor, crops: Tensor, num_all: int, num_passes: int
    ) -> Graph:
        """Capture the forward and backward passes of a step as a CUDA graph, and return the graph.

        Capture the largest step first: the graphs of smaller ones then fit into its memory. Call
        this within `on_capture_stream`, after a call of `compute` there for an equal step.

        Args:
            compute: Computes the passes.
            indices: The indices of this worker's examples in a step; the graph keeps their number.
            crops: The crops of all training examples in an epoch; the graph keeps their number.
            num_all: The number of examples of all workers in a round.
            num_passes: The number of passes in which these examples are computed.

        Raises:
            BrokenCapture: If the passes cannot be captured, or there is not enough memory.
        """
        pool = next((graph.captured.pool for graph in self._by_size.values()), None)
        indices, drawn, crops = indices.clone(), crops, crops.clone()
        sums = torch.zeros(3, dtype=torch.float64, device=indices.device)
        try:
            captured = capture(lambda: sums.copy_(compute(indices, crops)), pool)
        except RuntimeError as error:
            # The first error is the cause: after it, the end of the capture raises another one.
            errors = [*_chain(error)]
            cause = next(filter(memory.is_out_of_memory, errors), None)
            first, *_ = str(cause or error).splitlines() or [type(error).__name__]
            raise BrokenCapture(first) from error
        graph = Graph(captured, indices, crops, sums, drawn)
        self._by_size[len(indices), num_all, num_passes] = graph
        return graph

    def for_step(self, num_examples: int, num_all: int, num_passes: int) -> Graph | None:
        """Return the graph for the given numbers of examples and passes; None if there is none."""
        return self._by_size.get((num_examples, num_all, num_passes))

    def drop(self) -> None:
        """Free the graphs and their memory; all further steps run without a graph."""
        self._by_size.clear()
        memory.give_back_garbage()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those from which it was raised or during whose handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def on_capture_stream(device: torch.device) -> Iterator[None]:
    """Run the GPU work of the block in the CUDA stream for captures; do nothing on a CPU."""
    if device.type != "cuda":
        yield
        return
    stream, outer = gpus.stream_for(device, "capture"), torch.cuda.current_stream()
    stream.wait_stream(outer)
    try:
        # The context leaves the stream even if a capture breaks off.
        with torch.cuda.stream(stream):
            yield
    except BaseException:
        # What is restored next must not be overwritten by what the block had launched.
        with suppress(RuntimeError):  # In torch without #180395, the capture may still be open.
            outer.wait_stream(stream)
        gpus.renew_random(device)
        raise
    outer.wait_stream(stream)


def capture(work: Callable[[], object], pool: Any) -> Captured:
    """Capture the GPU work of the function `work`, in the current stream, as a CUDA graph.

    Args:
        work: Launches the work; it was called in this stream before, because libraries set
            themselves up once for each stream.
        pool: The memory of an earlier graph that this one shares; None for memory of its own.

    Raises:
        RuntimeError: If a part of `work` cannot be captured, or there is not enough memory.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    torch.cuda.synchronize()
    memory.reset_peak(stream.device)
    before = memory.allocated_bytes(stream.device)
    # Threads of Horovod and NCCL go on during the capture and must not break it.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    num_bytes = (memory.peak_bytes(stream.device) or 0) - before
    return Captured(graph.replay, num_bytes, graph.pool())
