"""What all benches share: programs in turns, and how they compare."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bsweep import models
from bsweep.data.dataset import Dataset
from bsweep.train.job import Job
from tests.support.running import tool

ROOT = Path(__file__).parents[1]
Program = Callable[[], object]
Seconds = dict[str, list[float]]  # of each program, by round


def alternating(
    programs: Mapping[str, Program], rounds: int, calls: int = 1, before: Program = lambda: None
) -> Seconds:
    """Seconds of a call of each program, in each of `rounds` alternating rounds of so many, after
    one to warm up.

    `before` is called, untimed, before each program's turn.
    """
    seconds: Seconds = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            before()
            start = time.perf_counter()
            for _ in range(calls):
                program()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                seconds[name].append((time.perf_counter() - start) / calls)
    return seconds


def calls_of(size: int) -> int:
    """Steps of a batch to time at once: those of a GPU are queued, those of a small batch are
    short.
    """
    return 50 if torch.cuda.is_available() else 4 if size <= 16 else 1


def medians(seconds: Seconds) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def compared(seconds: Seconds, reference: str, targets: Mapping[str, float]) -> str:
    """How many times as fast as the reference each program is: the ratio of medians, and the
    rounds' quartiles.
    """
    middle = medians(seconds)
    words = [f"{reference} {middle[reference] * 1e3:.3g} ms"]
    for name in seconds:
        if name != reference:
            pairs = zip(seconds[reference], seconds[name], strict=True)
            low, _, high = statistics.quantiles([plain / ours for plain, ours in pairs], n=4)
            target = f", target {targets[name]:g}x" if name in targets else ""
            words.append(
                f"{name} {middle[reference] / middle[name]:.2f}x ({low:.2f}-{high:.2f}{target})"
            )
    return "; ".join(words)


def horovodrun(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of the checkout in two processes."""
    python = [sys.executable, "-u", "-W", "ignore::FutureWarning", "-m", module]
    return [tool("horovodrun"), "-np", "2", "--gloo", *python, *words]


def plain_model(job: Job) -> torch.nn.Module:
    """The job's model as its library has it: fp32, contiguous."""
    config = replace(job.config, channels_last=False)
    return models.initial(config, job.dataset, job.device, torch.float32).train()


def plain_optimizer(job: Job, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Of the same rule as the job's, as one writes it first."""
    group = job.optimizer.param_groups[0]
    if isinstance(job.optimizer, torch.optim.SGD):
        return torch.optim.SGD(model.parameters(), lr=group["lr"], momentum=group["momentum"])
    return torch.optim.AdamW(model.parameters(), lr=group["lr"])


def ready(dataset: Dataset, device: torch.device, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch that needs no more work: float images or tokens, and classes."""
    examples, labels, _ = dataset.train.take(torch.arange(size, device=dataset.train.labels.device))
    inputs = (
        examples.float() / 255
        if examples.dtype == torch.uint8 and examples.dim() == 4
        else examples.long()
    )
    return inputs.to(device), labels.long().to(device)


def plain_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[torch.Tensor]
) -> Program:
    """A training step that anyone writes first."""
    inputs, targets = batch

    def step() -> None:
        optimizer.zero_grad()
        logits = model(inputs)
        torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten()).backward()
        optimizer.step()

    return step
