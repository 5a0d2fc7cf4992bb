"""A small network with a plan by which workers share its linear layers."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from bsweep.models.plans import Plan, ShareOfDropout


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
