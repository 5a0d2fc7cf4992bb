"""What measuring the gradient noise scale adds to a step at batch 64, and what deciding on a batch
by it does.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benches import alone
from benches.common import Program, Seconds, alternating, calls_of, medians
from bsweep import batching
from bsweep.core.ranks import Place
from bsweep.data.plan import Share
from bsweep.train import noise_meter
from bsweep.train.halves import measure
from bsweep.train.job import Job
from tests.support.running import compose

SIZE = 64
MOST = 0.02  # of a step
POLICIES = ("norm_test", "noise_scale", "cabs", "goodput")


def noise(grid: alone.Grid) -> dict[str, Seconds]:
    """By model, seconds of a step, of passes on its halves, of what a worker among others computes,
    and of policies.
    """
    found = {}
    for case in grid.cases[:2]:
        with tempfile.TemporaryDirectory() as folder:
            words = ("strategy=single", "launch=inline", "measure.noise_scale=true")
            config = case.config(Path(folder), *words)
            job = alone.job_of(config, Place())
            found[case.name] = of_job(job, case.name, grid.rounds)
    return found


def of_job(job: Job, name: str, rounds: int) -> Seconds:
    batch = torch.arange(SIZE, device=job.dataset.train_labels.device)
    meter = job.noise
    assert isinstance(meter, noise_meter.NoiseMeter)

    crops = job.inputs.crops(1, job.config.seed)

    def halves() -> None:
        meter.begin_step([Share(SIZE, 1)], SIZE, 0, False)
        measure(job, meter, batch, crops)
        meter.after_step()

    def among_two() -> None:
        meter.begin_step([Share(SIZE, 1)] * 2, 2 * SIZE, 0, False)
        meter.before_exchange()
        meter._see_sum()  # as the optimizer's hook does
        meter.after_step()

    programs = {"step": alone.of_job(job, SIZE), "halves": halves, "among two": among_two}
    seconds = alternating(programs, rounds, calls=calls_of(SIZE))
    seconds |= alternating({name: decisions(job, name) for name in POLICIES}, rounds, calls=400)
    middle = medians(seconds)
    shares = {
        "a lone worker": middle["halves"] / noise_meter.APART_STEPS / middle["step"],
        "a worker among others": middle["among two"] / noise_meter.NORM_STEPS / middle["step"],
    }
    told = ", ".join(f"{share:.2%} for {who}" for who, share in shares.items())
    print(
        f"noise scale, {name}, batch {SIZE} ({alone.numerics(job)}): {told} "
        f"(target: under {MOST:.0%})",
        flush=True,
    )
    print(
        "  deciding:",
        ", ".join(f"{name} {middle[name] / middle['step']:.3%} of a step" for name in POLICIES),
    )
    return seconds


def decisions(job: Job, name: str) -> Program:
    """What a policy does after a step, in the mean over those at which it looks and those at which
    it does not.
    """
    policy = batching.build(
        replace(job.config, batching=compose(f"batching={name}", f"local_batch={SIZE}").batching)
    )
    noise = batching.GradientNoise(squared_norm=1.0, trace=float(SIZE), num_samples=100)
    sums = torch.tensor([SIZE, 0.0, SIZE], dtype=torch.float64)
    seen = batching.RoundStats(
        0.5, (), sums, lambda own: own.unsqueeze(0), noise, 50_000, 0.1, lambda: [0.1] * 200
    )
    return lambda: policy.observe(seen)
