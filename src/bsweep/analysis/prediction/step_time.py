"""A formula for the seconds of a step, by local batch, workers and passes, fitted to a few cells
whose steps, passes and exchanges were timed.

The form is that of Pollux (Qiao et al., OSDI 2021):

    T = (passes - 1) T_grad + (T_grad^g + T_sync^g)^(1/g)
    T_grad = a_c + b_c b
    T_sync = a_s + b_s max(N - 2, 0), and 0 for one worker

If runs on fewer workers keep to one node and those on more workers span several, the latter have an
a_s and a b_s of their own, as Pollux has it.

Workers that split a model exchange in every pass, and a pipeline leaves them idle for a share u of
the time, the bubble. Each computes as many examples as if the model was not split, b:

    T = passes (T_grad^g + T_sync^g)^(1/g)
    T_grad = (a_c f + b_c b) / (1 - u)
    T_sync = a_s + b_s (the bytes that a worker sends in a pass, by a formula)

f is 1; in a pipeline it is the micro-batches over the workers of a replica. u is the measured
bubble, or that of the textbook where none was measured (0 for schedules without a formula). If runs
have several strategies, each further one has a factor on T_grad, an a_s and a b_s of its own.

Errors are multiplicative. A parameter that the data do not determine keeps its prior. So an
exchange measured on two workers tells little of eight, and the wide interval shows it. Priors are
given as a median and a factor for one standard deviation. Their units are the median pass measured
(t, a step divided by its passes) and the geometric mean local batch (b0):

- a_c and b_c b0: half of t, factor 10;
- a_s: a tenth of t, factor 10;
- b_s: a tenth of a_s, factor 10; of split models the seconds of a byte that were measured, factor
  3, or else those with which the median bytes take a tenth of t, factor 10;
- factor on T_grad of a further strategy: 1, factor 2;
- g: log-uniform in [1, 10];
- scatter between runs: 0.05, factor 2;
- what the form misses at a cell: 0.05, factor 2. Its variance grows with each doubling of batch or
  workers beyond those measured.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bsweep.analysis.prediction import likelihood
from bsweep.analysis.prediction.likelihood import Weights
from bsweep.analysis.prediction.sampler import NUM_DRAWS, Array
from bsweep.config import pollux

Kind = Literal["step", "compute", "exposed", "exchange"]

_SPREAD_FACTOR, _COMPUTE_FACTOR, _MEASURED_FACTOR = 2.0, 2.0, 3.0
_MOST_FITTED = 48  # cells and kinds from which the parameters come
# Extra spread of a run's exchange times: other clocks took them, and computing disturbs them.
_CLOCK_SPREAD = 0.25


class Form(NamedTuple):
    """The facts of a way of sharing a model on which the time of a cell's steps depends.

    `strategy` has parameters of its own. `fixed` is the number of a pass's fixed costs (f), and
    `busy` the share of time in which workers compute (1 - u). `sent_bytes` is what a worker sends
    in a pass. `way` is the name of a way that splits the model: two ways may differ in nothing
    else, such as FSDP2's units, and yet take other times.
    """

    strategy: str = ""
    fixed: float = 1.0
    busy: float = 1.0
    sent_bytes: float = 0.0
    is_split: bool = False
    way: str = ""


PLAIN = Form()


class Cell(NamedTuple):
    """The quantities that decide a step's time: local batch, worker count and passes.

    They are the examples of one pass for each worker, the workers, and the passes of a step.
    """

    local_batch: float
    num_workers: int
    passes: int = 1
    form: Form = PLAIN

    @property
    def global_batch(self) -> float:
        """The examples of a step of all workers."""
        return self.local_batch * self.num_workers * self.passes


class Timing(NamedTuple):
    """The measured seconds of a step, or of a part of it such as the exchange, at one local batch
    and worker count.

    The kind is a whole `step`, its passes alone (`compute`), the `exchange` alone, or the part of
    the exchange, with its waiting, that computing did not hide (`exposed`).
    """

    cell: Cell
    seconds: float
    kind: Kind = "step"


class StrategyParameters(NamedTuple):
    """Posterior draws of the parameters of one strategy."""

    compute_factor: Array  # of a pass, beside the first strategy
    sync_seconds: Array  # a_s
    sync_more_seconds: Array  # b_s, for each worker beyond two or for each byte


@dataclass(frozen=True, eq=False)
class Parameters:
    """Draws of the parameters of the formula for the seconds of a step."""

    pass_seconds: Array  # a_c
    example_seconds: Array  # b_c
    overlap: Array  # g
    sigma: Array
    tau: Array
    strategies: Mapping[str, StrategyParameters]  # by name, those of whole models first
    # The fewest workers that span several nodes, if some do not, with their a_s and b_s.
    across: tuple[int, Array, Array] | None


@dataclass(frozen=True, eq=False)
class StepTimeFit(Parameters):
    """Posterior draws of the parameters of the formula for the seconds of a step.

    `cells` are those whose whole steps were timed; `effects`, by draw and cell, are what the
    formula misses of them. A cell whose passes or exchange alone were timed has no effect here: its
    timings count in the parameters, but its steps are predicted as those of a cell that was not
    timed.
    """

    cells: tuple[Cell, ...]
    effects: Array
    # The cells whose steps or passes were timed. Cells beyond them are extrapolated.
    passed: tuple[Cell, ...]
    weights: Weights  # of the timings, by kind and cell
    seed: int = 0
    simulated: Mapping[Cell, Array] = field(default_factory=dict)
    """The logarithms of the seconds of cells that come from a simulation, by draw."""

    def knows(self, cell: Cell) -> bool:
        """Return True if steps of the cell's strategy were timed."""
        return cell.form.strategy in self.strategies

    def log_seconds(self, cell: Cell) -> Array:
        """Return the logarithm of the predicted seconds of a step in a cell, one value for each
        posterior draw.

        It includes what the formula misses at the cell, but not the scatter of single runs.
        """
        if cell in self.simulated:
            return self.simulated[cell]
        model = np.log(self._seconds(cell))
        if cell in self.cells:
            return np.asarray(model + self.effects[:, self.cells.index(cell)])
        batches = [timed.local_batch for timed in self.passed]
        workers = [timed.num_workers for timed in self.passed]
        beyond = likelihood.doublings_beyond(cell.local_batch, batches)
        beyond += likelihood.doublings_beyond(cell.num_workers, workers)
        seeds = [self.seed, round(1e3 * cell.local_batch), cell.num_workers, cell.passes]
        if cell.form != PLAIN:
            seeds.append(zlib.crc32(repr(cell.form).encode()))
        return np.asarray(model + likelihood.effect_beyond(self.tau, beyond, seeds))

    def shares(self, cell: Cell) -> tuple[Array, Array, Array, Array]:
        """Return the shares of fixed cost, computing, bubble and exchange in the predicted time of
        a step, each with one value for each posterior draw.

        The fixed cost is that of the step's passes. Computing is the part of the passes that grows
        with the batch. The bubble is the time in which the passes leave workers of a pipeline idle,
        and the exchange is the rest of the step.
        """
        is_simulated = cell in self.simulated
        whole = np.exp(self.simulated[cell]) if is_simulated else self._seconds(cell)
        factor = self.strategies[cell.form.strategy].compute_factor
        fixed = cell.passes * cell.form.fixed * factor * self.pass_seconds / whole
        computing = cell.passes * factor * self.example_seconds * cell.local_batch / whole
        bubble = (fixed + computing) * (1 / cell.form.busy - 1)
        exchange = np.maximum(0, 1 - fixed - computing - bubble)
        return fixed, computing, np.asarray(bubble), np.asarray(exchange)

    def _seconds(self, cell: Cell) -> Array:
        rows = _rows([cell], [*self.strategies])
        return _seconds(self, rows, np.array(["step"]))[:, 0]


