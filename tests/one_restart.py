"""A rank that breaks so many exchanges off: `horovodrun -np N python -m tests.one_restart NUMBER`."""

from __future__ import annotations

import sys
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

from bsweep.launch import warm


def main(number: int) -> int:
    for attempt in range(number):
        if hvd.rank() == attempt % hvd.size():
            time.sleep(0.05)  # the others wait for this rank, which fails
        else:
            _wait_in_vain()
        warm._restart()
        assert hvd.allgather_object(attempt) == [attempt] * hvd.size()
    print(f"restarted {number} times", flush=True)
    return 0


def _wait_in_vain() -> None:
    try:
        while True:
            hvd.allreduce(torch.ones(1000), name="gradient")
    except HorovodInternalError:
        pass


if __name__ == "__main__":
    number = int(sys.argv[1])
    hvd.init()
    warm._agree_where_to_meet()
    sys.exit(main(number))
