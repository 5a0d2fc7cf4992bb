"""What is known of a data set without its tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataInfo:
    """What the parent process needs to know about the data before it starts workers."""

    num_train: int  # after `subset`
    num_test: int
    shape: tuple[int, ...]  # of an example: channels, height, width; or tokens
    classes: tuple[str, ...]
    num_classes: int
