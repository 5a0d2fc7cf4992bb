"""A small network with a plan by which workers share its linear layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from bsweep.models.plans import ColumnsOfEach, Plan, ShareOfDropout


class Divided(nn.Sequential):
    """A network in the manner of VGG-16, whose plan divides the layers 2 and 5."""

    def __init__(self, num_classes: int, shape: tuple[int, ...], dropout: float = 0.0) -> None:
        super().__init__(
            nn.Conv2d(shape[0], 4, kernel_size=3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(4 * shape[1] * shape[2] // 4, 24),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(24, 16),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(16, num_classes),
        )

    def tensor_plan(self) -> Plan:
        return {"2": ColwiseParallel(), "4": ShareOfDropout(), "5": RowwiseParallel()}


def build(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Divided(num_classes, shape)


def dropping(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Divided(num_classes, shape, dropout=0.4)


def tied(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a network two of whose layers have one weight."""
    model = Divided(num_classes, shape)
    model[5].weight = model[2].weight
    return model


def misnamed(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a network whose plan names a layer that it lacks."""
    model = Divided(num_classes, shape)
    model.tensor_plan = lambda: {"fc": ColwiseParallel()}  # type: ignore[method-assign]
    return model


def hasty(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a network whose plan divides a layer that no style fits."""
    model = Divided(num_classes, shape)
    model.tensor_plan = lambda: {"0": ColwiseParallel()}  # type: ignore[method-assign]
    return model


class Joined(nn.Module):
    """A network one of whose layers computes three parts at once, with biases."""

    def __init__(self, num_classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.parts = nn.Linear(shape[0] * shape[1] * shape[2], 24)
        self.out = nn.Linear(8, num_classes)
        self.factor = torch.tensor(
            0.5
        )  # which no worker knows that only gets parameters and buffers

    def forward(self, images: Tensor) -> Tensor:
        one, two, three = self.parts(images.flatten(1)).unflatten(-1, (3, -1)).unbind(1)
        logits: Tensor = self.out((one * two + self.factor * three).tanh())
        return logits

    def tensor_plan(self) -> Plan:
        return {"parts": ColumnsOfEach(3), "out": RowwiseParallel()}


def learning_slope(num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return a network with a parameter between the layers that workers share."""
    model = Divided(num_classes, shape)
    model[3] = nn.PReLU()
    return model
