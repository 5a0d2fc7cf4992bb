"""A rank that breaks so many exchanges off, and sums after each.

`horovodrun -np N python -m tests.support.one_restart NUMBER DEVICE`
"""

from __future__ import annotations

import sys
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

from bsweep.launch import warm


def main(number: int, device: torch.device) -> int:
    rank = warm.WarmRank()
    rank.agree_where_to_meet()
    for attempt in range(number):
        if hvd.rank() == attempt % hvd.size():
            time.sleep(0.05)  # the others wait for this rank, which fails
        else:
            _wait_in_vain(device)
        rank.restart()
        assert hvd.allgather_object(attempt) == [attempt] * hvd.size()
        for size in (1, 3, 4099):
            numbers = torch.arange(size, dtype=torch.float64, device=device)
            total = hvd.allreduce(numbers * (1 + hvd.rank()), op=hvd.Sum, name=f"sum.{size}")
            assert torch.equal(total, numbers * sum(range(1, 1 + hvd.size())))
    print(f"restarted {number} times", flush=True)
    return 0


def _wait_in_vain(device: torch.device) -> None:
    try:
        while True:
            hvd.allreduce(torch.ones(1000, device=device), name="gradient")
    except HorovodInternalError:
        pass


if __name__ == "__main__":
    hvd.init()
    device = torch.device(sys.argv[2], hvd.local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    sys.exit(main(int(sys.argv[1]), device))
