"""The memory that the passes (forward and backward) of a model take, counted without computing.

torch's fake tensors have the shapes, types and lifetimes of the passes' tensors, but no values.
What a kernel takes for itself is not counted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from bsweep import models
from bsweep.config.groups import ModelConfig
from bsweep.core.torch_private import private
from bsweep.data.info import DataInfo
from bsweep.numerics import objective
from bsweep.numerics.precision import AUTOCAST, stored


@functools.cache  # a sweep asks for every point
def bytes_of_passes(
    card: ModelConfig,
    info: DataInfo,
    local_batch: int,
    *,
    precision: str,
    channels_last: bool,
    num_passes: int,
    gradient_share: float,
    num_parts: int = 1,
) -> int:
    """Return the largest number of bytes that the passes of a step take at one time: inputs,
    activations, new gradients, the buffers of the model, and parameters that are not trained.
    Trained parameters are not counted.

    Args:
        card: The card of the model.
        info: The facts about the data set.
        local_batch: The number of examples of a pass.
        precision: The precision of the run, such as `bf16`.
        channels_last: Whether images and weights are stored channels last.
        num_passes: The number of passes of a step; two take as much as more.
        gradient_share: The share of each new gradient that stays until the passes end; the rest is
            dropped as soon as the gradient is complete.
        num_parts: The number of workers that compute parts of the layers in the model's plan.

    Returns:
        The number of bytes.

    Raises:
        Exception: Any that the model raises if its code needs values.
    """
    model = models.outlined(card, info.num_classes, info.shape).train()
    faked = _Faked(precision, channels_last)
    shapes: dict[str, tuple[int, ...]] = {}
    if num_parts > 1:
        from bsweep.models import plans

        shapes = plans.shapes(plans.of(card, model), model, num_parts)
    live = _LiveBytes()
    kept: dict[int, Tensor] = {}  # of each gradient, by the identity of its parameter

    def keep_share(tensor: Tensor) -> None:
        kept[id(tensor)] = tensor.new_empty(int(gradient_share * tensor.numel()))
        tensor.grad = None

    with private("fake_tensors")(allow_non_fake_inputs=True):
        tensors = faked.of(model, shapes)
        for tensor in tensors.values():
            if gradient_share < 1 and tensor.requires_grad:
                tensor.register_post_accumulate_grad_hook(keep_share)
        live.begin(list(tensors.values()))
        with live:
            inputs, targets = faked.examples(card, info, local_batch)
            of_model = objective.of(model, targets)
            for _ in range(num_passes):
                with faked.autocast():
                    outputs = functional_call(model, tensors, (inputs,))
                of_model.loss(outputs, targets).backward()
                del outputs
    return live.peak


class _Faked:
    """A maker of fake tensors like those of a run."""

    def __init__(self, precision: str, channels_last: bool) -> None:
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._dtype, self._rounded = stored(precision), AUTOCAST.get(precision)

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", self._rounded, enabled=self._rounded is not None)

    def of(self, model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return fake parameters and buffers of a model by their names, with other `shapes` where
        these are given.
        """
        return {
            name: self._like(tensor, self._dtype, shapes.get(name, tensor.shape)).requires_grad_(
                tensor.requires_grad
            )
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }

    def examples(self, card: ModelConfig, info: DataInfo, number: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of some examples."""
        is_rounded = self._rounded and card.casts_images_first
        inputs, targets = models.made_up(info, number)
        return self._like(
            inputs, self._rounded if is_rounded else self._dtype, inputs.shape
        ), targets

    def _like(self, tensor: Tensor, kind: torch.dtype | None, shape: Sequence[int]) -> Tensor:
        kind = kind if tensor.is_floating_point() else tensor.dtype
        like = torch.empty(shape, dtype=kind, device="cpu")
        return like.to(memory_format=self._layout) if tensor.dim() == 4 else like


class StageKept(NamedTuple):
    """One of the stages that a worker of a pipeline holds: its pieces, and the most micro-batches
    of which it keeps activations.
    """

    start: int
    stop: int
    in_flight: int


def flops_of_pieces(card: ModelConfig, info: DataInfo, num_examples: int) -> tuple[int, ...]:
    """Return the floating-point operations of a forward pass of each piece of a model.

    Args:
        card: The card of the model.
        info: The facts about the data set.
        num_examples: The number of examples.
    """
    model = models.outlined(card, info.num_classes, info.shape).train()
    faked, found = _Faked("fp32", channels_last=False), []
    with private("fake_tensors")(allow_non_fake_inputs=True), torch.no_grad():
        x, _ = faked.examples(card, info, num_examples)
        for _, piece in models.pieces(card, model):
            with FlopCounterMode(display=False) as counter:
                x = functional_call(piece, faked.of(piece, {}), (x,))
            found.append(counter.get_total_flops())
    return tuple(found)


@functools.cache  # a sweep asks for every point
def bytes_of_stages(
    card: ModelConfig,
    info: DataInfo,
    stages: tuple[StageKept, ...],
    microbatch: int,
    num_microbatches: int,
    *,
    precision: str,
    channels_last: bool,
) -> int:
    """Return the largest number of bytes that the passes of a worker of a pipeline take at one
    time: the messages between stages, activations, new gradients, and the buffers of the stages.
    Trained parameters are not counted.

    Each stage makes forward passes until it keeps most, and then backward and forward passes in
    turn.

    Args:
        card: The card of the model.
        info: The facts about the data set.
        stages: The stages of the worker.
        microbatch: The number of examples of a micro-batch.
        num_microbatches: The number of micro-batches of a pass.
        precision: The precision of the run, such as `bf16`.
        channels_last: Whether images and weights are stored channels last.

    Returns:
        The number of bytes.

    Raises:
        Exception: Any that the model raises if its code needs values.
    """
    model = models.outlined(card, info.num_classes, info.shape).train()
    pieces = [piece for _, piece in models.pieces(card, model)]
    modules = [nn.Sequential(*pieces[stage.start : stage.stop]) for stage in stages]
    faked, live = _Faked(precision, channels_last), _LiveBytes()
    with private("fake_tensors")(allow_non_fake_inputs=True):
        every = [faked.of(module, {}) for module in modules]
        borders = _borders(card, info, pieces, microbatch, faked)
        live.begin([tensor for tensors in every for tensor in tensors.values()])
        with live:
            inputs, targets = faked.examples(card, info, microbatch * num_microbatches)
            inputs, of_model = inputs[:microbatch], objective.of(model, targets)
            targets = targets[:microbatch]
            # Each micro-batch has a place for the inputs of a stage, and one for the gradients of
            # its outputs.
            coming, going = (
                [_places(borders, at(stage), num_microbatches) for stage in stages]
                for at in (attrgetter("start"), attrgetter("stop"))
            )
            kept: list[list[Tensor]] = [[] for _ in stages]

            def forward(place: int) -> None:
                x = coming[place][0].detach().requires_grad_() if coming[place] else inputs
                with faked.autocast():
                    x = functional_call(modules[place], every[place], (x,))
                kept[place].append(x if going[place] else of_model.loss(x, targets))

            for place, is_forward in _turns(stages, num_microbatches):
                if is_forward:
                    forward(place)
                else:
                    out = kept[place].pop(0)
                    out.backward(going[place][0] if going[place] else None)
                    del out
    return live.peak


def _turns(stages: Sequence[StageKept], num_microbatches: int) -> Iterator[tuple[int, bool]]:
    """Yield the passes of a worker as the place of a stage and True for a forward pass, until the
    worker has kept most: forward passes, and then backward and forward passes in turn.
    """
    for place, stage in enumerate(stages):
        yield from [(place, True)] * stage.in_flight
    for turn in range(2):
        for place, stage in enumerate(stages):
            if turn < num_microbatches:
                yield place, False
            if stage.in_flight + turn < num_microbatches:
                yield place, True


def _places(borders: Sequence[Tensor], border: int, number: int) -> list[Tensor]:
    """Return places for the messages of a border between pieces; none at the ends of a model."""
    is_inside = 0 < border < len(borders) - 1
    return [torch.empty_like(borders[border]) for _ in range(number * is_inside)]


def _borders(
    card: ModelConfig, info: DataInfo, pieces: Sequence[nn.Module], number: int, faked: _Faked
) -> list[Tensor]:
    """Return fake tensors like the inputs of the first piece and the outputs of each."""
    with torch.no_grad(), faked.autocast():
        found = [faked.examples(card, info, number)[0]]
        for piece in pieces:
            found.append(functional_call(piece, faked.of(piece, {}), (found[-1],)))
    return found


class _LiveBytes(private("dispatch_mode")):  # type: ignore[misc]
    """Counts the bytes of all tensors that operations in the `with` block create, for as long as
    the tensors live; tensors that share memory count once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}  # by the identity of the memory

    def begin(self, tensors: list[Tensor]) -> None:
        """Count those of the tensors that are not trained, and never count the others."""
        for tensor in tensors:
            self._add(tensor, 0 if tensor.requires_grad else tensor.nbytes)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in private("leaves")(out):
            if isinstance(tensor, Tensor):
                self._add(tensor, tensor.untyped_storage().nbytes())
        return out

    def _add(self, tensor: Tensor, num_bytes: int) -> None:
        memory = tensor.untyped_storage()
        key = id(memory)
        if key in self._known:
            return

        def freed(_: object) -> None:
            del self._known[key]
            self.now -= num_bytes

        self._known[key] = weakref.ref(memory, freed)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
