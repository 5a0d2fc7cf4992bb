"""The class that holds a data set as tensors in memory, functions that make or change its objects,
and the access to its examples by index.

The examples are on the device that computes, or a thread streams them to it ahead of their step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bsweep.core import gpus
from bsweep.core.randomness import random_bits, stream_of
from bsweep.data.info import DataInfo

_CHUNK = 256  # images counted at once
_MOST_OF_FREE = 0.5  # the model and its activations need the rest


Arrival = tuple[tuple[Tensor, ...], torch.cuda.Event | None]
"""The inputs, labels and indices of some examples on the device that computes, and the event that
occurs when they have arrived there.
"""


class Part:
    """The training, test or validation examples of a data set, as tensors; those on the CPU are
    contiguous. The method `take` returns the examples with given indices.

    An example is an image and its class, or T tokens of a text and the token that follows each of
    them. In the user's own data, an input may be any tensor.

    If the examples are not on the device that computes, a thread gathers those of the coming steps
    into pinned memory. It copies them on a CUDA stream of its own while the device computes the
    previous step.
    """

    def __init__(self, inputs: Tensor, labels: Tensor, device: torch.device | None = None) -> None:
        """Store examples, which are on a device that computes or are streamed to it.

        Args:
            inputs: Images uint8 (N, C, H, W), tokens uint8 or int32 (N, T), or others (N, ...).
            labels: Classes int64 (N,), tokens uint8 or int32 (N, T), or targets in floating point
                (N, ...).
            device: The device that computes; None for that of the tensors.
        """
        self.inputs, self.labels = inputs, labels
        self.device = device = device or inputs.device
        self.streams = inputs.device != device
        # The indices of each step that is expected, on the CPU, and its examples.
        self._coming: list[tuple[Tensor, Future[Arrival]]] = []
        if self.streams:
            self._thread = ThreadPoolExecutor(1, "examples", gpus.use, (device,))
            self._stream = gpus.stream_for(device, "examples") if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.labels)

    def chosen(self, examples: Tensor) -> Part:
        """Return a copy of some examples, which a tensor of indices or of bools chooses."""
        return Part(self.inputs[examples], self.labels[examples])

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
            return self.inputs[indices], self.labels[indices], indices
        indices = indices.cpu()
        start, future = self._fetched(indices)
        tensors, event = future.result()
        if event is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(event)
            for tensor in tensors:
                tensor.record_stream(computing)  # Its memory must not be reused before that.
        inputs, labels, numbers = (tensor[start : start + len(indices)] for tensor in tensors)
        return inputs, labels, numbers

    def batches(self, indices: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs and labels of the examples at `indices`, `size` at a time, and fetch the
        next ones meanwhile.
        """
        steps = indices.to(self.labels.device).split(size) if len(indices) else ()
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
        """Return the inputs, labels and indices of the examples at `indices`, on their way to the
        device. Torch keeps pinned memory for later steps, but not before it has been copied.
        """
        tensors = self.inputs[indices], self.labels[indices], indices
        if self._stream is None:
            return tuple(tensor.to(self.device) for tensor in tensors), None
        with torch.cuda.stream(self._stream):
            copies = [tensor.pin_memory().to(self.device, non_blocking=True) for tensor in tensors]
            return tuple(copies), self._stream.record_event()


def _position(indices: Tensor, step: Tensor) -> int | None:
    """Return the position in a step's indices from which on `indices` stand there; None if they do
    not.
    """
    for start in torch.isin(step, indices[:1]).nonzero().flatten().tolist():
        if torch.equal(step[start : start + len(indices)], indices):
            return int(start)
    return None


@dataclass(frozen=True)
class Dataset:
    """The training and test examples of a data set, and validation examples if there are any.

    Only images have `mean` and `std`, by which they are normalised.
    """

    train: Part
    test: Part
    classes: tuple[str, ...]  # names of the classes; empty for a text
    num_classes: int  # number of classes, or size of a text's vocabulary
    # Of all training images in [0, 1], even if some are not trained on, float32 (C,).
    mean: Tensor | None = None
    std: Tensor | None = None
    # Training examples held out for the evaluations during a run; None: these use the test set.
    validation: Part | None = None
    notes: tuple[str, ...] = ()  # on how the data were read, for the user and the record

    @property
    def info(self) -> DataInfo:
        """The sizes and classes of the data set."""
        has_numbers = self.train.inputs.is_floating_point()
        return DataInfo(
            num_train=len(self.train),
            num_test=len(self.test),
            shape=tuple(self.train.inputs.shape[1:]),
            classes=self.classes,
            num_classes=self.num_classes,
            inputs="images" if self.mean is not None else "numbers" if has_numbers else "tokens",
            label_shape=tuple(self.test.labels.shape[1:]),
            is_regression=self.is_regression,
            notes=self.notes,
        )

    @property
    def tokens_per_example(self) -> int | None:
        """The number of tokens in each example of a text data set; None for other data sets."""
        is_text = self.train.labels.dim() == 2 and not self.is_regression
        return self.train.labels.shape[1] if is_text else None

    @property
    def is_regression(self) -> bool:
        """True if the labels are numbers to predict, rather than classes or tokens."""
        return self.train.labels.is_floating_point()

    @functools.cached_property
    def chance(self) -> float | None:
        """The accuracy of a guesser in the evaluations during a run: the share of the commonest
        class (for a text: token). None for a regression.
        """
        if self.is_regression:
            return None
        labels = self.evaluated.labels
        return int(labels.flatten().bincount().max()) / labels.numel()

    @property
    def evaluated(self) -> Part:
        """The examples of the evaluations during a run: for validation, or the test set."""
        return self.test if self.validation is None else self.validation


