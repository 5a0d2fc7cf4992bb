"""The counts of the steps that each rank of the user's own program has taken, in a file of its log
folder.

It needs nothing but Python's standard library, because the program writes it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

FORM = struct.Struct("<3q?")
"""The form of the counts of one epoch: the values of `Taken` in their order. The file has them for
each epoch, from the first.
"""


@dataclass
class Taken:
    """The counts of what a rank has taken in an epoch.

    `num_begun` counts the steps that have begun, `num_steps` and `num_examples` what is finished.
    `has_ended` is True if the rank has ended the epoch.
    """

    num_begun: int = 0
    num_steps: int = 0
    num_examples: int = 0
    has_ended: bool = False

    def write(self, file: int, epoch: int) -> None:
        """Write the counts of an epoch to their place in an open file.

        Args:
            file: The file's descriptor.
            epoch: The number of the epoch, from 1.
        """
        counts = self.num_begun, self.num_steps, self.num_examples, self.has_ended
        os.pwrite(file, FORM.pack(*counts), FORM.size * (epoch - 1))


def read_taken(path: Path) -> list[Taken]:
    """Return what a rank has taken in each epoch, from the first; an empty list if it does not say
    it.
    """
    try:
        return [Taken(*counts) for counts in FORM.iter_unpack(path.read_bytes())]
    except (FileNotFoundError, struct.error):
        return []
