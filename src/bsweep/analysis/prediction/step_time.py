"""Seconds of a step by local batch and workers, in Pollux's form (Qiao et al., OSDI 2021), from
steps of a few cells.

    T = (passes - 1) T_grad + (T_grad^g + T_sync^g)^(1/g),   T_grad = a_c + b_c b,   T_sync = a_s +
    b_s max(N - 2, 0)

with T_sync = 0 for one worker. Errors are multiplicative. What the data do not tell keeps its
prior, so that an exchange measured on two workers says little of eight, and says so by its
interval. Priors, as medians with a factor of one standard deviation, in units of the median step
measured (t) and the geometric mean local batch (b0): a_c and b_c b0 half of t, factor 10; a_s a
tenth of t, factor 10; b_s a tenth of a_s, factor 10; g log-uniform in [1, 10]; scatter between runs
0.05, factor 2; what the form misses at a cell 0.05, factor 2, in variance more for each doubling of
batch or workers beyond those measured.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtr

from bsweep.analysis.prediction import cells
from bsweep.analysis.prediction.sampler import NUM_DRAWS, Array, posterior
from bsweep.core import pollux

Kind = Literal["step", "compute", "exposed", "exchange"]

_FACTOR, _SPREAD, _SPREAD_FACTOR = 10.0, 0.05, 2.0
_CLOCK_SPREAD = (
    0.25  # of what a run says of its exchange, which other clocks took and computing disturbs
)


class Cell(NamedTuple):
    """What decides a step's time: examples of a forward pass of one worker, passes of a step, and
    workers.
    """

    local_batch: float
    num_workers: int
    passes: int = 1


class Timing(NamedTuple):
    """Seconds measured: a whole `step`, its passes alone (`compute`), the `exchange` alone, or what
    of it computing did not hide (`exposed`).
    """

    cell: Cell
    seconds: float
    kind: Kind = "step"


@dataclass(frozen=True, eq=False)
class StepTimeFit:
    """The posterior, by draw; `cells` are those whose whole steps were timed, `effects` are by draw
    and cell.
    """

    cells: tuple[Cell, ...]
    pass_seconds: Array  # a_c
    example_seconds: Array  # b_c
    sync_seconds: Array  # a_s
    sync_worker_seconds: Array  # b_s
    overlap: Array  # g
    sigma: Array
    tau: Array
    effects: Array
    # Those whose steps or passes were timed: what lies beyond them is extrapolated.
    passed: tuple[Cell, ...]
    seed: int = 0

    def log_seconds(self, cell: Cell) -> Array:
        """Log of a step's seconds by draw: by the form, and what it misses at the cell; of no
        single run.
        """
        model = np.log(_seconds(self._coefficients(), [cell], ["step"])[:, 0])
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
        """The parts of a step by draw: the fixed cost of its passes, computing that grows with the
        batch, exchange.
        """
        whole = _seconds(self._coefficients(), [cell], ["step"])[:, 0]
        fixed = cell.passes * self.pass_seconds / whole
        computing = cell.passes * self.example_seconds * cell.local_batch / whole
        return fixed, computing, np.asarray(np.maximum(0, 1 - fixed - computing))

    def _coefficients(self) -> tuple[Array, ...]:
        return (
            self.pass_seconds, self.example_seconds, self.sync_seconds, self.sync_worker_seconds,
            self.overlap
        )  # fmt: skip


def fit_step_time(
    timings: Sequence[Timing], num_draws: int = NUM_DRAWS, seed: int = 0
) -> StepTimeFit:
    """Fit the form to timings, of which one at least is of whole steps."""
    grouped: dict[tuple[Kind, Cell], list[float]] = defaultdict(list)
    for timing in timings:
        grouped[timing.kind, timing.cell].append(timing.seconds)
    keys = sorted(grouped)
    of_cells = cells.cells_of(cells.cell_runs(grouped[key]) for key in keys)
    kinds, of = [kind for kind, _ in keys], [cell for _, cell in keys]
    clock = np.array([_CLOCK_SPREAD * (kind in ("exposed", "exchange")) for kind in kinds])
    steps = [timing for timing in timings if timing.kind in ("step", "compute")]
    typical = float(np.median([timing.seconds / timing.cell.passes for timing in steps]))
    middle = float(np.exp(np.mean([np.log(timing.cell.local_batch) for timing in steps])))

    def parameters(points: Array) -> tuple[Array, ...]:
        sync = typical / 10 * _FACTOR ** points[:, 2]
        return (
            typical / 2 * _FACTOR ** points[:, 0], typical / 2 / middle * _FACTOR ** points[:, 1],
            sync, sync / 10 * _FACTOR ** points[:, 3], 10 ** ndtr(points[:, 4]),
            _SPREAD * _SPREAD_FACTOR ** points[:, 5], _SPREAD * _SPREAD_FACTOR ** points[:, 6],
        )  # fmt: skip

    def model(coefficients: tuple[Array, ...]) -> Array:
        return np.log(_seconds(coefficients, of, kinds))

    def log_likelihood(points: Array) -> Array:
        *coefficients, sigma, tau = parameters(points)
        return cells.log_likelihood(
            of_cells, model(tuple(coefficients)), sigma, np.hypot(tau[:, None], clock)
        )

    *coefficients, sigma, tau = parameters(posterior(log_likelihood, 7, num_draws, seed))
    rng, spread = np.random.default_rng([seed, 2]), np.hypot(tau[:, None], clock)
    effects = cells.draw_effects(of_cells, model(tuple(coefficients)), sigma, spread, rng)
    whole = [number for number, (kind, _) in enumerate(keys) if kind == "step"]
    timed = tuple(keys[number][1] for number in whole)
    passed = tuple(cell for kind, cell in keys if kind in ("step", "compute"))
    fixed, per_example, sync, per_worker, overlap = coefficients
    return StepTimeFit(
        timed, fixed, per_example, sync, per_worker, overlap, sigma, tau, effects[:, whole],
        passed, seed
    )  # fmt: skip


def probe_timings(path: str | Path) -> tuple[Timing, ...]:
    """What a `probe.json` says: the passes of the slowest worker at each local batch, and an
    exchange alone.

    Raises:
        ValueError: it is no probe, or workers were probed at no batch in common.
    """
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        workers, passes = len(told["workers"]), int(told["probed"]["accumulation_steps"])
        of_workers = [
            {one["local_batch"]: one["step_seconds"] for one in of["batches"]}
            for of in told["workers"]
        ]
        exchange = float(told["exchange_seconds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no probe ({error}). Run `bsweep probe` first.") from None
    shared = sorted(set.intersection(*map(set, of_workers)))
    if not shared:
        raise ValueError(
            f"{path}: its workers were probed at no batch in common. Probe workers that are alike."
        )
    slowest = {batch: max(float(of[batch]) for of in of_workers) for batch in shared}
    timings = [
        Timing(Cell(float(batch), workers, passes), seconds, "compute")
        for batch, seconds in slowest.items()
    ]
    alone = (
        [Timing(Cell(float(shared[0]), workers, passes), exchange, "exchange")]
        if exchange > 0
        else []
    )
    return (*timings, *alone)


def _seconds(coefficients: Sequence[Array], cells: Sequence[Cell], kinds: Sequence[Kind]) -> Array:
    """Seconds of one kind for each of some cells by the form, (draws, cells)."""
    fixed, per_example, sync, per_worker, overlap = (values[:, None] for values in coefficients)
    batch, workers, passes = np.array(cells, float).T
    one_pass = fixed + per_example * batch
    exchange = (workers > 1) * (sync + per_worker * np.maximum(workers - 2, 0))
    of_kind = {
        "step": pollux.step_seconds(one_pass, exchange, overlap, passes),
        "compute": passes * one_pass,
        "exposed": np.maximum(pollux.step_seconds(one_pass, exchange, overlap) - one_pass, 1e-12),
        "exchange": exchange,
    }
    return np.stack([of_kind[kind][:, number] for number, kind in enumerate(kinds)], axis=1)


def _doublings(value: float, measured: Sequence[float]) -> float:
    """How many times a value doubles what was measured, or halves it."""
    if not measured:
        return 0.0
    return float(max(0.0, np.log2(value / max(measured)), np.log2(min(measured) / value)))
