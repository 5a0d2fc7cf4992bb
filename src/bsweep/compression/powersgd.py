"""PowerSGD (Vogels et al., arXiv 1905.13727): workers send the gradient of a large enough weight
matrix as two thin matrices, whose product approximates it. They send other gradients whole.

M_i (n x m) is the sum of worker i's memory and gradient. Q (m x r) comes from the step before and
is the same on all workers. Then P = orthonormal basis of sum_i M_i Q; Q_i = M_i^T P; Q = sum_i Q_i;
all workers get P Q^T = P P^T sum_i M_i. Worker i keeps M_i - P Q_i^T, its own part of what the sum
lost. Payloads are summed on the way: r (n + m) elements instead of n m.

All workers take P from the first worker, by a further sum of r n elements. Different processors
would round a basis differently, and their models would drift apart.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from bsweep.compression.base import Codec, Group, Setting
from bsweep.config.compression import PowerSGDConfig
from bsweep.core.randomness import seed_of
from bsweep.numerics.vector import Slice, ranges


class PowerSGD(Codec):
    memory: Tensor

    def __init__(self, config: PowerSGDConfig, setting: Setting) -> None:
        # The CPU draws the same numbers on all workers. A GPU's numbers depend on how many
        # multiprocessors it has.
        generator = torch.Generator().manual_seed(seed_of(setting.seed, "powersgd"))
        self.memory = torch.zeros_like(setting.vector.gradients)
        slices, dtype = setting.vector.slices, self.memory.dtype
        self._weights = [weight for weight in slices if _pays(weight, config.rank)]
        self._others = ranges([other for other in slices if not _pays(other, config.rank)])
        shapes = [(_num_columns(weight), config.rank) for weight in self._weights]
        rights = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
        # All right factors are parts of one tensor, so that one copy replaces them.
        self._all_rights = _joined(rights).to(self.memory)
        self._rights = _parted(self._all_rights, rights)

    @property
    def state(self) -> list[Tensor]:
        return [self.memory, *self._rights]

    def exchange(self, gradients: Tensor, group: Group) -> None:
        self.memory.add_(gradients)
        matrices = [_as_matrix(self.memory, weight) for weight in self._weights]
        others = [self.memory[start:stop] for start, stop in self._others]
        pairs = zip(matrices, self._rights, strict=True)
        products = _sums([matrix @ right for matrix, right in pairs], group)
        is_first = group.rank == 0
        bases = _bases(products) if is_first else [torch.zeros_like(base) for base in products]
        lefts = _sums(bases, group)
        rights = [matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        sums = _sums([*rights, *others], group)
        self._all_rights.copy_(_joined(sums[: len(matrices)]))
        for weight, left, right in zip(self._weights, lefts, self._rights, strict=True):
            torch.mm(left, right.T, out=_as_matrix(gradients, weight))
        for (start, stop), total in zip(self._others, sums[len(matrices) :], strict=True):
            gradients[start:stop] = total
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            matrix.addmm_(left, right.T, alpha=-1)
        for other in others:
            other.zero_()


def _bases(products: list[Tensor]) -> list[Tensor]:
    """Return an orthonormal basis of the columns of each matrix (n, r) in `products`.

    Products of the same shape are computed together.
    """
    alike: dict[torch.Size, list[Tensor]] = {}
    for product in products:
        alike.setdefault(product.shape, []).append(product)
    bases = {shape: iter(orthonormal(torch.stack(same))) for shape, same in alike.items()}
    return [next(bases[product.shape]) for product in products]


def orthonormal(matrices: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns of each matrix in `matrices`, (..., n, r) with n
    >= r.

    The method is Gram-Schmidt, and nothing waits for a GPU. Each column is projected twice, which
    is as exact as a QR decomposition (Giraud et al., doi 10.1007/s00211-005-0615-4). A tiny spare
    direction is added to each column. It remains if the column is zero or depends on others;
    elsewhere it is lost in rounding. Without it, the right factors could never recover from a zero
    column.
    """
    rows, rank = matrices.shape[-2:]
    spare, basis = _spare(rows, rank, matrices.dtype, matrices.device), matrices.clone()
    for number in range(rank):
        before, column = basis[..., :number], basis[..., number : number + 1]
        for _ in range(2):
            if number:
                column -= before @ (before.mT @ column)
            column += spare[:, number : number + 1]
            column /= torch.linalg.vector_norm(column, dim=-2, keepdim=True)
    return basis


@functools.cache
def _spare(rows: int, rank: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the tiny direction that is added to each column, (rows, rank)."""
    numbers = torch.arange(1, rows + 1, dtype=dtype, device=device)
    # The norm of this column is above zero in fp32, too.
    return 1e-15 * torch.outer(numbers, numbers[:rank]).cos()


def _num_columns(weight: Slice) -> int:
    return math.prod(weight.shape[1:])


def _pays(weight: Slice, rank: int) -> bool:
    """Return True if a slice of the gradient vector is a matrix that has more elements than its two
    factors of rank `rank`.
    """
    sent = rank * (weight.shape[0] + _num_columns(weight))
    return weight.is_matrix and sent < weight.num_elements


def _as_matrix(vector: Tensor, weight: Slice) -> Tensor:
    """Return a slice of the gradient vector as a matrix, with a row for each index of the model
    tensor's first dimension.

    The order of its elements may differ from the tensor's. Any order works that all workers share.
    """
    return vector[weight.start : weight.stop].view(weight.shape[0], -1)


def _sums(tensors: list[Tensor], group: Group) -> list[Tensor]:
    """Return the sum over workers of each tensor; a worker sends all its tensors in one message."""
    if not tensors:
        return []
    flat = _joined(tensors)
    group.all_reduce(flat)
    return _parted(flat, tensors)


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)


def _parted(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Return views of a flat tensor that have the shapes of the tensors `like`, in their order."""
    pieces = flat.split([tensor.numel() for tensor in like])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, like, strict=True)]
