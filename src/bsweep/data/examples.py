"""Functions that convert a training and a test split, each a map-style data set or a pair of
tensors, to a `Dataset`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bsweep.core.words import first_of
from bsweep.data.dataset import Dataset, Part, channel_statistics
from bsweep.data.pictures import (
    Unfit,
    note_on_levels,
    num_bits,
    pixels,
    with_progress,
)

Deep = list[tuple[Tensor, Any, int, int]]
"""The images of 16 bits, which are read again when the levels of all are known: the row of the
inputs that the image becomes, its split, its number in it, and the bits that its levels need.
"""


def collected(train: Any, test: Any, side: int | None = None) -> Dataset:
    """Return a `Dataset` made from a training and a test split.

    Each split is a map-style data set of (image, label) or a pair of tensors (inputs, labels).
    Pillow's images and uint8 tensors (C, H, W) are images: they are normalised and may be
    augmented. Integers of other shapes or types are tokens. Other tensors stay as they are. Labels
    are classes, or one class for each token, or floating-point targets for a model that has its
    own loss.

    Args:
        train: The training split; its attribute `classes`, if it has one, names the classes.
        test: The test split.
        side: The side to which the centre square of Pillow's images is scaled; None leaves them as
            they are.

    Raises:
        Unfit: If they are no data sets, are empty, have examples that cannot be stacked, or have
            labels that do not fit the inputs or the names of the classes.
    """
    deep: Deep = []
    pairs = _split("training", train, side, deep), _split("test", test, side, deep)
    most_bits = max((bits for *_, bits in deep), default=16)
    for row, split, number, _ in deep:
        row.copy_(_tensor(split[number][0], side, most_bits))
    for nouns, tensor, test_tensor in zip(("inputs", "labels"), *pairs, strict=True):
        if not _are_alike(tensor[0], test_tensor[0]):
            raise Unfit(
                f"{nouns} for training are {_kind(tensor[0])}, but {nouns} for testing are "
                f"{_kind(test_tensor[0])}: give both the same dtype and shape."
            )
    (inputs, labels), (_, test_labels) = pairs
    names = tuple(map(str, getattr(train, "classes", None) or ()))
    num_classes = _num_classes((labels, test_labels), names)
    notes = (
        *([note_on_levels(most_bits)] if deep else ()),
        *_notes_on_classes(labels, num_classes, names),
        *_notes_on_randomness(train, side, most_bits),
    )
    is_images = inputs.dtype == torch.uint8 and inputs.dim() == 4
    mean, std = channel_statistics(inputs) if is_images else (None, None)
    train_part, test_part = (Part(*pair) for pair in pairs)
    return Dataset(train_part, test_part, names, num_classes, mean, std, notes=notes)


def _notes_on_classes(labels: Tensor, num_classes: int, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a note on the numbers of classes that no training label has.

    Raises:
        Unfit: If all labels are of one class, or fewer than half of the classes occur and they have
            no names.
    """
    if labels.dim() != 1 or labels.is_floating_point():
        return
    seen = labels.unique()
    if len(seen) == 1:
        raise Unfit(
            f"all training labels are {int(seen)}, so any model is always right: add examples of "
            "another class."
        )
    if num_classes > 2 * len(seen) and not names:
        raise Unfit(
            f"the training labels are {len(seen)} different numbers up to {int(seen[-1])}, and the "
            f"largest label of both splits is {num_classes - 1}, for which a model would need "
            f"{num_classes} outputs: number the classes from 0, as numpy.unique(labels, "
            "return_inverse=True)[1] does, and leave out examples without a class. If the numbers "
            "are right, name all classes in the attribute `classes`."
        )
    if missing := sorted({*range(num_classes)} - {*seen.tolist()}):
        yield (
            f"no training example has the class {first_of([*map(str, missing)])}, for which the "
            f"model has an output all the same ({num_classes} in all): number the classes from 0 "
            "without gaps"
        )


def _notes_on_randomness(split: Any, side: int | None, num_bits: int) -> Iterator[str]:
    """Yield a note if the first example of a split differs from time to time."""
    if isinstance(split, tuple | list):
        return
    first, again = (torch.nan_to_num(_tensor(split[0][0], side, num_bits)) for _ in range(2))
    if not torch.equal(first, again):
        yield (
            "the first training example differs when it is read again, but bsweep reads each "
            "example once and keeps what it got: return examples without random changes, and give "
            "data.flip=true or data.crop_padding=4 for random changes in each step"
        )


