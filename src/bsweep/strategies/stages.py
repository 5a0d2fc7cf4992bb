"""The stages of a pipeline: where a model is cut into them, the module of a stage, and what its
passes take of time and memory.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import PipelineStage

from bsweep import models
from bsweep.core.torch_private import private
from bsweep.numerics.restoring import restoring
from bsweep.numerics.timing import Timeline
from bsweep.strategies.base import Context

Pieces = Sequence[tuple[str, nn.Module]]
"""The pieces of a model with their names; see `bsweep.models.pieces`."""

_ROUNDS = 3  # of passes, by which the pieces are timed


def measured(
    pieces: Pieces, model: nn.Module, inputs: Tensor, autocast: Context
) -> tuple[list[float], list[Tensor]]:
    """Time the passes of the pieces of a model, and leave the model as it was.

    Args:
        pieces: The pieces.
        model: The model itself.
        inputs: The inputs of some examples, as many as in a micro-batch.
        autocast: The context of forward passes.

    Returns:
        The seconds of a forward and a backward pass of each piece, the shortest in a few rounds;
        and the tensor that each piece returns, without its values (on the meta device).

    Raises:
        ConfigError: If a piece returns something other than one tensor, or the pieces together do
            not compute what the model computes.
    """
    timeline, rounds = Timeline(inputs.device), []
    whole = nn.ModuleList([model, *(piece for _, piece in pieces)])
    with restoring(whole, inputs.device, attributes=True):
        models.refuse_other_outputs(pieces, model, inputs, autocast)
        for _ in range(_ROUNDS):
            x, outputs = inputs, []
            for name, piece in pieces:
                x = x.detach().requires_grad_(x.is_floating_point())
                with timeline.phase(name):
                    with autocast():
                        x = piece(x)
                    x.backward(torch.ones_like(x))
                outputs.append(x.detach().to("meta"))
                piece.zero_grad()
            rounds.append(timeline.totals())
    return [min(seconds[name] for seconds in rounds) for name, _ in pieces], outputs


def balanced(seconds: Sequence[float], num_stages: int) -> list[int]:
    """Return where to cut a sequence of pieces into stages, so that the slowest stage is as fast as
    possible.

    Args:
        seconds: The seconds of each piece.
        num_stages: The number of stages, at most that of the pieces.

    Returns:
        The number of pieces before each cut.
    """
    before = list(itertools.accumulate(seconds, initial=0.0))
    # The slowest stage and the cuts, by the number of pieces in the stages so far.
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for _ in range(num_stages):
        best = {
            stop: min(
                (max(slowest, before[stop] - before[start]), [*cuts, start])
                for start, (slowest, cuts) in best.items()
                if start < stop
            )
            for stop in range(min(best) + 1, len(seconds) + 1)
        }
    return best[len(seconds)][1][1:]


class StageModule(nn.Module):
    """The pieces of one stage, with the context in which forward passes compute.

    Its outputs can be sent: they are contiguous, and own their memory.
    """

    def __init__(self, pieces: Sequence[nn.Module], autocast: Context, is_last: bool) -> None:
        super().__init__()
        self.pieces = nn.Sequential(*pieces)
        self._autocast, self._is_last = autocast, is_last

    def forward(self, x: Tensor) -> Tensor:
        with self._autocast():
            x = self.pieces(x)
        if self._is_last:
            return x
        x = x.contiguous()
        # torch's schedules detach outputs in place, which views do not allow.
        return x.clone() if private("is_view")(x) else x


class Times:
    """The times of a worker's passes in a pipeline: when it computed, and why it did not.

    A worker that waits for a message does so for two reasons. The message travels in the last
    seconds of the wait, as long as one message takes if both workers are ready. Before that, the
    other worker had not sent it yet.
    """

    def __init__(self, device: torch.device) -> None:
        self._timeline = Timeline(device)
        # how long the message travelled that each computation needed, whose time is not yet read
        self._message_seconds: deque[float] = deque()
        self.restart()

    def restart(self, busy: float = 0.0, idle: float = 0.0, exchange: float = 0.0) -> None:
        """Forget all times, and begin anew with these, in seconds."""
        self._timeline.spans()
        self._message_seconds.clear()
        self._busy, self._idle, self._exchange = busy, idle, exchange

    def step(self) -> AbstractContextManager[None]:
        """Time the `with` block, which makes one pass over all micro-batches."""
        return self._timeline.phase("wait")

    def computing(self, message_seconds: float = 0.0) -> AbstractContextManager[None]:
        """Time the `with` block, in which the worker computes.

        Args:
            message_seconds: The seconds that one message takes, if the block needs one from another
                worker.
        """
        self._message_seconds.append(message_seconds)
        return self._timeline.phase("compute")

    def read(self) -> list[float]:
        """Return the seconds in which the worker computed, was idle, and exchanged. On a GPU, wait
        for its work.
        """
        waited = 0.0
        for phase, seconds in self._timeline.spans():
            if phase == "wait":
                self._idle += seconds
                waited = seconds
            elif phase == "compute":
                travelled = min(waited, self._message_seconds.popleft())
                self._exchange += travelled
                self._idle -= travelled
                self._busy += seconds
        return [self._busy, self._idle, self._exchange]


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
        return saved_tensors_hooks(lambda tensor: _Saved(tensor, self), lambda saved: saved.tensor)

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


class _Saved:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: Tensor, count: Activations) -> None:
        self.tensor, self._count = tensor, count
        count.add(tensor, 1)

    def __del__(self) -> None:
        self._count.add(self.tensor, -1)


class TimedStage(PipelineStage):
    """A stage of a pipeline that times its passes."""

    times: Times
    message_seconds: Callable[[], tuple[float, float]]
    """Return the seconds that a message from the stage before takes, and one from the stage behind
    this one; 0 if that stage is on this worker.
    """

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **more: Any) -> Any:
        with self.times.computing(self.message_seconds()[0]), _own_errors():
            return super().forward_one_chunk(fwd_chunk_id, *args, **more)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        with self.times.computing(self.message_seconds()[1]), _own_errors():
            super().backward_one_chunk(bwd_chunk_id, *args, **more)
            # A gradient may be a view with any strides, which cannot be sent.
            self.bwd_cache[bwd_chunk_id] = tuple(
                None if gradient is None else gradient.contiguous()
                for gradient in self.bwd_cache[bwd_chunk_id]
            )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        with self.times.computing(), _own_errors():
            super().backward_weight_one_chunk(bwd_chunk_id, *args, **more)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise the errors of a stage's passes as they are: torch wraps them in a RuntimeError, which
    hides, for example, that memory ran out.
    """
    try:
        yield
    except RuntimeError as error:
        if error.__cause__:
            raise error.__cause__ from None
        raise