def fit_step_time(
    timings: Sequence[Timing], num_draws: int = NUM_DRAWS, seed: int = 0,
    *, across_from: int | None = None, weights: Weights | None = None,
    byte_seconds: float | None = None,
) -> StepTimeFit:  # fmt: skip
    """Fit the formula for the seconds of a step to measured timings of steps, passes and exchanges.

    At least one timing must be of a whole step or of a step's passes. If very many cells were
    timed, the parameters come from an even selection of 48 cells and kinds of timing, which
    determines them well. Each cell still has its own timings in its prediction.

    With `across_from`, an exchange among so many workers or more is between nodes, and has
    parameters of its own, if no model is split. With the `weights` of another fit to these timings
    and others, none are estimated. `byte_seconds` are the measured seconds of a sent byte.
    """
    grouped: dict[tuple[Kind, Cell], list[float]] = defaultdict(list)
    for timing in timings:
        grouped[timing.kind, timing.cell].append(timing.seconds)
    keys = sorted(grouped)
    runs = {key: likelihood.cell_runs(grouped[key]) for key in keys}
    kinds = np.array([kind for kind, _ in keys])
    prior = _Prior.of(timings, across_from, byte_seconds)
    rows = _rows([cell for _, cell in keys], [*prior.is_split])
    clock = _CLOCK_SPREAD * np.isin(kinds, ["exposed", "exchange"])

    def expected(points: Array, places: Sequence[int]) -> tuple[Array, Array, Array]:
        parameters = prior.parameters(points)
        seconds = _seconds(parameters, rows[places], kinds[places])
        spread = np.hypot(parameters.tau[:, None], clock[places])
        return np.log(seconds), parameters.sigma, spread

    chosen = likelihood.evenly(len(keys), _MOST_FITTED)
    points, effects, weights = likelihood.fitted(
        runs, expected, prior.num_parameters, num_draws, (seed, 2), chosen, weights
    )
    return StepTimeFit(
        **vars(prior.parameters(points)),
        cells=tuple(cell for kind, cell in keys if kind == "step"),
        effects=effects[:, np.flatnonzero(kinds == "step")],
        passed=tuple(cell for kind, cell in keys if kind in ("step", "compute")),
        weights=weights,
        seed=seed,
    )


