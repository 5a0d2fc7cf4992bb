"""A prediction as people, notebooks and programs see it: sentences, tables and warnings."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bsweep.analysis.conclusions.networks import OWN_LINKS, curves_of
from bsweep.analysis.prediction.critical_batch import LEVEL, CriticalBatch
from bsweep.analysis.prediction.fitting import Fits, leave_out
from bsweep.analysis.prediction.forecast import Forecast, Key, batch_on_workers
from bsweep.analysis.prediction.missing_runs import more_evaluations, wanted_evaluations
from bsweep.analysis.prediction.objectives import (
    CLOSE,
    LEAST_GAIN,
    TELLS_APART,
    ChosenCell,
    Measure,
    Objective,
    amount,
    gains,
)
from bsweep.analysis.prediction.seen_runs import CELL, Observed, rate_rule
from bsweep.analysis.simulation.rows import LITTLE_GAIN
from bsweep.analysis.study.numbers import interval_text, number, plain
from bsweep.analysis.study.text_tables import as_texts, marks
from bsweep.config.target import Target
from bsweep.core.words import aligned, counted, first_of, joined

SECONDS_ENDS = ("seconds_low", "seconds_high")
"""The columns with the ends of the interval of a cell's seconds."""

_WIDTH = 100


class _Words(NamedTuple):
    """The words for one measure that an objective minimizes."""

    unit: str
    adverb: str
    close: str  # `{share}` is the share by which cells still count as equally good
    noun: str


