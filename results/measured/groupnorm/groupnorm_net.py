"""A small residual network with GroupNorm, for images of 32 x 32."""

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, outside)
        self.short = (
            nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.short(x))


def build(num_classes: int, shape: tuple[int, ...], width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, 2, 1, bias=False),
        nn.GroupNorm(8, width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )
