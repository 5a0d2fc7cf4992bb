"""A sum of gradients over the workers of one host, computed in memory that all these workers map.

The memory is a file without a name (memfd_create), so that no limit of /dev/shm applies to it. It
is freed with the last process that maps it, however that process ends. Other processes open it
through /proc, and only processes of the same user or of root can.

Worker k sums the k-th part of all vectors and writes the sum into each of them. The parts do not
overlap. So workers wait for one another only twice: before, for all gradients, and after, for all
sums. The order of additions is that of Gloo's ring, which gives the same bits.
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
    """Create one tensor of zeros for each worker, of the shape of `like`, in memory that all
    workers map.

    All workers call this function together, with tensors of the same size and type. Either all of
    them get the tensors, or none does.

    Returns:
        The tensors by rank and an empty text, or no tensors and the reason.
    """
    num_bytes = like.numel() * like.element_size()
    with ExitStack() as opened:
        offers = gather_json(_offer(num_bytes, opened))
        if reason := _first_reason(offers):
            return (), reason
        vectors, answer = [], {"reason": ""}
        try:
            vectors = [_mapped(offer, like) for offer in offers]
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError
            answer = {"reason": str(error)}
        # Nobody closes a file that others have yet to open: this gather waits for all.
        reason = _first_reason(gather_json(answer))
        return ((), reason) if reason else (tuple(vectors), "")


def _offer(num_bytes: int, opened: ExitStack) -> dict[str, Any]:
    """Allocate memory that other processes can map; return its path, or the reason why there is
    none.
    """
    if not hasattr(os, "memfd_create"):
        return {"reason": "only Linux has memfd_create"}
    name = f"bsweep-{secrets.token_hex(8)}"
    try:
        file = os.memfd_create(name)
        opened.callback(os.close, file)
        # Allocate now, where a lack of memory raises an error; later it would be a signal.
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        return {"reason": f"{num_bytes} bytes: {error}"}
    return {"reason": "", "path": f"/proc/{os.getpid()}/fd/{file}", "name": name}


def _first_reason(answers: Sequence[Mapping[str, Any]]) -> str:
    return next(
        (f"rank {rank}: {one['reason']}" for rank, one in enumerate(answers) if one["reason"]), ""
    )


def _mapped(offer: Mapping[str, Any], like: Tensor) -> Tensor:
    """Return a tensor whose memory is the file that a worker has offered to share.

    Raise OSError if the file is missing or is another one. That happens across containers, which
    number their processes separately.
    """
    path = Path(offer["path"])
    if str(path.readlink()) != f"/memfd:{offer['name']} (deleted)":
        raise OSError(
            f"{path} is not the memory that a worker offered to share, perhaps because the "
            "workers run in different containers"
        )
    return torch.from_file(str(path), shared=True, size=like.numel(), dtype=like.dtype)


NUM_MEETINGS = 2
"""The number of times that workers wait for one another while they sum their gradients once."""


class Sum:
    """A callable that replaces each worker's vector in shared memory by the sum of all workers'
    vectors.
    """

    def __init__(self, vectors: Sequence[Tensor], group: dist.ProcessGroup, rank: int) -> None:
        self._group, self._signal = group, torch.zeros(1)
        start, stop = _part(vectors[0].numel(), vectors[0].element_size(), len(vectors), rank)
        # A block's sum stays in the cache until it is written to all vectors. A block has enough
        # elements for all threads.
        size = _BLOCK_ELEMENTS * torch.get_num_threads()
        in_order = [
            vectors[(rank - turn) % len(vectors)][start:stop] for turn in range(1, len(vectors) + 1)
        ]
        self._blocks = list(zip(*(vector.split(size) for vector in in_order), strict=True))
        self._total = vectors[0].new_empty(size)

    def __call__(self) -> None:
        """Replace the vector of every worker by the sum of all workers' vectors; all workers call
        it together, and each sums its own part.

        Raise RuntimeError if another worker ended; the group detects that.
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
        """Wait until all workers of the group have called this method.

        A small all-reduce takes half as long as torch's own barrier when workers share cores.
        """
        dist.all_reduce(self._signal, group=self._group)


_BLOCK_ELEMENTS = 32_768  # torch uses one thread for fewer elements


def _part(num_elements: int, element_bytes: int, num_workers: int, rank: int) -> tuple[int, int]:
    """Return the range (start, stop) of vector elements that the worker `rank` sums.

    In Gloo's ring this worker is the last to add to that part (allreduce.cc; torch 2.13).
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
    """Return the smallest multiple of the number `of` that is at least `number`."""
    return -(-number // of) * of
