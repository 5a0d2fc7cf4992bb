"""Gradients of the workers of one host in memory that all of them map, summed where they lie:
nothing is sent.

The memory is a file without a name (memfd_create), so that no limit of /dev/shm holds for it, and
it is gone with the last process that maps it, however that ends. Others open it by /proc, where
only the same user's processes can.

Worker k sums the k-th part of all vectors and writes the sum into each of them; parts do not
overlap, so that nobody waits but before, for all gradients, and after, for all sums. It adds in the
order of Gloo's ring, for the same bits.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

GatherJson = Callable[[Mapping[str, Any]], list[dict[str, Any]]]


def share(like: Tensor, gather_json: GatherJson) -> tuple[tuple[Tensor, ...], str]:
    """A tensor of zeros like this for each worker, by rank, that all of them see; or none, and why
    there are none.

    All workers call it together, with tensors of the same size and type, and all get them or none
    does.
    """
    num_bytes = like.numel() * like.element_size()
    with ExitStack() as opened:
        offers = gather_json(_offer(num_bytes, opened))
        if reason := _first_reason(offers):
            return (), reason
        vectors, answer = [], {"reason": ""}
        try:
            vectors = [_mapped(offer, like) for offer in offers]
        except (OSError, RuntimeError) as error:  # the latter is torch's
            answer = {"reason": str(error)}
        # Nobody closes a file that others have yet to open.
        reason = _first_reason(gather_json(answer))
        return ((), reason) if reason else (tuple(vectors), "")


def _offer(num_bytes: int, opened: ExitStack) -> dict[str, Any]:
    """Where others find memory of this process, or why there is none."""
    if not hasattr(os, "memfd_create"):
        return {"reason": "only Linux has memfd_create"}
    name = f"bsweep-{secrets.token_hex(8)}"
    try:
        file = os.memfd_create(name)
        opened.callback(os.close, file)
        # Here, where it is told, rather than by a signal later.
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        return {"reason": f"{num_bytes} bytes: {error}"}
    return {"reason": "", "path": f"/proc/{os.getpid()}/fd/{file}", "name": name}


def _first_reason(answers: Sequence[Mapping[str, Any]]) -> str:
    return next(
        (f"rank {rank}: {one['reason']}" for rank, one in enumerate(answers) if one["reason"]), ""
    )


def _mapped(offer: Mapping[str, Any], like: Tensor) -> Tensor:
    """OSError if it is not there, or another file: processes in another container have numbers of
    their own.
    """
    path = Path(offer["path"])
    if str(path.readlink()) != f"/memfd:{offer['name']} (deleted)":
        raise OSError(f"{path} is not what its owner calls so")
    return torch.from_file(str(path), shared=True, size=like.numel(), dtype=like.dtype)


NUM_MEETINGS = 2
"""Of all workers, in a sum."""


class Sum:
    """The sum of the vectors of all workers of a group, left in each of them."""

    def __init__(self, vectors: Sequence[Tensor], group: dist.ProcessGroup, rank: int) -> None:
        self._group, self._signal = group, torch.zeros(1)
        start, stop = _part(vectors[0].numel(), vectors[0].element_size(), len(vectors), rank)
        # The sum of a block stays in the cache until it is in all vectors; a larger block occupies
        # all threads.
        size = _BLOCK_ELEMENTS * torch.get_num_threads()
        in_order = [
            vectors[(rank - turn) % len(vectors)][start:stop] for turn in range(1, len(vectors) + 1)
        ]
        self._blocks = list(zip(*(vector.split(size) for vector in in_order), strict=True))
        self._total = vectors[0].new_empty(size)

    def __call__(self) -> None:
        """RuntimeError if another worker ended, by the group, whose message all of them wait
        for.
        """
        self._meet()
        for block in self._blocks:
            total = torch.add(block[0], block[1], out=self._total[: len(block[0])])
            for part in block[2:]:
                total.add_(part)
            for part in block:
                part.copy_(total)
        self._meet()

    def _meet(self) -> None:
        """Nobody leaves it before all have come. Half as long as torch's own barrier where workers
        share cores.
        """
        dist.all_reduce(self._signal, group=self._group)


_BLOCK_ELEMENTS = 32_768  # below which torch takes one thread


def _part(num_elements: int, element_bytes: int, num_workers: int, rank: int) -> tuple[int, int]:
    """Borders of the part that a worker of Gloo's ring is the last to add to (allreduce.cc; torch
    2.13).
    """
    num_bytes, segment_bytes = num_elements * element_bytes, 1 << 20
    num_segments = _multiple(max(-(-num_bytes // segment_bytes), 2 * num_workers), num_workers)
    elements = (
        _multiple(-(-num_bytes // num_segments), element_bytes)
        // element_bytes
        * num_segments
        // num_workers
    )
    return min(num_elements, rank * elements), min(num_elements, (rank + 1) * elements)


def _multiple(number: int, of: int) -> int:
    """The least one that is not below the number."""
    return -(-number // of) * of
