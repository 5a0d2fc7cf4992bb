"""The loss with which a model is trained, and the score that counts the model's correct answers.

A model may define its own as methods of the module. Without them, the loss is cross-entropy and the
likeliest class is the answer:

    loss(outputs, targets)     the sum of the losses of all targets, as a tensor; not a mean,
                               because the examples of a step are divided among workers and passes,
                               sometimes unevenly
    score(outputs, targets)    how many of the targets are answered correctly

`outputs` is what the module returned for a batch, in at least fp32 if it is a tensor. `targets`
holds the labels, (B,) or (B, ...), as int64 or as floating-point numbers in the module's precision.
For floating-point labels without `score` no answer counts as correct or wrong: accuracies are null.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Objective:
    """The loss function of a model, and the function that counts the model's correct answers.

    `own_loss` and `own_score` are the model's own methods, or None if it defines none.
    """

    own_loss: Callable[[Any, Tensor], Tensor] | None
    own_score: Callable[[Any, Tensor], Tensor] | None
    checked_classes: int | None = None  # the number of classes if outputs are checked

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the summed loss of all labels in a batch (classes, tokens or numbers to predict),
        computed from outputs in at least fp32.
        """
        if self.checked_classes is not None:
            self.check(outputs, targets, self.checked_classes)
        return (self.own_loss or _cross_entropy)(_wide(outputs), targets)

    def score(self, loss: Tensor, outputs: Any, targets: Tensor) -> Tensor:
        """Return a batch's sum of losses, number of correct answers and number of labels.

        The result is a float64 tensor (3,) on the device. The number of correct answers is NaN if
        it is not known.
        """
        with torch.no_grad():
            correct = torch.as_tensor(self._num_correct(outputs, targets), device=loss.device)
            num_labels = constant(targets.numel(), torch.float64, loss.device)
            return torch.stack(
                [value.view(()) if value.dim() else value for value in (loss, correct, num_labels)]
            )

    def _num_correct(self, outputs: Any, targets: Tensor) -> Tensor:
        if self.own_score:
            return self.own_score(_wide(outputs), targets)
        if targets.is_floating_point():
            return targets.new_full((), torch.nan)
        # With dim=-1, torch 2.13 fails for a DTensor that holds one example.
        answers = _whole(outputs.argmax(dim=outputs.dim() - 1))
        correct: Tensor = (answers == targets).sum()
        return correct

    def checking(self, num_classes: int) -> Objective:
        """Return a copy of this objective that also checks the model's outputs each time before it
        computes the loss.

        The check waits for a GPU.
        """
        return replace(self, checked_classes=num_classes)

    def check(self, outputs: Any, targets: Tensor, num_classes: int) -> None:
        """Check the form of a model's outputs if they must be logits, and the results of the
        model's own loss and score functions.

        Raises:
            ValueError: If the outputs are not logits where logits are needed, the loss is not a sum
                as one number, or the score is not one number.
        """
        takes_logits = not self.own_loss or not (self.own_score or targets.is_floating_point())
        if takes_logits and not _are_logits(outputs, targets, num_classes):
            raise ValueError(
                f"the model returned {_kind(outputs)} for targets of shape {list(targets.shape)}, "
                f"not logits {[*targets.shape, num_classes]}: return logits, or give the model "
                "methods loss(outputs, targets) and score(outputs, targets) that take its outputs."
            )
        with torch.no_grad():
            if self.own_loss:
                _check_sum(self.own_loss, _wide(outputs), targets)
            if (
                self.own_score
                and torch.as_tensor(score := self._num_correct(outputs, targets)).numel() != 1
            ):
                raise ValueError(
                    f"score(outputs, targets) returned {_kind(score)}: return the number of "
                    "correct predictions."
                )


def build(model: nn.Module, labels: Tensor) -> Objective:
    """Return the loss and score functions of a model: the model's own methods, or the defaults.

    Raises:
        ValueError: If labels are floating-point numbers and the model has no loss of its own.
    """
    loss, score = getattr(model, "loss", None), getattr(model, "score", None)
    if loss is None and labels.is_floating_point():
        raise ValueError(
            "the labels are floating-point numbers, which cross-entropy does not take: give your "
            "model a method loss(outputs, targets), or make the labels classes of an integer type."
        )
    return Objective(loss, score)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the cross-entropy losses of all targets.

    The shapes are logits (B, C) and targets (B,), or logits (B, T, C) and targets (B, T).
    """
    return _whole(F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum"))


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor of which each worker may hold a part, as a DTensor, on every worker."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _wide(outputs: Any) -> Any:
    is_narrow = isinstance(outputs, Tensor) and outputs.dtype in (torch.bfloat16, torch.float16)
    return outputs.float() if is_narrow else outputs


def _are_logits(outputs: Any, targets: Tensor, num_classes: int) -> bool:
    return (
        isinstance(outputs, Tensor)
        and outputs.dim() == targets.dim() + 1
        and outputs.shape[:-1] == targets.shape
        and outputs.shape[-1] >= num_classes
    )


def _check_sum(loss: Callable[[Any, Tensor], Tensor], outputs: Any, targets: Tensor) -> None:
    """Raise ValueError if the model's own loss function does not return one number, or seems to
    return a mean instead of a sum.

    A sum becomes twice as large if the examples are repeated; a mean does not.
    """
    once = loss(outputs, targets)
    if not isinstance(once, Tensor) or once.numel() != 1:
        raise ValueError(
            f"loss(outputs, targets) returned {_kind(once)}: return one number, as a tensor."
        )
    if not isinstance(outputs, Tensor) or len(outputs) != len(targets):
        return
    twice = loss(torch.cat([outputs, outputs]), torch.cat([targets, targets]))
    if once and torch.isclose(twice, once, rtol=1e-3):
        raise ValueError(
            "loss(outputs, targets) returned a mean: return the sum of the losses, as "
            "reduction='sum' gives it, because a step is split across workers and passes."
        )


def _kind(value: object) -> str:
    return (
        f"a tensor of shape {list(value.shape)}"
        if isinstance(value, Tensor)
        else type(value).__name__
    )


@functools.cache  # not for the latest numbers only: a CUDA graph may read any of them
def constant(number: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor () of one number, the same tensor at each call; nobody may write to it.

    To fill a new one at each step would take a GPU a kernel.
    """
    return torch.full((), number, dtype=dtype, device=device)
