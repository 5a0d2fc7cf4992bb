"""Functions that convert a training and a test split, each a map-style data set or a pair of
tensors, to a `Dataset`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from bsweep.data.dataset import Dataset, channel_statistics
from bsweep.data.pictures import Unfit, pixels, with_progress


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
    inputs, labels = _split("training", train, side)
    test_inputs, test_labels = _split("test", test, side)
    for inputs_or_labels, ours, theirs in (
        ("inputs", inputs, test_inputs),
        ("labels", labels, test_labels),
    ):
        if (ours.dtype, ours.shape[1:]) != (theirs.dtype, theirs.shape[1:]):
            raise Unfit(
                f"{inputs_or_labels} for training are {_kind(ours)}, but {inputs_or_labels} for "
                f"testing are {_kind(theirs)}: give both the same dtype and shape."
            )
    names = tuple(map(str, getattr(train, "classes", None) or ()))
    num_classes = _num_classes(inputs, (labels, test_labels), names)
    is_images = inputs.dtype == torch.uint8 and inputs.dim() == 4
    statistics = channel_statistics(inputs) if is_images else (None, None)
    return Dataset(inputs, labels, test_inputs, test_labels, names, num_classes, *statistics)


def _num_classes(inputs: Tensor, labels: tuple[Tensor, Tensor], names: tuple[str, ...]) -> int:
    """Return the number of classes of a data set or, if its labels are floating-point numbers, the
    number of values in one label.
    """
    if labels[0].is_floating_point():
        return labels[0][0].numel()
    classes = [int(bound) for part in labels for bound in part.aminmax()]
    if min(classes) < 0:
        raise Unfit(f"a label is {min(classes)}: classes are counted from 0.")
    if names and max(classes) >= len(names):
        raise Unfit(
            f"a label is {max(classes)}, but the number of names in `classes` is {len(names)}, and "
            "labels are counted from 0: name all classes, or correct the labels."
        )
    return len(names) or 1 + max(classes)


def _split(split_name: str, split: Any, side: int | None) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels of a training or test split, as two tensors with one row for
    each example. The inputs are (N, ...). The labels are (N,) or, as classes of tokens or targets,
    (N, ...).

    `split_name` is the name of the split in messages.
    """
    if (
        isinstance(split, tuple | list)
        and len(split) == 2
        and all(isinstance(part, Tensor) for part in split)
    ):
        inputs, labels = split
    elif hasattr(split, "__len__") and hasattr(split, "__getitem__"):
        inputs, labels = _stacked(split_name, split, side)
    else:
        raise Unfit(
            f"the {split_name} data are {_type(split)}, which has no len() or no [index]: return a "
            "map-style data set, or a pair of tensors."
        )
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
    return _apart(inputs), _apart(labels)


def _apart(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of a tensor on the CPU, in a form that a file can store.

    Inputs and labels, or both splits, may share memory, which a file cannot store. bfloat16 becomes
    float32.
    """
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).clone(
        memory_format=torch.contiguous_format
    )


def _stacked(split_name: str, split: Any, side: int | None) -> tuple[Tensor, Tensor]:
    inputs, labels = torch.empty(0), torch.empty(0)
    work = f"reading {split_name} examples"
    with closing(with_progress(range(len(split)), work, len(split))) as numbers:
        for number in numbers:
            example = split[number]
            if not isinstance(example, tuple | list) or len(example) != 2:
                raise Unfit(
                    f"{split_name} example {number} is {_type(example)}, not a pair of an image or "
                    "tensor and its label."
                )
            one, label = _tensor(example[0], side), torch.as_tensor(example[1])
            if not number:
                inputs, labels = (
                    one.new_empty(len(split), *one.shape),
                    label.new_empty(len(split), *label.shape),
                )
            for input_or_label, part, whole in (
                ("input", one, inputs),
                ("label", label, labels),
            ):
                if (part.dtype, part.shape) != (whole.dtype, whole.shape[1:]):
                    raise Unfit(
                        f"{split_name} {input_or_label} {number} is {_kind(part[None])}, but the "
                        f"first {input_or_label} is {_kind(whole)}: give every {input_or_label} "
                        "the same dtype and shape."
                    )
            inputs[number], labels[number] = one, label
    return inputs, labels


def _tensor(value: Any, side: int | None) -> Tensor:
    """Return the input of an example as a tensor: a Pillow image as uint8 (C, H, W), any other
    array unchanged.
    """
    if hasattr(value, "getbands"):
        return torch.from_numpy(pixels(value, side, keeps_grey=True))
    return torch.as_tensor(value)


def _kind(stack: Tensor) -> str:
    return f"{str(stack.dtype).removeprefix('torch.')} of shape {tuple(stack.shape[1:])}"


def _type(value: object) -> str:
    return f"a {type(value).__name__}"
