"""The constants of a simulated cluster: how long a worker computes, how much steps differ, what an
exchange takes beside its time on the wire, and the bytes of the model.

They come from a study's records, from a file of `bsweep probe`, or from what a vendor has published
of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from bsweep.analysis.cell_tables.means import ring_bytes, run_steps
from bsweep.analysis.prediction.comparable_runs import selected
from bsweep.analysis.prediction.critical_batch import P95
from bsweep.analysis.prediction.probed_steps import probe_timings, read_probe
from bsweep.analysis.prediction.step_time import Cell, Timing, fit_step_time
from bsweep.analysis.prediction.ways import PARAMETER_BYTES, passes_of, ways_of
from bsweep.analysis.simulation.network import Array, Link
from bsweep.analysis.study.cards import capabilities_of
from bsweep.analysis.study.frames import Study
from bsweep.core.words import counted
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import starts

NUM_DRAWS = 20
"""The number of draws of the constants. Each simulates its part of the steps."""

_FITTED_DRAWS = 400
_MISSED = 0.1  # of the logarithm of an exchange's seconds, by its model, before any run is seen
_FEW = 5  # the number of runs that this weighs
_MOST_READ = 10  # runs whose records are read for facts of their model
_UNSURE = 0.15  # of the logarithm of an exchange's seconds on links that nobody has measured
OTHER_WAY = 0.15
"""By how much a simulated step may be wrong if no run of the study measured its way to exchange:
the standard deviation of the logarithm of its seconds. `between_ways` in `simulate_truth.py` finds
it in `results/measured`, by simulations of one way from the runs of another.
"""
BEYOND = 0.09
"""By how much a simulated step may be wrong if it has twice as many workers as any that was
measured: the standard deviation of the logarithm of its seconds, which grows with the square root
of the doublings. `beyond` in `simulate_truth.py` finds it in `results/measured/clusters`.
"""
_STRETCH = 20  # steps of a stretch, if not measured
_MOST_SPREAD = 1.0  # of logarithms: few disturbed steps must not make all steps wild
_SAME = ("model", "data", "hardware", "device", "precision")
# The columns of runs by which simulated steps are compared with measured ones.
_MEASURED = [
    "strategy", "compression", "allocation", "num_workers", "local_batch", "global_batch",
    "step_seconds",
]  # fmt: skip
_RINGS = ("horovod", "allreduce", "ddp")  # they exchange as a ring, if nothing else was recorded
NORMAL = np.round(ndtri((np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS), 2)
"""The middles of as many equally likely parts of a normal distribution, so that few draws have its
quantiles.
"""


@dataclass(frozen=True)
class Spread:
    """The relative seconds of the steps of one worker, whose mean is 1.

    Steps differ log-normally. `fast` and `slow` are standard deviations of logarithms, between
    steps and between stretches of `stretch` steps, such as epochs.
    """

    fast: float = 0.0
    slow: float = 0.0
    stretch: int = _STRETCH

    def draw(self, num_steps: int, num_workers: int, rng: np.random.Generator) -> Array:
        """Return the relative seconds of steps, shape (steps, workers). Workers are independent."""
        count = -(-num_steps // self.stretch)  # stretches, rounded up
        steps = np.exp(self.fast * rng.standard_normal((num_steps, num_workers)) - self.fast**2 / 2)
        if self.slow:
            logs = self.slow * rng.standard_normal((count, num_workers)) - self.slow**2 / 2
            steps *= np.repeat(np.exp(logs), self.stretch, axis=0)[:num_steps]
        return np.asarray(steps)


def spread_of(epochs: pd.DataFrame) -> Spread:
    """Return the spread of steps by the medians and 95th percentiles of runs' epochs.

    Args:
        epochs: Rows with `run_id`, `num_steps`, `step_seconds_p50` and `step_seconds_p95`.
    """
    timed = epochs[(epochs["step_seconds_p50"] > 0) & (epochs["num_steps"] > 2)]
    if timed.empty:
        return Spread()
    ratio = np.log((timed["step_seconds_p95"] / timed["step_seconds_p50"]).clip(lower=1))
    logs = np.log(timed["step_seconds_p50"])
    within = logs - logs.groupby(timed["run_id"]).transform("mean")
    freedom = len(within) - timed["run_id"].nunique()
    slow = float(np.sqrt((within**2).sum() / freedom)) if freedom > 0 else 0.0
    fast = float(np.median(ratio)) / P95
    stretch = max(1, int(timed["num_steps"].median()))
    return Spread(min(fast, _MOST_SPREAD), min(slow, _MOST_SPREAD), stretch)


@dataclass(frozen=True, eq=False)
class Constants:
    """Knowledge of workers and their model, from which a cluster of them is simulated.

    A pass of a worker takes `pass_seconds` plus `example_seconds` for each example, one value for
    each draw. `exchange_factors` are by how much an exchange may differ from the model.
    `example_bytes` is what the messages of an example take between workers that split the model.
    """

    pass_seconds: Array
    example_seconds: Array
    parameter_bytes: float
    local_batch: int
    source: str
    spread: Spread = field(default_factory=Spread)
    example_bytes: float = 0.0
    exchange_factors: Array = field(default_factory=lambda: exchange_factors())
    link: Link | None = None  # as measured, between the workers of the study
    other_way: float = OTHER_WAY  # for exchanges that were not measured
    beyond: float = BEYOND  # for each doubling of the measured workers
    codec_seconds: Mapping[str, float] = field(default_factory=dict)  # of a step
    codec_shares: Mapping[str, float] = field(default_factory=dict)  # of the gradient's bytes
    speeds: tuple[float, ...] = (1.0,)  # of workers, again and again
    memories: tuple[float, ...] = ()  # in GB, of workers, again and again; empty: unknown
    largest_batches: tuple[int, ...] = ()  # that workers hold, as probed; empty: unknown
    backward: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    """Parts of the backward pass in its order: their shares of the gradient's bytes and of the
    time.
    """
    layer_shares: tuple[float, ...] = ()  # of the parameters, for servers that hold whole layers
    num_blocks: int = 12  # of the model, which sharded and tensor workers exchange one by one
    pieces: tuple[str, ...] = ()  # of the model, which pipelines cut between them; empty: unknown
    is_gpu: bool = False
    precision: str = "fp32"  # in which the workers compute
    measured: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_MEASURED))


def of_study(
    study: Study, where: Mapping[str, str] | None = None, parameters: float | None = None
) -> Constants:
    """Return the constants that a study's records have.

    Args:
        study: The study.
        where: Columns of the runs, and the value to select in each.
        parameters: The number of the model's parameters; None: as recorded.

    Raises:
        ValueError: If runs differ in model, data, hardware or alike, no steps were timed, or the
            size of the model is unknown. The message says what to do.
    """
    runs = selected(study.runs, where or {})
    runs = runs[runs["status"].isin(["completed", "interrupted", "timeout", "diverged"])]
    for name in (name for name in _SAME if name in runs):
        if runs[name].astype(str).nunique() > 1:
            values = ", ".join(sorted(set(runs[name].astype(str))))
            raise ValueError(
                f"{study.name}: a simulation needs runs with one {name}, but these have {values}. "
                f"Choose with --where {name}=VALUE, as `bsweep simulate` and `bsweep predict` "
                "take it."
            )
    steps = _steps(study, runs)
    timed = _timed(study, steps)
    facts = zip(timed["local_batch"], passes_of(timed), timed["compute_seconds"], strict=True)
    timings = [
        Timing(Cell(batch, 1, int(passes)), seconds, "compute") for batch, passes, seconds in facts
    ]
    threads = timed["threads"].dropna()
    alone = timed[timed["num_workers"] == 1]
    spread_runs = (alone if len(alone) else timed)["run_id"]
    link, factors = _measured_link(steps)
    by_codec = steps.groupby("compression")["codec_seconds_of_step"]
    codec_seconds: dict[Any, float] = by_codec.median().dropna().to_dict()
    return Constants(
        **_fitted(timings),
        parameter_bytes=(parameters or 0) * PARAMETER_BYTES or _parameter_bytes(study, steps),
        local_batch=int(runs["local_batch"].mode()[0]),
        source=f"measured in {study.name}"
        + (f", workers with {counted(int(threads.iloc[0]), 'thread')}" if len(threads) else ""),
        spread=spread_of(study.epochs[study.epochs["run_id"].isin(spread_runs)]),
        example_bytes=max(way.example_bytes for way in ways_of(study, runs)[1].values()),
        link=link,
        exchange_factors=factors,
        codec_seconds=codec_seconds,
        codec_shares=_codec_shares(steps),
        is_gpu=not runs["device"].eq("cpu").all(),
        precision=str(runs["precision"].iloc[0]),
        measured=steps,
        **_model_facts(study, runs),
    )


def _model_facts(study: Study, runs: pd.DataFrame) -> dict[str, Any]:
    """Return the shares of a model's layers, the number of its blocks and the names of its pieces,
    as far as the records of a study's runs have them.
    """
    facts: dict[str, Any] = {}
    for run_id in runs["run_id"].head(_MOST_READ):
        for start in starts(RunPaths(study.folder / run_id).metrics)[:1]:
            if sizes := start.get("layer_parameters"):
                facts["layer_shares"] = tuple(size / sum(sizes) for size in sizes)
            if number := start.get("num_blocks"):
                facts["num_blocks"] = number
            stages = start.get("stages") or ()
            if pieces := start.get("pieces") or [name for stage in stages for name in stage]:
                facts["pieces"] = tuple(pieces)
    return facts


def _timed(study: Study, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of runs whose workers' computing was timed. If workers had different numbers
    of threads, those with the most count, as on a host of their own.
    """
    timed = steps[steps["compute_seconds"] > 0]
    if timed.empty:
        raise ValueError(
            f"{study.name} has no run whose steps were timed, alone on one worker or with its "
            "exchange. Train a run on one worker, or give `bsweep simulate` --probe or --machine "
            "in place of the study."
        )
    threads = timed["threads"].astype(float).fillna(0)
    return timed[threads == threads.max()]