def placed(
    dataset: Dataset,
    device: torch.device,
    wanted: Literal["auto", "cpu", "cuda"],
) -> Dataset:
    """Return a data set with its examples moved to the training device or left on the CPU, as
    `wanted` says. `mean` and `std` are moved in any case.

    Args:
        dataset: The data set; its tensors are on the CPU.
        device: The device that trains.
        wanted: "cuda" to move all examples to the device, "cpu" to leave them on the CPU, "auto" to
            move each part (training, test, validation) that fits, in this order.
    """
    if device.type == "cpu":
        return dataset
    room = math.inf if wanted == "cuda" else 0.0
    if wanted == "auto":
        room = free_bytes(device) * _MOST_OF_FREE
    changes: dict[str, Any] = {}
    for name, value in vars(dataset).items():
        if isinstance(value, Tensor):
            changes[name] = value.to(device)
        elif isinstance(value, Part):
            num_bytes, home = value.inputs.nbytes + value.labels.nbytes, value.device
            if num_bytes <= room:
                room, home = room - num_bytes, device
            changes[name] = Part(value.inputs.to(home), value.labels.to(home), device)
    return replace(dataset, **changes)


def free_bytes(device: torch.device) -> float:
    """Return the free memory of a GPU in bytes."""
    return torch.cuda.mem_get_info(device)[0]


def from_images(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: Sequence[str]
) -> Dataset:
    """Return a `Dataset` made of two pairs (images, labels), one to train on and one to test on,
    with the channel statistics of the training images.
    """
    mean, std = channel_statistics(train[0])
    return Dataset(Part(*train), Part(*test), tuple(classes), len(classes), mean, std)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each channel of uint8 images, float32 (C,),
    after scaling the pixels to [0, 1].

    Both statistics come from histograms, so they are exact and need no wider copy of the data set.
    A channel with a smaller deviation than one grey level gets one grey level, because images are
    divided by the deviation.

    Args:
        images: uint8 (N, C, H, W).
    """
    channels = range(images.shape[1])
    histogram = np.zeros((len(channels), 256))
    # NumPy is faster here: torch's threads slow each other down.
    for chunk in torch.split(images, _CHUNK):
        histogram += [np.bincount(chunk[:, c].numpy().ravel(), minlength=256) for c in channels]
    share, grey = histogram / histogram[0].sum(), np.arange(256)
    mean = share @ grey
    std = np.sqrt(np.maximum(share @ grey**2 - mean**2, 1))
    return torch.from_numpy(mean / 255).float(), torch.from_numpy(std / 255).float()


def with_validation(dataset: Dataset, number: int) -> Dataset:
    """Return a data set with `number` of its training examples held out for validation, the same
    ones at each call. If labels are classes, each class gives the same share, give or take one
    example.

    The examples are copied: a data set that was mapped from a file then takes memory.
    """
    labels = dataset.train.labels
    order = random_bits(torch.arange(len(labels)), stream_of("validation")).argsort()
    if labels.dim() == 1 and not labels.is_floating_point():
        order = order[labels[order].argsort(stable=True)]
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[order[torch.arange(number) * len(labels) // number]] = True
    train = dataset.train
    return replace(dataset, train=train.chosen(~held_out), validation=train.chosen(held_out))


def balanced_subset(dataset: Dataset, size: int) -> Dataset:
    """Return a data set with only `size` of its training examples, the same ones at each call.

    If labels are classes, all classes have equally many examples, give or take one; a class that
    has too few gives all of them. Smaller subsets are parts of larger ones.
    """
    labels = dataset.train.labels
    order = random_bits(torch.arange(len(labels)), stream_of("subset")).argsort()
    if labels.dim() == 1 and not labels.is_floating_point():
        order = order[_round_robin(labels[order])]
    return replace(dataset, train=dataset.train.chosen(order[:size].sort().values))


def _round_robin(labels: Tensor) -> Tensor:
    """Return the indices of all examples, int64 (N,), in this order: the first example of each
    class, then the second of each class, and so on.
    """
    by_class = labels.argsort(stable=True)
    sizes = torch.bincount(labels)
    first = sizes.cumsum(0) - sizes
    number = torch.arange(len(labels)) - first[labels[by_class]]
    return by_class[number.argsort(stable=True)]
