"""The stages of a pipeline: where a model is cut into them, the module of a stage, and the times of
its passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from bsweep import models
from bsweep.core.torch_private import private
from bsweep.numerics.restoring import restoring
from bsweep.numerics.timing import Mark, mark, seconds_between
from bsweep.strategies.base import Context

Pieces = Sequence[tuple[str, nn.Module]]
"""The pieces of a model with their names; see `bsweep.models.pieces`."""

_ROUNDS = 3  # of passes, by which the pieces are timed


@dataclass(frozen=True)
class Measured:
    """One worker's measurements of the pieces of a model.

    `seconds` are those of a forward and a backward pass of each piece. `shapes` and `types` are
    those of the tensors that the pieces return, and `num_examples` the examples behind them.
    """

    num_examples: int
    seconds: list[float]
    shapes: list[list[int]]
    types: list[str]

    def like(self, piece: int, num_examples: int, device: torch.device | str) -> Tensor:
        """Return an empty tensor like that which a piece returns.

        Args:
            piece: The index of the piece.
            num_examples: The number of examples.
            device: The device of the tensor.

        Returns:
            The tensor. Its first dimension, that of the examples, fits their number.
        """
        first, *rest = self.shapes[piece]
        size = first * num_examples // self.num_examples
        return torch.empty(size, *rest, dtype=getattr(torch, self.types[piece]), device=device)


def measured(pieces: Pieces, model: nn.Module, inputs: Tensor, autocast: Context) -> Measured:
    """Time the passes of the pieces of a model, and leave the model as it was.

    Args:
        pieces: The pieces.
        model: The model itself.
        inputs: The inputs of some examples, as many as in a micro-batch.
        autocast: The context of forward passes.

    Returns:
        The shortest times of each piece in a few rounds.

    Raises:
        ConfigError: If a piece returns something other than one tensor, or the pieces together do
            not compute what the model computes.
    """
    rounds = []
    modules = dict.fromkeys(
        m for whole in (model, *(p for _, p in pieces)) for m in whole.modules()
    )
    attributes = [(module, dict(vars(module))) for module in modules]
    with restoring(model, inputs.device):
        models.refuse_other_outputs(pieces, model, inputs, autocast)
        for _ in range(_ROUNDS):
            marks, outputs = [], []
            coming: Any = inputs
            for _, piece in pieces:
                x = coming.detach()
                x.requires_grad_(x.is_floating_point())
                begin = mark(inputs.device)
                with autocast():
                    coming = piece(x)
                coming.backward(torch.ones_like(coming))
                marks.append((begin, mark(inputs.device)))
                outputs.append(coming)
                piece.zero_grad()
            rounds.append([seconds_between(*pair) for pair in marks])
    for module, before in attributes:  # a model may keep a mask that a pass made, for example
        vars(module).clear()
        vars(module).update(before)
    return Measured(
        len(inputs),
        [min(of_piece) for of_piece in zip(*rounds, strict=True)],
        [list(output.shape) for output in outputs],
        [str(output.dtype).removeprefix("torch.") for output in outputs],
    )


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
        self._device = device
        # begin and end of what was computed, and the seconds that its message travelled
        self._computed: list[tuple[Mark, Mark, float]] = []
        self._steps: list[_Step] = []
        self.forget()

    def forget(self) -> None:
        """Begin anew, with times of 0."""
        self._steps.clear()
        self.busy = self.idle = self.exchange = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the `with` block, which makes one pass over all micro-batches."""
        begin = mark(self._device)
        yield
        self._steps.append(_Step(begin, self._computed, mark(self._device)))
        self._computed = []
        if self._device.type != "cuda" or len(self._steps) > _MOST_STEPS:
            self.read()

    @contextmanager
    def computing(self, message_seconds: float = 0.0) -> Iterator[None]:
        """Time the `with` block, in which the worker computes.

        Args:
            message_seconds: The seconds that one message takes, if the block needs one from another
                worker.
        """
        begin = mark(self._device)
        yield
        self._computed.append((begin, mark(self._device), message_seconds))

    def read(self) -> None:
        """Add new times to `busy`, `idle` and `exchange`, in seconds. On a GPU, wait for its
        work.
        """
        for step in self._steps:
            last = step.begin
            for start, stop, message_seconds in step.computed:
                waited = max(0.0, seconds_between(last, start))
                travelled = min(waited, message_seconds)
                self.exchange += travelled
                self.idle += waited - travelled
                self.busy += seconds_between(start, stop)
                last = stop
            self.idle += max(0.0, seconds_between(last, step.end))
        self._steps.clear()


_MOST_STEPS = 100  # whose events wait to be read


class _Step(NamedTuple):
    begin: Mark
    computed: list[tuple[Mark, Mark, float]]
    end: Mark


class TimedStage(PipelineStage):
    """A stage of a pipeline that times its passes."""

    def __init__(
        self,
        module: StageModule,
        index: int,
        num_stages: int,
        device: torch.device,
        times: Times,
        **how: Any,
    ) -> None:
        """Create the stage.

        Args:
            module: Its pieces.
            index: Its index among all stages.
            num_stages: The number of all stages.
            device: The device that computes.
            times: The times of this worker.
            how: Other arguments of torch's class.
        """
        super().__init__(module, index, num_stages, device, **how)
        self._times = times
        self.expect(0.0, 0.0)

    def expect(self, from_before: float, from_behind: float) -> None:
        """Set the seconds that a message from the stage before takes, and one from the stage behind
        this one; 0 if that stage is on this worker.
        """
        self._message_seconds = from_before, from_behind

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **more: Any) -> Any:
        with self._times.computing(self._message_seconds[0]), _own_errors():
            return super().forward_one_chunk(fwd_chunk_id, *args, **more)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        with self._times.computing(self._message_seconds[1]), _own_errors():
            super().backward_one_chunk(bwd_chunk_id, *args, **more)
            # A gradient may be a view with any strides, which cannot be sent.
            self.bwd_cache[bwd_chunk_id] = tuple(
                None if gradient is None else gradient.contiguous()
                for gradient in self.bwd_cache[bwd_chunk_id]
            )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        with self._times.computing(), _own_errors():
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