@dataclass(frozen=True)
class _Prior:
    """The priors of the parameters, all of which are standard normal before they are scaled.

    `passes` has those that do not depend on the strategy. `byte_seconds` is the median seconds of a
    byte, with `byte_factor` as one standard deviation. `is_split` has each strategy, those of whole
    models first.
    """

    passes: pollux.Prior
    byte_seconds: float
    byte_factor: float
    is_split: Mapping[str, bool]
    across_from: int | None

    @staticmethod
    def of(
        timings: Sequence[Timing], across_from: int | None, byte_seconds: float | None
    ) -> _Prior:
        steps = [timing for timing in timings if timing.kind in ("step", "compute")]
        passes = pollux.Prior.from_passes(
            [timing.seconds / timing.cell.passes for timing in steps],
            [timing.cell.local_batch for timing in steps],
        )
        forms = sorted(
            {timing.cell.form for timing in timings}, key=lambda form: (form.is_split, form)
        )
        sent = [form.sent_bytes for form in forms if form.sent_bytes] or [1.0]
        factor = pollux.FACTOR if byte_seconds is None else _MEASURED_FACTOR
        by_byte = byte_seconds or passes.typical / 10 / float(np.median(sent))
        is_split = {form.strategy: form.is_split for form in forms}
        return _Prior(passes, by_byte, factor, is_split, across_from)

    @property
    def num_parameters(self) -> int:
        return self._num_of_first + 3 * (len(self.is_split) - 1)

    @property
    def _num_of_first(self) -> int:
        return 7 if self.across_from is None else 9

    def parameters(self, points: Array) -> Parameters:
        """Return the parameters at points of the sampler."""
        columns, strategies = points.T, dict[str, StrategyParameters]()
        first, *others = self.is_split
        exchange = self._exchange(first, columns[2], columns[3])
        strategies[first] = StrategyParameters(np.ones(len(points)), *exchange)
        begins = range(self._num_of_first, self.num_parameters, 3)
        for strategy, begin in zip(others, begins, strict=True):
            factor, sync, more = columns[begin : begin + 3]
            exchange = self._exchange(strategy, sync, more)
            strategies[strategy] = StrategyParameters(_COMPUTE_FACTOR**factor, *exchange)
        sigma, tau = (pollux.SPREAD * _SPREAD_FACTOR**column for column in columns[5:7])
        across = None
        if self.across_from is not None:
            across = self.across_from, *self._exchange(first, columns[7], columns[8])
        return Parameters(
            self.passes.fixed_seconds(columns[0]), self.passes.example_seconds(columns[1]),
            self.passes.overlap(columns[4]), sigma, tau, strategies, across,
        )  # fmt: skip

    def _exchange(self, strategy: str, first: Array, more: Array) -> tuple[Array, Array]:
        sync = self.passes.sync_seconds(first)
        if self.is_split[strategy]:
            return sync, self.byte_seconds * self.byte_factor**more
        return sync, sync / 10 * pollux.FACTOR**more


