"""Horovod's all-reduce of ResNet-18's gradient against torch.distributed's Gloo on the same vector,
by two workers on the CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benches.common import ROOT, Seconds, alternating, horovodrun, medians
from bsweep.core.ranks import World
from bsweep.runlog.files import RunPaths
from bsweep.train import worker
from tests.support.running import compose


def exchange(*overrides: str) -> Seconds:
    """Return the seconds of both exchanges, and of a barrier, by round."""
    result = subprocess.run(
        horovodrun("benches.exchange", *overrides),
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    sentence, results = (
        line.partition(":")[2]
        for line in result.stdout.splitlines()
        if line.startswith("[0]<stdout>")
    )
    print(sentence)
    rounds: Seconds = json.loads(results)
    return rounds


def be_worker(*overrides: str) -> None:
    """Take part as one of the two processes; the first prints a sentence, then the seconds."""
    import horovod.torch as hvd
    import torch.distributed as dist

    torch.set_num_threads(1)
    world = World.from_environment()
    hvd.init()
    store = hvd.broadcast_object(tempfile.mktemp(), root_rank=0)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=world.rank, world_size=world.num_workers
    )
    point = ("local_batch=8", f"num_workers={world.num_workers}", "data=synthetic", "device=cpu")
    job = worker.set_up(compose(*point, *overrides), RunPaths(Path("nowhere")), world)
    job.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    gloo_vector = job.vector.gradients.clone()

    def gloo() -> None:
        dist.barrier()
        dist.all_reduce(gloo_vector)

    def ours() -> None:
        dist.barrier()
        job.strategy.step()

    programs = {"torch.distributed": gloo, "horovod": ours, "barrier": dist.barrier}
    rounds = alternating(programs, rounds=15)
    if world.rank == 0:
        middle = medians(rounds)
        horovod, gloo_alone = (
            (middle[name] - middle["barrier"]) * 1e3 for name in ("horovod", "torch.distributed")
        )
        print(
            f"exchange of {job.vector.num_bytes / 1e6:.1f} MB: Horovod {horovod:.3g} ms, "
            f"torch.distributed {gloo_alone:.3g} ms: {horovod / gloo_alone:.2f}x"
        )
        print(json.dumps(rounds))
    dist.destroy_process_group()


if __name__ == "__main__":
    be_worker(*sys.argv[1:])