def of_probe(path: str | Path, parameter_bytes: float) -> Constants:
    """Return the constants in a file of `bsweep probe`.

    Raises:
        ValueError: If the file is no probe, or no batch was probed on all workers.
    """
    timings = [
        timing._replace(cell=timing.cell._replace(num_workers=1))
        for timing in probe_timings(path)
        if timing.kind == "compute"
    ]
    workers = read_probe(path).workers
    return Constants(
        **_fitted(timings),
        parameter_bytes=parameter_bytes,
        local_batch=max(round(timing.cell.local_batch) for timing in timings),
        source=f"measured in {path}",
        largest_batches=tuple(worker.largest_batch for worker in workers),
        precision=workers[0].precision,
    )


def _fitted(timings: list[Timing]) -> dict[str, Any]:
    """Return draws of the seconds of a pass and of an example, fitted to timings of lone workers.

    They include what the fit misses at a cell, and the scatter between runs.
    """
    fit = fit_step_time(timings, _FITTED_DRAWS)
    places = np.linspace(0, _FITTED_DRAWS - 1, NUM_DRAWS).astype(int)
    order = np.argsort(fit.pass_seconds + fit.example_seconds * timings[0].cell.local_batch)
    draws = np.random.default_rng(0).permutation(order[places])
    scatter = np.hypot(fit.tau, fit.sigma)[draws]
    missed = np.exp(scatter * np.random.default_rng(1).permutation(NORMAL))
    return {
        "pass_seconds": fit.pass_seconds[draws] * missed,
        "example_seconds": fit.example_seconds[draws] * missed,
    }


