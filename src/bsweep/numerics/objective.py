"""What a model is trained for: its loss, and what of its answers counts as correct.

A model may bring its own, as methods of the module; without them it is cross-entropy and the
likeliest class:

    loss(outputs, targets)     the sum of the losses of all targets, as a tensor: no mean, for the
    examples of a step
                               are parted among workers and passes, unevenly too
    score(outputs, targets)    how many of the targets are answered correctly

`outputs` is what the module returned for a batch, a tensor in fp32 at least; `targets` its labels,
(B,) or (B, ...): int64, or numbers with a fraction in the module's precision. Of these nobody knows
which answer is correct without `score`: accuracies are null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Objective:
    """`own_loss` and `own_score` are the model's; None where it brings none."""

    own_loss: Callable[[Any, Tensor], Tensor] | None
    own_score: Callable[[Any, Tensor], Tensor] | None

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Sum of losses, in fp32 at least."""
        return (self.own_loss or _cross_entropy)(_wide(outputs), targets)

    def knows_accuracy(self, labels: Tensor) -> bool:
        """Whether it can tell which answers are correct, of such labels."""
        return bool(self.own_score) or not labels.is_floating_point()

    def score(self, loss: Tensor, outputs: Any, targets: Tensor) -> Tensor:
        """Sums of losses, correct answers (NaN where nobody knows) and labels, float64 (3,) on the
        device.
        """
        with torch.no_grad():
            correct = torch.as_tensor(self._num_correct(outputs, targets), device=loss.device)
            # Filled on the device: a copy would make the host wait.
            num_labels = torch.full_like(correct, targets.numel(), dtype=torch.float64)
            return torch.stack(
                [value.view(()) if value.dim() else value for value in (loss, correct, num_labels)]
            )

    def _num_correct(self, outputs: Any, targets: Tensor) -> Tensor:
        if self.own_score:
            return self.own_score(_wide(outputs), targets)
        if targets.is_floating_point():
            return targets.new_full((), torch.nan)
        correct: Tensor = (outputs.argmax(dim=-1) == targets).sum()
        return correct

    def checking(self, num_classes: int) -> Objective:
        """Return the same objective, whose `loss` looks at the outputs first, and waits for
        them.
        """
        return _Checking(self.own_loss, self.own_score, num_classes)

    def check(self, outputs: Any, targets: Tensor, num_classes: int) -> None:
        """ValueError if a model's outputs for `targets`, or what it makes of them, are not as they
        should be.
        """
        takes_logits = not self.own_loss or not (self.own_score or targets.is_floating_point())
        if takes_logits and not _are_logits(outputs, targets, num_classes):
            raise ValueError(
                f"the model returned {_kind(outputs)} for targets of shape {list(targets.shape)}, "
                f"not logits {[*targets.shape, num_classes]}: return these, or give it methods "
                "loss(outputs, targets) and score(outputs, targets) that take what it returns."
            )
        with torch.no_grad():
            if self.own_loss:
                _check_sum(self.own_loss, _wide(outputs), targets)
            if (
                self.own_score
                and torch.as_tensor(score := self._num_correct(outputs, targets)).numel() != 1
            ):
                raise ValueError(
                    f"score(outputs, targets) returned {_kind(score)}: return how many are correct."
                )


@dataclass(frozen=True)
class _Checking(Objective):
    num_classes: int

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        self.check(outputs, targets, self.num_classes)
        return super().loss(outputs, targets)


def of(model: nn.Module, labels: Tensor) -> Objective:
    """What a model is trained for on such labels."""
    loss, score = getattr(model, "loss", None), getattr(model, "score", None)
    if loss is None and labels.is_floating_point():
        raise ValueError(
            "the labels are numbers with a fraction, of which cross-entropy knows nothing: give "
            "your model a method loss(outputs, targets), or make the labels classes, of an integer "
            "type."
        )
    return Objective(loss, score)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of logits (B, C) and targets (B,), or (B, T, C) and (B, T)."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


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
    """ValueError if a loss is no number, or a mean: of the same examples twice, a sum is twice as
    large.
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
            "reduction='sum' gives it, for the examples of a step are parted among workers and "
            "passes."
        )


def _kind(value: object) -> str:
    return (
        f"a tensor of shape {list(value.shape)}"
        if isinstance(value, Tensor)
        else type(value).__name__
    )
