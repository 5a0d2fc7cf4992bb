"""A model whose forward and backward passes are compiled by torch for some batch sizes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bsweep.core import torch_private


class Compiled:
    """A model that torch compiles for the batch sizes of a warm-up.

    Batches of other sizes are computed by the model as it is, so that no timed step compiles.
    """

    def __init__(self, model: nn.Module) -> None:
        """Prepare the compilation of `model`, and forget what this process compiled before."""
        self._model = model
        # With the kernels of one size only, torch would compile the next size for any size.
        self._compiled = torch.compile(model, dynamic=False)
        self._sizes: set[int] = set()
        self._is_open = False
        self.seconds = 0.0  # in which passes were compiled and run for the first time
        self.forget()

    def forget(self) -> None:
        """Forget what this process compiled: torch compiles the same code for a few models and
        batch sizes only, and runs it without compilation for others.
        """
        torch.compiler.reset()
        self._sizes.clear()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Compile the model for all batch sizes that occur in the `with` block, which are the sizes
        of forward passes, and time the block.

        Raises:
            ValueError: If torch cannot compile the model.
        """
        started, self._is_open = time.perf_counter(), True
        try:
            yield
        except Exception as error:
            if not torch_private.is_of_compiler(error):
                raise
            first, *_ = str(error).split("\n\n")  # torch says next where more is said
            raise ValueError(
                "torch cannot compile the passes of this model: "
                f"{' '.join(first.split())}. Install the compiler if it is missing, or use "
                "compile=false."
            ) from error
        finally:
            self._is_open = False
            self.seconds += time.perf_counter() - started

    def __call__(self, inputs: Tensor) -> Any:
        """Return the outputs of the model for `inputs` (B, ...)."""
        if self._is_open:
            self._sizes.add(len(inputs))
        return (self._compiled if len(inputs) in self._sizes else self._model)(inputs)
