"""The numbers of examples, their shape and the classes of a data set, all known without its
tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class DataInfo:
    """The facts about a data set that the parent process needs before it starts workers."""

    num_train: int  # without the validation examples, after `subset`
    num_test: int
    shape: tuple[int, ...]  # of an example: channels, height, width; or tokens
    classes: tuple[str, ...]
    num_classes: int
    inputs: Literal["images", "tokens", "numbers"] = "images"
    label_shape: tuple[int, ...] = ()  # of one example's label; () if it is a class
    is_regression: bool = False  # labels are numbers to predict
    notes: tuple[str, ...] = ()  # on how the data were read, for the user and the record
