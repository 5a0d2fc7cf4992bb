"""What measuring the gradient noise scale adds to a step at batch 64, of a lone worker and of one among others."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benches import alone
from benches.common import Seconds, alternating, calls_of, medians
from bsweep import noise_meter, steps
from bsweep.data.plan import Share
from bsweep.job import Job
from bsweep.place import Place

SIZE = 64
MOST = 0.02  # of a step


def noise(quick: bool) -> dict[str, Seconds]:
    """Seconds of a step, of the passes on its halves, of all that a worker among others computes, by model."""
    found = {}
    for case in alone.CASES[:1] if quick else alone.CASES[:2]:
        with tempfile.TemporaryDirectory() as folder:
            words = ("strategy=single", "launch=inline", "measure.noise_scale=true")
            config = case.config(Path(folder), *words)
            alone.calibrate([config])
            job = alone.job_of(config, Place())
            found[case.name] = of_job(job, case.name, 3 if quick else 7)
    return found


def of_job(job: Job, name: str, rounds: int) -> Seconds:
    batch = torch.arange(SIZE, device=job.dataset.train_labels.device)
    meter = job.noise
    assert meter

    def halves() -> None:
        meter.begin_step([Share(SIZE, 1)], SIZE, 0, False)
        steps._halves(job, meter, batch, 1)
        meter.end_step()

    def among_two() -> None:
        meter.begin_step([Share(SIZE, 1)] * 2, 2 * SIZE, 0, False)
        meter.see_own()
        meter._see_sum()  # as the optimizer's hook does
        meter.end_step()

    programs = {"step": alone.of_job(job, SIZE), "halves": halves, "among two": among_two}
    seconds = alternating(programs, rounds, calls=calls_of(SIZE))
    middle = medians(seconds)
    shares = {
        "a lone worker": middle["halves"] / noise_meter.APART_STEPS / middle["step"],
        "a worker among others": middle["among two"] / noise_meter.NORM_STEPS / middle["step"],
    }
    told = ", ".join(f"{share:.2%} for {who}" for who, share in shares.items())
    print(f"noise scale, {name}, batch {SIZE} ({job.numerics}): {told} (target: under {MOST:.0%})", flush=True)
    return seconds