def _steps(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run with the seconds of its steps and of their parts, the bytes that a
    worker sent in a step, and the messages that followed one another.

    `compute_seconds` is NaN if the exchange of several workers was not timed, or hidden by
    computing, and for models that are split.
    """
    table = runs.join(run_steps(study).add_suffix("_of_step"), on="run_id")
    is_alone = table["num_workers"] == 1
    is_plain = np.array(
        [not can.splits_model and can.exchanges_in_passes is False for can in capabilities_of(runs)]
    )
    is_known = (is_alone | is_plain) & table["local_batches"].fillna("").eq("")
    seconds = table["total_seconds_of_step"]
    lone_seconds = seconds - table["codec_seconds_of_step"].fillna(0)
    computing = table["compute_seconds_of_step"].mask(is_alone, lone_seconds).where(is_known)
    return table.assign(step_seconds=seconds, compute_seconds=computing)


def _parameter_bytes(study: Study, steps: pd.DataFrame) -> float:
    """Return the bytes of the model's parameters, as recorded, or by what a ring sends."""
    recorded = pd.to_numeric(steps.get("num_parameters", pd.Series(dtype=float)))
    if recorded.notna().any():
        return float(recorded.max()) * PARAMETER_BYTES
    is_ring = steps["strategy"].isin(_RINGS) & steps["compression"].isin(["none"])
    rings = steps[is_ring & (steps["num_workers"] > 1)]
    if rings.empty:
        raise ValueError(
            f"{study.name} does not say how large the model is. Train one of its points again, "
            "which records that, or give `bsweep simulate` --parameters 11e6."
        )
    each = ring_bytes(rings.assign(num_parameters=1, precision="fp32")).to_numpy()
    return float((rings["sent_bytes_of_step"] / each).median()) * PARAMETER_BYTES


def _measured_link(steps: pd.DataFrame) -> tuple[Link | None, Array]:
    """Return the links on which a study exchanged, and by how much exchanges differ from them.

    The seconds of an exchange are fitted as a latency for each message and seconds for each byte.
    """
    names = ["exchange_seconds_of_step", "exchange_steps_of_step", "sent_bytes_of_step"]
    in_ring = (2 * (steps["num_workers"] - 1)).where(steps["strategy"].isin(_RINGS))
    steps = steps.assign(exchange_steps_of_step=steps["exchange_steps_of_step"].fillna(in_ring))
    timed = steps.loc[steps["num_workers"] > 1, names].dropna().astype(float)
    timed = timed[(timed > 0).all(axis=1)]
    if timed.empty:
        return None, exchange_factors()
    from scipy.optimize import nnls  # whose import takes long, and few simulations need it

    seconds, messages, sent = timed.to_numpy().T
    has_both = len(np.unique(np.round(sent / messages, -3))) > 1
    columns = np.stack([messages * has_both, sent]).T
    latency, byte_seconds = nnls(columns / seconds[:, None], np.ones(len(seconds)))[0]
    if not byte_seconds > 0:
        return None, exchange_factors()
    off = np.log(seconds / (columns @ [latency, byte_seconds]))
    # Few runs tell little of what the model of an exchange misses.
    spread_of_logs = np.sqrt((off @ off + _FEW * _MISSED**2) / (len(off) + _FEW))
    return Link(1 / byte_seconds, float(latency)), exchange_factors(min(spread_of_logs, 0.5))


def exchange_factors(spread_of_logs: float = _UNSURE) -> Array:
    """Return draws of the factor by which an exchange differs from the model of it."""
    return np.exp(spread_of_logs * np.random.default_rng(2).permutation(NORMAL))


def _codec_shares(steps: pd.DataFrame) -> dict[Any, float]:
    """Return for each codec what a worker sent of the bytes that it sends without one, of runs with
    equally many workers.
    """
    groups = steps[steps["num_workers"] > 1].groupby(["num_workers", "compression"])
    sent = groups["sent_bytes_of_step"].median().unstack()
    if "none" not in sent:
        return {}
    return sent.div(sent["none"], axis="index").median().dropna().to_dict()