def _num_classes(labels: tuple[Tensor, Tensor], names: tuple[str, ...]) -> int:
    """Return the number of classes of a data set or, if its labels are floating-point numbers, the
    number of values in one label.
    """
    if labels[0].is_floating_point():
        return labels[0][0].numel()
    classes = [int(bound) for tensor in labels for bound in tensor.aminmax()]
    if min(classes) < 0:
        raise Unfit(f"a label is {min(classes)}: classes are counted from 0.")
    if names and max(classes) >= len(names):
        raise Unfit(
            f"a label is {max(classes)}, but the number of names in `classes` is {len(names)}, and "
            "labels are counted from 0: name all classes, or correct the labels."
        )
    return len(names) or 1 + max(classes)


def _split(split_name: str, split: Any, side: int | None, deep: Deep) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels of a training or test split, as two tensors with one row for
    each example. The inputs are (N, ...). The labels are (N,) or, as classes of tokens or targets,
    (N, ...).

    Args:
        split_name: The name of the split in messages.
        split: The split.
        side: As for `collected`.
        deep: The list to which images of 16 bits are added.
    """
    if (
        isinstance(split, tuple | list)
        and len(split) == 2
        and all(isinstance(tensor, Tensor) for tensor in split)
    ):
        # They, or both splits, may share memory, which a file cannot store.
        inputs, labels = (tensor.clone(memory_format=torch.contiguous_format) for tensor in split)
    elif hasattr(split, "__len__") and hasattr(split, "__getitem__"):
        inputs, labels = _stacked(split_name, split, side, deep)
    else:
        raise Unfit(
            f"the {split_name} data are a {type(split).__name__}, which has no len() or no "
            "[index]: return a map-style data set, or a pair of tensors."
        )
    inputs, labels = _plain(inputs), _plain(labels)
    if not len(labels) or len(inputs) != len(labels):
        raise Unfit(
            f"the {split_name} data have {len(inputs)} inputs and {len(labels)} labels: give one "
            "label for each input, and at least one example."
        )
    if not labels.is_floating_point():
        labels = labels.long()
    if labels.dim() > 1 and not labels.is_floating_point() and labels.shape != inputs.shape:
        raise Unfit(
            f"the {split_name} data have labels of shape {tuple(labels.shape)}: give one class for "
            "each example, or for each token."
        )
    return inputs, labels


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, in a form that a file can store: bfloat16 becomes float32.

    Raises:
        Unfit: If it holds complex numbers, of which a later conversion would drop a part.
    """
    if tensor.is_complex():
        raise Unfit("the data hold complex numbers: give real ones, as torch.view_as_real does.")
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _stacked(split_name: str, split: Any, side: int | None, deep: Deep) -> tuple[Tensor, Tensor]:
    """Return what `_split` returns, for a map-style data set.

    Raises:
        Unfit: If an example is no pair, or has another dtype or shape than the first.
    """
    inputs, labels = torch.empty(0), torch.empty(0)
    numbers = range(len(split))
    for number in with_progress(numbers, f"reading {split_name} examples", len(numbers)):
        example = split[number]
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise Unfit(
                f"{split_name} example {number} is a {type(example).__name__}, not a pair of an "
                "image or tensor and its label."
            )
        pair = _tensor(example[0], side), torch.as_tensor(example[1])
        if number == 0:
            inputs, labels = (tensor.new_empty(len(numbers), *tensor.shape) for tensor in pair)
        for noun, tensor, rows in zip(("input", "label"), pair, (inputs, labels), strict=True):
            if not _are_alike(tensor, rows[0]):
                raise Unfit(
                    f"{split_name} {noun} {number} is {_kind(tensor)}, but the first {noun} is "
                    f"{_kind(rows[0])}: give every {noun} the same dtype and shape."
                )
            rows[number] = tensor
        if bits := num_bits(example[0]):
            deep.append((inputs[number], split, number, bits))
    return inputs, labels


def _tensor(value: Any, side: int | None, num_bits: int = 16) -> Tensor:
    """Return the input of an example as a tensor: a Pillow image as uint8 (C, H, W), any other
    array unchanged.
    """
    if hasattr(value, "getbands"):
        return torch.from_numpy(pixels(value, side, num_bits, keeps_grey=True))
    return torch.as_tensor(value)


def _are_alike(tensor: Tensor, other: Tensor) -> bool:
    return (tensor.dtype, tensor.shape) == (other.dtype, other.shape)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