def _rows(cells: Sequence[Cell], strategies: Sequence[str]) -> Array:
    """Return cells as rows of numbers, in which the place of a strategy stands for its name."""
    rows = [(*cell[:3], strategies.index(cell.form.strategy), *cell.form[1:-1]) for cell in cells]
    return np.array(rows, float)


def _seconds(parameters: Parameters, rows: Array, kinds: NDArray[np.str_]) -> Array:
    """Return the seconds by the formula for each pair of a cell and a kind of timing, such as
    `step` or `exchange`. The shape is (draws, cells). `rows` are those of `_rows`.
    """
    overlap = parameters.overlap[:, None]
    fixed, per_example = parameters.pass_seconds[:, None], parameters.example_seconds[:, None]
    batch, workers, passes, strategy, costs, busy, sent, is_split = rows.T
    factor, sync, sync_more = (
        np.take(np.stack(values, axis=1), strategy.astype(int), axis=1)
        for values in zip(*parameters.strategies.values(), strict=True)
    )
    one_pass: Array = (fixed * costs + per_example * batch) / busy * factor
    # Bytes of split models, and workers of others, make an exchange longer.
    more = np.where(is_split, sent, workers - 2)
    exchange: Array = sync + sync_more * more
    if parameters.across is not None:
        fewest, across, across_more = parameters.across
        is_across = (workers >= fewest) & (strategy == 0) & ~is_split.astype(bool)
        exchange[:, is_across] = across[:, None] + across_more[:, None] * more[is_across]
    seconds: Array = passes * one_pass
    is_apart = (kinds == "exchange") & (workers > 1)
    seconds[:, is_apart] = exchange[:, is_apart]
    meets = np.isin(kinds, ["step", "exposed"]) & (workers > 1)
    if meets.any():
        # A cell may have both kinds, and its powers are what takes time.
        _, first, places = np.unique(rows[meets], axis=0, return_index=True, return_inverse=True)
        passing, exchanging = one_pass[:, meets], exchange[:, meets]
        whole = pollux.step_seconds(passing[:, first], exchanging[:, first], overlap)
        whole = whole[:, places.ravel()]
        meeting = np.where(is_split[meets], passes[meets], 1)  # passes that exchange
        step = (passes[meets] - meeting) * passing + meeting * whole
        exposed = np.maximum(whole - passing, 1e-12)
        seconds[:, meets] = np.where(kinds[meets] == "step", step, exposed)
    return seconds