_WORDS: dict[Measure, _Words] = {
    "seconds": _Words("s", "Fastest", "takes at most {share} longer than", "time"),
    "worker_seconds": _Words(
        "worker-seconds", "Fewest worker-seconds", "takes at most {share} more worker-seconds than",
        "worker-seconds",
    ),
    "money": _Words("in money", "Cheapest", "costs at most {share} more than", "cost"),
    "joules": _Words("J", "Least energy", "takes at most {share} more energy than", "energy"),
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The result of `bsweep.predict`: the predicted time to a target for each cell of a grid, and
    the recommended cell.

    `network` are the links of simulated cells, in words, and empty if none are simulated. `others`
    are the predictions for further networks. `not_predicted` says why networks or numbers of
    workers that were asked for have no prediction. The object prints as a sentence, tables and
    warnings, also in a notebook.
    """

    target: Target
    objective: Objective
    choice: ChosenCell
    warnings: tuple[str, ...]
    seen: Observed
    forecast: Forecast
    fitted: Fits
    network: str = ""
    others: tuple[Prediction, ...] = ()
    not_predicted: tuple[str, ...] = ()

    @property
    def cells(self) -> pd.DataFrame:
        """A table with a row for each cell of the grid; see `forecast` and `with_probabilities`."""
        return self.forecast.cells

    @property
    def recommended(self) -> pd.Series[Any]:
        """The row of the recommended cell in the prediction's table of cells."""
        return self.cells.iloc[self.choice.place]

    @property
    def evaluate_every_examples(self) -> int | None:
        """The setting with which to train the recommended cell again, if its runs reached the
        target at their first evaluation, so that only an upper bound of their time is known;
        None otherwise.
        """
        return wanted_evaluations(self.seen.runs) if self.recommended["is_only_bounded"] else None

    @property
    def critical_batches(self) -> tuple[CriticalBatch, ...]:
        """The estimates of the critical batch size that belong to this prediction: from the steps
        to the target, from the gradient noise scale and from branches of a checkpoint.
        """
        return self.fitted.critical_batches

    @property
    def fits(self) -> pd.DataFrame:
        """A table of the parameters of the two fitted formulas, with medians and 90 % intervals.
        The formulas give the steps to the target and the seconds of a step.
        """
        return self.fitted.table()

    @cached_property
    def leave_out(self) -> pd.DataFrame:
        """A table that compares the time to the target measured in a cell with its prediction
        without the runs of its batch size, and without those of its worker count.

        At most 16 batch sizes and worker counts are left out. The table is computed on first use,
        with two fits or more for each of them. Only then does a prediction print its errors.
        """
        return leave_out(self.seen, self.fitted)

    @property
    def of_networks(self) -> tuple[Prediction, ...]:
        """This prediction and those for further networks."""
        return (self, *self.others)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A table of the time and the cost to the target on each number of workers at its best
        batch size, for each network; see `networks.curves_of`.
        """
        cells = {prediction.network: prediction.cells for prediction in self.of_networks}
        return curves_of(cells, float(np.median(self.fitted.steps.critical_batch)))

    def gains(self) -> pd.DataFrame:
        """Return the table of cells with the column `gain`: how much of the time or cost to the
        target one more run of the cell is expected to save, as a fraction.

        A run saves if it leads to the choice of a better cell; see `objectives.gains`.

        Returns:
            The table.
        """
        sigma = np.hypot(self.fitted.steps.sigma, self.fitted.step_time.sigma)
        return self.cells.assign(gain=gains(self.forecast, self.objective, sigma))

    def next_cell(self) -> pd.Series[Any] | None:
        """Return the cell to run next: the recommended one if its runs did not measure the time to
        the target, else the one whose run is expected to save most of the time or cost.

        Returns:
            The row of the cell in `gains()`; None if no run is expected to save enough.
        """
        cells = self.gains()
        if not self.recommended["num_reached"] or self.recommended["is_only_bounded"]:
            return cells.iloc[self.choice.place]
        best = cells.sort_values("gain").iloc[-1]
        return None if best["gain"] < LEAST_GAIN else best

    @property
    def amount(self) -> str:
        """The predicted time or cost of the recommended cell, with its interval, as text."""
        return self._amount(self.choice.place)

    @property
    def sure(self) -> str:
        """Sentences that say how sure the recommendation is, and which cells come near."""
        return joined([*self._sure(), *self._other_cells()])

    def sentence(self) -> str:
        """Return sentences that say which cell is recommended, how sure the recommendation is, and
        which cells may be better, or else which is the next best.

        Returns:
            A text of several sentences.
        """
        return joined([self._first(self._whole_amount), self.sure])

    def brief(self) -> list[str]:
        """Return the answer that a terminal shows.

        Returns:
            At most three lines: the recommended cell with its interval, how sure the recommendation
            is and which cells come near, and the number of warnings. Before the last one, a line
            for each simulated network.
        """
        count = len(self.warnings)
        warned = f"{counted(count, 'warning')}: --verbose shows {'it' if count == 1 else 'them'}."
        return [self._first(self.amount), self.sure, *self.network_lines(), *[warned] * bool(count)]

    def network_lines(self) -> list[str]:
        """Return a line for each simulated network: its best cell if there are several networks,
        the number of workers from which on more bring little, and that from which on the best batch
        is larger than the critical batch size. Further lines say what has no prediction.

        Returns:
            The lines; without a simulation, only what has no prediction.
        """
        simulated = self.of_networks if self.network else ()
        lines = (joined(self._on_network(prediction)) for prediction in simulated)
        return [*filter(None, lines), *self.not_predicted]

    def next_run(self) -> str:
        """Return which run to make next, in words; see `next_cell`.

        Returns:
            A cell and what its run is expected to save, or that no run is expected to save enough.
        """
        cell, saved = self.next_cell(), f"of the {self._words.noun} to the target"
        if cell is None:
            least = f"{100 * LEAST_GAIN:g} % or more"
            return f"nothing, because no further run is expected to save {least} {saved}"
        seconds = number(cell["worker_seconds"])
        takes = f"It takes about {seconds} worker-seconds plus its start and evaluations"
        gain = f"is expected to save {100 * cell['gain']:.1f} % {saved}"
        if not self.recommended["num_reached"]:
            return (
                f"the recommended cell itself, to its target. {takes}, shows whether the "
                f"prediction holds, and {gain}"
            )
        if self.recommended["is_only_bounded"]:
            return (
                "the recommended cell again, with more evaluations ("
                f"{more_evaluations(self.seen.runs)}), to measure its time to the target"
            )
        return (
            f"{_marked(cell)} with a new seed. {takes}. Its result may change the "
            f"recommendation, which {gain}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the whole prediction in plain values, with None for what is not known and for the
        errors of left-out cells that were not computed; see `leave_out`.

        Returns:
            Mappings, lists, numbers and texts that JSON can hold.
        """
        values: dict[str, Any] = plain({
            "study": self.seen.study.name,
            "target": asdict(self.target),
            "objective": asdict(self.objective),
            "sentence": self.sentence(),
            "recommendation": self._recommendation(),
            "cells": self.cells.to_dict("records"),
            "fits": self.fits.reset_index().to_dict("records"),
            "critical_batches": [asdict(estimate) for estimate in self.critical_batches],
            "leave_out": self.leave_out.to_dict("records") if self._has_errors else None,
            "learning_rate_rule": rate_rule(self.seen),
            "warnings": list(self.warnings),
            "not_predicted": list(self.not_predicted),
            "network": self.network or None,
            **(self.networks_as_json() if self.network else {}),
        })  # fmt: skip
        return values

    def networks_as_json(self) -> dict[str, Any]:
        """Return the predictions for all simulated networks in plain values.

        Returns:
            The recommendation and the cells for each network, and the curves of all.
        """
        networks = [
            {
                "network": prediction.network,
                "recommendation": prediction._recommendation(),
                "cells": prediction.cells.to_dict("records"),
            }
            for prediction in self.of_networks
        ]
        values: dict[str, Any] = plain(
            {"networks": networks, "curves": self.curves.to_dict("records")}
        )
        return values

    def __repr__(self) -> str:
        parts = [
            _wrapped([self.sentence()]),
            _wrapped(self._warning_lines()),
            _wrapped(self.network_lines()),
            *map(_as_text, self._tables()),
            _wrapped(self._assumptions()),
        ]
        return joined(parts, "\n\n")

    def _repr_html_(self) -> str:
        lines = [*self._warning_lines(), *self.network_lines()]
        tables = "".join(table.to_html(index=False) for table in self._tables())
        sentence = f"<p><b>{html.escape(self.sentence())}</b></p>"
        return f"{sentence}{_as_html(lines)}{tables}{_as_html(self._assumptions())}"

    @property
    def _words(self) -> _Words:
        return _WORDS[self.objective.minimize]

    @property
    def _has_errors(self) -> bool:
        """True if the errors of left-out cells, which need many fits, were computed before."""
        return "leave_out" in vars(self)

    def _amount(self, place: int) -> str:
        value, low, high = amount(self.forecast, self.objective, place)
        return f"{number(value)} {self._words.unit} ({LEVEL} interval {interval_text(low, high)})"

    @property
    def _whole_amount(self) -> str:
        """The predicted time or cost of the recommended cell as text, and the time if it is not
        what is minimized.
        """
        is_time = self.objective.minimize == "seconds"
        return self.amount if is_time else f"{self.amount}, {number(self.recommended['seconds'])} s"

    def _first(self, amount: str) -> str:
        """Return a sentence that names the recommended cell, with its time or cost."""
        cell = row_name(self.recommended)
        return f"{self._words.adverb} to {self.target}: {cell}, {amount}."

    def _sure(self) -> Iterator[str]:
        """Yield sentences that say how sure the recommendation is."""
        cell, close = self.recommended, self._words.close.format(share=f"{100 * CLOSE:g} %")
        if cell["is_simulated"]:
            yield f"Simulated with {self._links}: no step was timed on so many workers."
        yield self._basis()
        yield (
            f"It is the best cell with probability {cell['probability_best']:.2f}, and {close} the "
            f"best cell with probability {cell['probability_close']:.2f}."
        )
        if self.objective.deadline_seconds is not None:
            yield f"It meets the deadline with probability {cell['probability_in_time']:.2f}."

    def _basis(self) -> str:
        """Return a sentence that says whether runs of the recommended cell reached the target, did
        not reach it, or do not exist, and then whether there are runs of its batch size.
        """
        cell = self.recommended
        if cell["is_only_bounded"]:
            return (
                "Predicted: its own runs reached the target at their first evaluation, which gives "
                "only an upper bound of the time."
            )
        if cell["num_reached"]:
            return "Runs of this cell reached the target."
        if cell["num_runs"]:
            return f"No run of this cell reached the target ({counted(cell['num_runs'], 'run')})."
        if self.seen.runs["global_batch"].eq(cell["global_batch"]).any():
            others = "in other cells" if cell["way"] else "on other workers"
            return (
                "No run of this cell was made: the prediction is from runs of this batch size "
                f"{others}."
            )
        return "No run of this batch size was made: the prediction is from other batch sizes."

    def _other_cells(self) -> Iterator[str]:
        """Yield sentences that name the best measured cell, and the cells that come near."""
        choice = self.choice
        if choice.measured is not None and choice.measured != choice.place:
            measured = row_name(self.cells.iloc[choice.measured])
            yield f"The best measured cell is {measured}, {self._amount(choice.measured)}."
        if choice.alternatives:
            near = [_marked(self.cells.iloc[place]) for place in choice.alternatives]
            yield (
                f"Each of these cells is better with a probability of {100 * TELLS_APART:g} % or "
                f"more: {first_of(near, comma='; ')}."
            )
        elif choice.runner_up is not None:
            yield f"The next best cell is {_marked(self.cells.iloc[choice.runner_up])}."

    @property
    def _links(self) -> str:
        """The links of simulated cells in the words of a sentence."""
        return OWN_LINKS if self.network == "measured" else self.network

    def _on_network(self, prediction: Prediction) -> Iterator[str]:
        """Yield sentences on the prediction for one of several networks."""
        curve = self.curves[self.curves["network"] == prediction.network]
        if self.others or self.not_predicted:
            cell, amount = row_name(prediction.recommended), prediction._whole_amount
            is_simulated = bool(prediction.recommended["is_simulated"])
            links = prediction._links + ", simulated" * is_simulated
            yield f"With {links}: {cell}, {amount}{', as timed' * (not is_simulated)}."
        for column, text in _BEGINNINGS.items():
            if curve[column].any():
                row = curve[curve[column]].iloc[0]
                critical = number(row["critical_batch"])
                yield (
                    f"From {counted(row['num_workers'], 'worker')} on, "
                    f"{text.format(critical=critical)}."
                )

    def _recommendation(self) -> dict[str, Any]:
        """Return the recommended cell for `as_json`, and which cells are near it."""
        choice = asdict(self.choice)
        del choice["place"]
        return {
            **{str(name): value for name, value in self.recommended.items()},
            **choice,
            "alternatives": [self._key(place) for place in self.choice.alternatives],
            "runner_up": self._key(self.choice.runner_up),
            "measured": self._key(self.choice.measured),
        }

    def _key(self, place: int | None) -> dict[str, Any] | None:
        names = ["global_batch", "num_workers", "passes", "way", "local_batch"]
        return None if place is None else {name: self.cells[name].iloc[place] for name in names}

    def _warning_lines(self) -> Iterator[str]:
        if self._has_errors:
            yield from self._errors()
        yield from (f"Warning: {text}" for text in self.warnings)

    def _errors(self) -> Iterator[str]:
        table = self.leave_out
        for name, words in (("global_batch", "batch size"), ("num_workers", "worker count")):
            rows = table[table["left_out"] == name]
            if rows.empty:
                yield f"Error without a cell's {words}: too few {words}s were measured to tell."
                continue
            errors, count = 100 * rows["error"].abs(), rows[name].nunique()
            measured = max(count, self.seen.runs[name].nunique())
            few = f"{count} of " * (count < measured)
            yield (
                f"Error without a cell's {words} ({few}{counted(measured, words)} left out, one at "
                f"a time): {errors.max():.0f} % for the worst cell, {errors.median():.0f} % in the "
                f"median; {int(rows['is_inside'].sum())} of {len(rows)} lie in their {LEVEL} "
                "interval."
            )
        if table["is_bound"].any():
            yield "If a cell did not reach the target, the time that it trained is a lower bound."

    def _assumptions(self) -> Iterator[str]:
        left_out = self.cells[~self.cells["is_allowed"] & (self.cells["problem"] == "")]
        if len(left_out):
            yield f"Left out: cells {', or '.join(self._reasons(left_out))}."
        yield (
            "The prediction holds for the learning-rate rule of these runs "
            f"({rate_rule(self.seen)}), and for their model, data and machine. It assumes that "
            "steps depend only on the global batch, not on the number of workers that share it. "
            "Times and costs are those of training steps: starts and evaluations come on top."
        )

    def _reasons(self, cells: pd.DataFrame) -> Iterator[str]:
        """Yield why cells are left out that could be trained."""
        lacks_energy = cells["joules"].isna() & (self.objective.minimize == "joules")
        if not (cells["is_unreached"] | lacks_energy).all():
            yield "that exceed the objective's limits"
        if cells["is_unreached"].any():
            yield (
                "with a batch size whose runs, or those of a smaller one, trained to their end "
                "without reaching the target"
            )
        if lacks_energy.any():
            yield "with a strategy of which no run recorded its energy"

    def _cells_table(self) -> pd.DataFrame:
        cells = self.cells
        is_left_out = ~cells["is_allowed"] & (cells["problem"] == "")
        runs = zip(runs_in_words(cells), is_left_out, strict=True)
        cells = cells.assign(
            mark=np.where(np.arange(len(cells)) == self.choice.place, "*", ""),
            runs=[joined((text, "left out" * is_out), "; ") for text, is_out in runs],
        )
        table = as_texts(cells, _CELL_HEADINGS, SECONDS_ENDS)
        return table.drop(columns=["strategy"] * (len(self.seen.ways) < 2))

    def _tables(self) -> list[pd.DataFrame]:
        interval, ends = {"interval": f"{LEVEL} interval"}, ("low", "high")
        fits = as_texts(
            self.fits.reset_index(), {"parameter": "fit", "median": "median"} | interval, ends
        )
        rows: list[dict[str, Any]] = []
        for estimate in self.critical_batches:
            rows.append(asdict(estimate))
            if not np.isnan(estimate.ratio_of_sums):
                source = f"{estimate.source}, ratio of sums"
                verdict = "for comparison: large gradients dominate it"
                rows.append({"source": source, "value": estimate.ratio_of_sums, "verdict": verdict})
        headings = {"source": "critical batch by", "value": "examples", **interval}
        critical = as_texts(pd.DataFrame(rows), headings | {"verdict": "verdict"}, ends)
        tables = [self._cells_table(), fits, critical]
        if self.network:
            curves = self.curves.assign(marks=marks(self.curves, _CURVE_MARKS))
            tables.insert(0, as_texts(curves, _CURVE_HEADINGS, SECONDS_ENDS))
        return tables


_BEGINNINGS = {
    "is_knee": LITTLE_GAIN,
    "is_wall": "the best batch is larger than the critical batch size ({critical}), so more "
    "workers save few steps",
}
_CELL_HEADINGS = {
    "mark": "", "global_batch": "batch", "num_workers": "workers", "way": "strategy",
    "seconds": "time (s)", "interval": f"{LEVEL} interval", "steps": "steps",
    "step_seconds": "step (s)", "worker_seconds": "worker-seconds", "money": "money",
    "joules": "joules", "probability_best": "best with", "measured_seconds": "measured (s)",
    "runs": "runs",
}  # fmt: skip
_CURVE_HEADINGS = {
    "network": "network", "num_workers": "workers", "global_batch": "batch", "seconds": "time (s)",
    "interval": f"{LEVEL} interval", "worker_hours": "worker-hours", "money": "money", "marks": "",
}  # fmt: skip
_CURVE_MARKS = {
    "is_simulated": "simulated", "is_knee": "knee", "is_above_critical": "above the critical batch"
}  # fmt: skip


def runs_in_words(cells: pd.DataFrame, without_runs: str = "") -> list[str]:
    """Return for each cell how many of its runs reached the target, what its time rests on beside
    them, and why it cannot be trained.
    """
    bases = marks(cells, {"is_simulated": "simulated", "is_extrapolated": "extrapolated"})
    facts = zip(cells["num_reached"], cells["num_runs"], bases, cells["problem"], strict=True)
    return [
        joined((f"{reached} of {runs} reached" if runs else without_runs, basis, problem), "; ")
        for reached, runs, basis, problem in facts
    ]


def cell_name(cell: Key, local_batch: float | None = None) -> str:
    """Return the name of a cell, with its local batch if that is given."""
    batch, workers, passes, way = cell
    parts = f" in {passes} passes" if passes > 1 else ""
    if local_batch is not None:
        parts = f" (local batch {local_batch:g}{parts})"
    in_way = f" with {way}" if way else ""
    return f"{batch_on_workers(batch, workers)}{parts}{in_way}"


def row_name(row: pd.Series[Any]) -> str:
    """Return the name of a row of `Prediction.cells`, or of another table with its columns."""
    batch, workers, passes = (int(row[name]) for name in CELL)
    return cell_name((batch, workers, passes, row["way"]), row["local_batch"])


def _marked(cell: pd.Series[Any]) -> str:
    """Return the name of a cell, which says so if its steps are simulated."""
    return row_name(cell) + ", simulated" * bool(cell["is_simulated"])


def _wrapped(lines: Iterable[str]) -> str:
    return "\n".join(textwrap.fill(line, _WIDTH) for line in lines)


def _as_html(lines: Iterable[str]) -> str:
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _as_text(table: pd.DataFrame) -> str:
    """Return a table as text for a terminal, with columns of digits aligned on the right, and the
    last column and columns of words on the left.
    """
    rows = [list(map(str, table.columns)), *table.astype(str).to_numpy().tolist()]
    columns = enumerate(zip(*rows[1:], strict=True))
    words = [place for place, cells in columns if not any(cell[:1].isdigit() for cell in cells)]
    return "\n".join(aligned(rows, left=[*words, len(rows[0]) - 1]))
