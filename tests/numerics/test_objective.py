"""What a model is trained for: cross-entropy, or a loss and a score of its own, which must be
sums.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsweep.numerics import objective

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.5, 0.25], [0.0, 0.0, 3.0]])
CLASSES = torch.tensor([0, 2, 2])
NUMBERS = torch.tensor([[1.0, 2.0], [0.0, 0.0]])


class Brings(nn.Module):
    """A module with these methods."""

    def __init__(self, **methods: Any) -> None:
        super().__init__()
        vars(self).update(methods)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets, reduction="sum")


def test_without_own_methods_it_is_cross_entropy_and_the_likeliest_class() -> None:
    plain = objective.build(nn.Linear(1, 1), CLASSES)
    plain.check(LOGITS, CLASSES, 3)
    loss = plain.loss(LOGITS, CLASSES)
    assert float(loss) == pytest.approx(float(3 * F.cross_entropy(LOGITS, CLASSES)))
    assert plain.score(loss, LOGITS, CLASSES).tolist() == [pytest.approx(float(loss)), 2, 3]
    for narrow in (torch.bfloat16, torch.float16):
        assert plain.loss(LOGITS.to(narrow), CLASSES).dtype == torch.float32


def test_of_numbers_nobody_knows_which_are_correct_without_a_score() -> None:
    guess = NUMBERS + 0.5
    by_loss = objective.build(Brings(loss=squares), NUMBERS)
    by_loss.check(guess, NUMBERS, 2)
    loss, correct, labels = by_loss.score(by_loss.loss(guess, NUMBERS), guess, NUMBERS).tolist()
    assert (loss, labels) == (1, 4)
    assert math.isnan(correct)
    scored = objective.build(
        Brings(loss=squares, score=lambda o, t: ((o - t).abs() < 1).sum()), NUMBERS
    )
    scored.check(guess, NUMBERS, 2)
    assert scored.score(scored.loss(guess, NUMBERS), guess, NUMBERS).tolist() == [1, 4, 4]


def test_classes_keep_their_accuracy_beside_a_loss_of_ones_own() -> None:
    def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="sum", label_smoothing=0.1)

    mixed = objective.build(Brings(loss=smooth), CLASSES)
    mixed.check(LOGITS, CLASSES, 3)
    assert mixed.score(mixed.loss(LOGITS, CLASSES), LOGITS, CLASSES).tolist()[1:] == [2, 3]


def test_outputs_that_are_no_tensor_go_to_methods_that_take_them() -> None:
    both = objective.build(
        Brings(loss=lambda o, t: squares(o["y"], t), score=lambda o, t: 1), NUMBERS
    )
    both.check({"y": NUMBERS}, NUMBERS, 2)
    loss = both.loss({"y": NUMBERS}, NUMBERS)
    assert both.score(loss, {"y": NUMBERS}, NUMBERS).tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("methods", "outputs", "targets", "expected"),
    [
        ({"loss": lambda o, t: o[0].sum()}, (LOGITS,), CLASSES, "returned tuple.*score"),
        ({"loss": F.mse_loss}, NUMBERS + 1, NUMBERS, "a mean: return the sum.*reduction='sum'"),
        ({"loss": nn.CrossEntropyLoss()}, LOGITS, CLASSES, "a mean: return the sum"),
        ({"loss": torch.sub}, NUMBERS, NUMBERS, r"a tensor of shape \[2, 2\]: return one number"),
        ({"loss": lambda o, t: 0.5}, NUMBERS, NUMBERS, "float: return one number, as a tensor"),
        ({"score": lambda o, t: o.argmax(1) == t}, LOGITS, CLASSES, r"\[3\]: return the number"),
    ],
)
def test_what_is_no_sum_or_no_logits_is_said_before_training(
    methods: dict[str, Any], outputs: Any, targets: Tensor, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        objective.build(Brings(**methods), targets).checking(3).loss(outputs, targets)
