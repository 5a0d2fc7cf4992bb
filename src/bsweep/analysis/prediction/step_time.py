"""A formula for the seconds of a step, by local batch, workers and passes, fitted to a few cells
whose steps, passes and exchanges were timed.

The form is that of Pollux (Qiao et al., OSDI 2021):

    T = (passes - 1) T_grad + (T_grad^g + T_sync^g)^(1/g)
    T_grad = a_c + b_c b
    T_sync = a_s + b_s max(N - 2, 0), and 0 for one worker

If runs on fewer workers keep to one node and those on more workers span several, the latter have an
a_s and a b_s of their own, as Pollux has it.

Errors are multiplicative. A parameter that the data do not determine keeps its prior. So an
exchange measured on two workers tells little of eight, and the wide interval shows it. Priors are
given as a median and a factor for one standard deviation. Their units are the median pass measured
(t, a step divided by its passes) and the geometric mean local batch (b0):

- a_c and b_c b0: half of t, factor 10;
- a_s: a tenth of t, factor 10;
- b_s: a tenth of a_s, factor 10;
- g: log-uniform in [1, 10];
- scatter between runs: 0.05, factor 2;
- what the form misses at a cell: 0.05, factor 2. Its variance grows with each doubling of batch or
  workers beyond those measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from scipy.special import ndtr

from bsweep.analysis.prediction import cells
from bsweep.analysis.prediction.cells import Weights
from bsweep.analysis.prediction.sampler import NUM_DRAWS, Array
from bsweep.config.values import Count
from bsweep.core import pollux
from bsweep.core.regular_files import read_regular

Kind = Literal["step", "compute", "exposed", "exchange"]

_FACTOR, _SPREAD, _SPREAD_FACTOR = 10.0, 0.05, 2.0
_MOST_FITTED = 48  # cells and kinds from which the parameters come
_CLOCK_SPREAD = (
    0.25  # extra spread of a run's exchange times: other clocks took them, computing disturbs them
)


class Cell(NamedTuple):
    """The quantities that decide a step's time: local batch, worker count and passes.

    They are the examples in one forward pass of one worker, the workers, and the passes of a step.
    """

    local_batch: float
    num_workers: int
    passes: int = 1


class Timing(NamedTuple):
    """The measured seconds of a step, or of a part of it such as the exchange, at one local batch
    and worker count.

    The kind is a whole `step`, its passes alone (`compute`), the `exchange` alone, or the part of
    the exchange, with its waiting, that computing did not hide (`exposed`).
    """

    cell: Cell
    seconds: float
    kind: Kind = "step"


@dataclass(frozen=True, eq=False)
class StepTimeFit:
    """Posterior draws of the parameters of the formula for the seconds of a step.

    `cells` are those whose whole steps were timed; `effects` are by draw and cell.
    """

    cells: tuple[Cell, ...]
    pass_seconds: Array  # a_c
    example_seconds: Array  # b_c
    sync_seconds: Array  # a_s
    sync_worker_seconds: Array  # b_s
    across_seconds: Array  # a_s between nodes; that within a node if no other is known
    across_worker_seconds: Array  # b_s between nodes
    overlap: Array  # g
    sigma: Array
    tau: Array
    effects: Array
    # The cells whose steps or passes were timed. Cells beyond them are extrapolated.
    passed: tuple[Cell, ...]
    weights: Weights  # of the timings, by kind and cell
    across_from: int | None = None  # the fewest workers that span several nodes, if some do not
    seed: int = 0

    def log_seconds(self, cell: Cell) -> Array:
        """Return the logarithm of the predicted seconds of a step in a cell, one value for each
        posterior draw.

        It includes what the formula misses at the cell, but not the scatter of single runs.
        """
        model = np.log(self._seconds(cell))
        if cell in self.cells:
            return np.asarray(model + self.effects[:, self.cells.index(cell)])
        beyond = _doublings(cell.local_batch, [one.local_batch for one in self.passed])
        beyond += _doublings(cell.num_workers, [one.num_workers for one in self.passed])
        rng = np.random.default_rng(
            [self.seed, round(1e3 * cell.local_batch), cell.num_workers, cell.passes]
        )
        return np.asarray(
            model + self.tau * np.sqrt(1 + beyond) * rng.standard_normal(len(self.tau))
        )

    def shares(self, cell: Cell) -> tuple[Array, Array, Array]:
        """Return the shares of fixed cost, computing and exchange in the predicted time of a step,
        each with one value for each posterior draw.

        The fixed cost is that of the step's passes. Computing is the part of the passes that grows
        with the batch, and the exchange is the rest of the step.
        """
        whole = self._seconds(cell)
        fixed = cell.passes * self.pass_seconds / whole
        computing = cell.passes * self.example_seconds * cell.local_batch / whole
        return fixed, computing, np.asarray(np.maximum(0, 1 - fixed - computing))

    def _seconds(self, cell: Cell) -> Array:
        coefficients = (
            self.pass_seconds, self.example_seconds, self.sync_seconds, self.sync_worker_seconds,
            self.across_seconds, self.across_worker_seconds, self.overlap
        )  # fmt: skip
        one = np.array([cell], float), np.array(["step"])
        return _seconds(coefficients, *one, self.across_from)[:, 0]


def fit_step_time(
    timings: Sequence[Timing], num_draws: int = NUM_DRAWS, seed: int = 0,
    *, across_from: int | None = None, weights: Weights | None = None,
) -> StepTimeFit:  # fmt: skip
    """Fit the formula for the seconds of a step to measured timings of steps, passes and exchanges.

    At least one timing must be of a whole step or of a step's passes. If very many cells were
    timed, the parameters come from an even selection of 48 cells and kinds of timing, which
    determines them well. Each cell still has its own timings in its prediction.

    With `across_from`, an exchange among so many workers or more is between nodes, and has
    parameters of its own. With the `weights` of another fit to these timings and others, none are
    estimated.
    """
    grouped: dict[tuple[Kind, Cell], list[float]] = defaultdict(list)
    for timing in timings:
        grouped[timing.kind, timing.cell].append(timing.seconds)
    keys = sorted(grouped)
    runs = [cells.cell_runs(grouped[key]) for key in keys]
    of_cells = cells.weighted(keys, runs, weights) if weights else cells.cells_of(runs)
    kinds, of = np.array([kind for kind, _ in keys]), np.array([cell for _, cell in keys], float)
    clock = _CLOCK_SPREAD * np.isin(kinds, ["exposed", "exchange"])
    chosen, (typical, middle) = cells.evenly(len(keys), _MOST_FITTED), _scales(timings)

    def parameters(points: Array) -> tuple[Array, ...]:
        exchanges: list[Array] = []
        for place in ((2, 3), (2, 3) if across_from is None else (7, 8)):
            sync = typical / 10 * _FACTOR ** points[:, place[0]]
            exchanges += [sync, sync / 10 * _FACTOR ** points[:, place[1]]]
        return (
            typical / 2 * _FACTOR ** points[:, 0], typical / 2 / middle * _FACTOR ** points[:, 1],
            *exchanges, 10 ** ndtr(points[:, 4]),
            _SPREAD * _SPREAD_FACTOR ** points[:, 5], _SPREAD * _SPREAD_FACTOR ** points[:, 6],
        )  # fmt: skip

    def expected(points: Array, places: Sequence[int]) -> tuple[Array, Array, Array]:
        *coefficients, sigma, tau = parameters(points)
        seconds = _seconds(tuple(coefficients), of[places], kinds[places], across_from)
        return np.log(seconds), sigma, np.hypot(tau[:, None], clock[places])

    count = 7 if across_from is None else 9
    of_cells, points = cells.fitted(
        of_cells, expected, count, num_draws, seed, chosen, is_weighted=bool(weights)
    )
    rng = np.random.default_rng([seed, 2])
    effects = cells.draw_effects(of_cells, *expected(points, range(len(keys))), rng)
    *coefficients, sigma, tau = parameters(points)
    whole = np.flatnonzero(kinds == "step")
    timed = tuple(cell for kind, cell in keys if kind == "step")
    passed = tuple(cell for kind, cell in keys if kind in ("step", "compute"))
    fixed, per_example, sync, per_worker, across, across_per_worker, overlap = coefficients
    return StepTimeFit(
        timed, fixed, per_example, sync, per_worker, across, across_per_worker, overlap, sigma,
        tau, effects[:, whole], passed, cells.weights_of(keys, of_cells), across_from, seed
    )  # fmt: skip


def _scales(timings: Sequence[Timing]) -> tuple[float, float]:
    """Return the median seconds of a timed pass, and the geometric mean of the local batches."""
    steps = [timing for timing in timings if timing.kind in ("step", "compute")]
    typical = float(np.median([timing.seconds / timing.cell.passes for timing in steps]))
    return typical, float(np.exp(np.mean([np.log(timing.cell.local_batch) for timing in steps])))


def probe_timings(path: str | Path) -> tuple[Timing, ...]:
    """Return the timings of passes and of an exchange in the file `probe.json` that `bsweep probe`
    wrote.

    They are the passes of the slowest worker at each local batch that all workers timed, and an
    exchange alone, if one was timed.

    Raises:
        ValueError: If the file is no probe, or no batch was probed on all workers.
    """
    try:
        told = _PROBE.validate_json(read_regular(Path(path)))
    except (OSError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ValueError(f"{path} is not a probe ({reason}). Run `bsweep probe` first.") from None
    workers, passes = len(told.workers), told.probed.accumulation_steps
    of_workers = [
        {one.local_batch: one.step_seconds for one in worker.batches} for worker in told.workers
    ]
    shared = sorted(set.intersection(*map(set, of_workers)))
    if not shared:
        raise ValueError(
            f"{path}: a prediction needs a local batch that was timed on every worker, and there "
            "is none. Run `bsweep probe` again, which times a batch of 1 on every worker."
        )
    slowest = {batch: max(of[batch] for of in of_workers) for batch in shared}
    timings = [
        Timing(Cell(float(batch), workers, passes), seconds, "compute")
        for batch, seconds in slowest.items()
    ]
    alone = (
        [Timing(Cell(float(shared[0]), workers, passes), told.exchange_seconds, "exchange")]
        if told.exchange_seconds > 0
        else []
    )
    return (*timings, *alone)


@dataclass(frozen=True)
class _Batch:
    local_batch: Count
    step_seconds: Annotated[float, Field(gt=1e-9, lt=1e9)]


@dataclass(frozen=True)
class _Worker:
    batches: tuple[_Batch, ...]


@dataclass(frozen=True)
class _Probed:
    accumulation_steps: Count


@dataclass(frozen=True)
class _Probe:
    workers: Annotated[tuple[_Worker, ...], Field(min_length=1)]
    probed: _Probed
    exchange_seconds: Annotated[float, Field(ge=0, lt=1e9)]


_PROBE: TypeAdapter[_Probe] = TypeAdapter(_Probe)


def _seconds(
    coefficients: Sequence[Array], cells: Array, kinds: NDArray[np.str_], across_from: int | None
) -> Array:
    """Return the seconds by the formula for each pair of a cell and a kind of timing, such as
    `step` or `exchange`. The shape is (draws, cells). Each row of `cells` is a `Cell`.
    """
    fixed, per_example, *exchanges, overlap = (values[:, None] for values in coefficients)
    batch, workers, passes = cells.T
    found: Array = passes * (fixed + per_example * batch)
    for kind in ("step", "exposed", "exchange"):
        if not (of := (kinds == kind) & (workers > 1)).any():
            continue
        within, across = (
            one + more * (workers[of] - 2) for one, more in (exchanges[:2], exchanges[2:])
        )
        is_across = workers[of] >= (np.inf if across_from is None else across_from)
        exchange = np.where(is_across, across, within)
        one_pass = found[:, of] / passes[of]
        if kind == "exchange":
            found[:, of] = exchange
        elif kind == "step":
            found[:, of] = pollux.step_seconds(one_pass, exchange, overlap, passes[of])
        else:
            whole = pollux.step_seconds(one_pass, exchange, overlap)
            found[:, of] = np.maximum(whole - one_pass, 1e-12)
    return found


def _doublings(value: float, measured: Sequence[float]) -> float:
    """Return by how many doublings a value, such as a local batch, lies above the largest or below
    the smallest measured value; 0 if it lies between them.
    """
    if not measured:
        return 0.0
    return float(max(0.0, np.log2(value / max(measured)), np.log2(min(measured) / value)))
