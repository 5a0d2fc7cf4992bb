"""The result of a prediction as people, notebooks and programs see it: a sentence, tables and
warnings.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bsweep.analysis.numbers import number, plain
from bsweep.analysis.prediction.critical_batch import INTERVAL, CriticalBatch
from bsweep.analysis.prediction.fitting import Fits, leave_out
from bsweep.analysis.prediction.forecast import Forecast
from bsweep.analysis.prediction.networks import curves_of
from bsweep.analysis.prediction.objectives import (
    CLOSE,
    LEAST_GAIN,
    TELLS_APART,
    Choice,
    Objective,
    gains,
    log_objective,
)
from bsweep.analysis.prediction.sampler import Array
from bsweep.analysis.prediction.selection import (
    Observed,
    more_evaluations,
    wanted_evaluations,
)
from bsweep.analysis.prediction.step_time import StepTimeFit, Timing
from bsweep.config.target import Target
from bsweep.core.words import aligned, counted, first_of, joined

_UNITS = {
    "seconds": "s", "worker_seconds": "worker-seconds", "money": "in money",
    "joules": "J",
}  # fmt: skip
_WIDTH = 100


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The result of `bsweep.predict`: the predicted time to a target for each cell of a grid, and
    the recommended cell.

    `cells` has a row for each cell of the grid, see `forecast` and `with_probabilities`.
    `rate_rule` is the learning-rate rule for which all of it holds. `network` are the links of
    simulated cells, in words, and empty if none are simulated. `others` are the predictions for
    further networks. `not_predicted` says why networks or numbers of workers that were asked for
    have no prediction. The object prints as a sentence, tables and warnings, also in a notebook.
    """

    study: str
    target: Target
    objective: Objective
    choice: Choice
    cells: pd.DataFrame
    rate_rule: str
    warnings: tuple[str, ...]
    seen: Observed
    timings: tuple[Timing, ...]
    forecast: Forecast
    fitted: Fits
    network: str = ""
    others: tuple[Prediction, ...] = ()
    not_predicted: tuple[str, ...] = ()

    @property
    def of_networks(self) -> tuple[Prediction, ...]:
        """This prediction and those for further networks."""
        return (self, *self.others)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A table of the time and the cost to the target on each number of workers at its best
        batch size, for each network; see `networks.curves_of`.
        """
        return curves_of(self.of_networks)

    @cached_property
    def leave_out(self) -> pd.DataFrame:
        """A table that compares the time to the target measured in a cell with its prediction
        without the runs of its batch size, and without those of its worker count.

        At most 16 batch sizes and worker counts are left out. The table is computed on first use,
        with two fits or more for each of them.
        """
        return leave_out(self.seen, self.fitted, self.timings)

    @property
    def critical_batches(self) -> tuple[CriticalBatch, ...]:
        """The estimates of the critical batch size that belong to this prediction: from the steps
        to the target, from the gradient noise scale and from branches of a checkpoint.
        """
        return self.fitted.critical_batches

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
    def fits(self) -> pd.DataFrame:
        """A table of the parameters of the two fitted formulas, with medians and 90 % intervals.
        The formulas give the steps to the target and the seconds of a step.
        """
        steps, step = self.fitted.steps, self.fitted.step_time
        across = {
            f"a_s from {step.across_from} workers, across nodes (s)": step.across_seconds,
            f"b_s from {step.across_from} workers, across nodes (s)": step.across_worker_seconds,
        }
        drawn = {
            "S_min (steps)": steps.minimum_steps,
            "E_min (examples)": steps.minimum_examples,
            "E_min / S_min (examples)": steps.critical_batch,
            "scatter of steps between seeds": steps.sigma,
            "steps missed by the law": steps.tau,
            "a_c, fixed cost of a pass (s)": step.pass_seconds,
            "b_c, an example of a pass (s)": step.example_seconds,
            "a_s, an exchange (s)": step.sync_seconds,
            "b_s, an exchange's further worker (s)": step.sync_worker_seconds,
            **(across if step.across_from else {}),
            **_of_further(step),
            "g, overlap": step.overlap,
            "scatter of step time between runs": step.sigma,
            "step time missed by the form": step.tau,
        }
        rows = [np.quantile(values, [0.5, *INTERVAL]) for values in drawn.values()]
        return pd.DataFrame(
            rows, index=pd.Index(drawn, name="parameter"), columns=["median", "low", "high"]
        )

    def gains(self) -> pd.DataFrame:
        """Return for each cell how much of the time or cost to the target one more measurement of
        the cell is expected to save, as a fraction.

        A measurement saves if it leads to the choice of a better cell; see `objectives.gains`.

        Returns:
            Two rows for each cell: one for a run to the target, one for a few timed steps.
        """
        return gains(
            self.forecast, self.objective, self.fitted.steps.sigma, self.fitted.step_time.sigma
        )

    @property
    def amount(self) -> str:
        """The predicted time or cost of the recommended cell, with its interval, as text."""
        return self._amount(self.choice.place)

    def _amount(self, place: int) -> str:
        typical, of_run = (
            log_objective(self.forecast, self.objective, is_run)[:, place]
            for is_run in (False, True)
        )
        value, low, high = np.exp([np.median(typical), *np.quantile(of_run, INTERVAL)])
        return (
            f"{number(value)} {_UNITS[self.objective.minimize]} (90 % interval {number(low)} to "
            f"{number(high)})"
        )

    def sentence(self) -> str:
        """Return sentences that say which cell is recommended, how sure the recommendation is, and
        which cells may be better, or else which is the next best.

        Returns:
            A text of several sentences.
        """
        return joined([self._first(self._whole_amount), *self._sure(), self._others()])

    @property
    def _whole_amount(self) -> str:
        """The predicted time or cost of the recommended cell as text, and the time if it is not
        what is minimized.
        """
        if self.objective.minimize == "seconds":
            return self.amount
        seconds = number(self.recommended["seconds"])
        return f"{self.amount}, {seconds} s"

    def brief(self) -> list[str]:
        """Return the answer that a terminal shows.

        Returns:
            At most three lines: the recommended cell with its interval, how sure the recommendation
            is and which cells come near, and the number of warnings. Before the last one, a line
            for each simulated network.
        """
        count = len(self.warnings)
        warned = f"{counted(count, 'warning')}: --verbose shows {'it' if count == 1 else 'them'}."
        sure = joined([*self._sure(), self._others()])
        return [self._first(self.amount), sure, *self.network_lines(), *[warned] * bool(count)]

    def network_lines(self) -> list[str]:
        """Return a line for each simulated network: its best cell if there are several networks,
        the number of workers from which on more bring little, and that from which on the best batch
        is larger than the critical batch size. Further lines say what has no prediction.

        Returns:
            The lines; without a simulation, only what has no prediction.
        """
        simulated = self.of_networks if self.network else ()
        lines = (" ".join(self._on_network(one)) for one in simulated)
        return [*filter(None, lines), *self.not_predicted]

    @property
    def _links(self) -> str:
        """The links of simulated cells in the words of a sentence."""
        return "the study's own links" if self.network == "measured" else self.network

    def _on_network(self, one: Prediction) -> Iterator[str]:
        curve = self.curves[self.curves["network"] == one.network]
        if self.others or self.not_predicted:
            cell, amount = cell_name(one.recommended), one._whole_amount
            if one.recommended["is_simulated"]:
                yield f"With {one._links}, simulated: {cell}, {amount}."
            else:
                yield f"With {one._links}: {cell}, {amount}, as timed."
        if curve["is_knee"].any():
            knee = curve.loc[curve["is_knee"], "num_workers"].iloc[0]
            yield (
                f"From {counted(knee, 'worker')} on, more workers bring less than half of the "
                "speed that they cost."
            )
        if curve["is_wall"].any():
            wall = curve.loc[curve["is_wall"], "num_workers"].iloc[0]
            critical = number(curve["critical_batch"].iloc[0])
            yield (
                f"From {counted(wall, 'worker')} on, the best batch is larger than the critical "
                f"batch size ({critical}), so more workers save few steps."
            )

    def _first(self, amount: str) -> str:
        """Return a sentence that names the recommended cell, with its time or cost."""
        return (
            f"{_ADVERB[self.objective.minimize]} to {self.target.said}: "
            f"{cell_name(self.recommended)}, {amount}."
        )

    def _sure(self) -> Iterator[str]:
        """Yield sentences that say how sure the recommendation is."""
        choice = self.choice
        yield from self._simulated()
        yield self._basis()
        yield (
            f"It is the best cell with probability {choice.probability_best:.2f}, and "
            f"{_CLOSE[self.objective.minimize]} with probability {choice.probability_close:.2f}."
        )
        if choice.probability_in_time is not None:
            in_time = f"{choice.probability_in_time:.2f}"
            yield f"It meets the deadline with probability {in_time}."

    def next_cell(self) -> pd.Series[Any] | None:
        """Return the cell to run next: the recommended one if its runs did not measure the time to
        the target, else the one whose run is expected to save most of the time or cost.

        Returns:
            The row of the cell's run in `gains()`; None if no run is expected to save enough.
        """
        gains = self.gains()
        runs = gains[gains["kind"] == "run"]
        if not self.recommended["num_reached"] or self.recommended["is_only_bounded"]:
            return runs.iloc[self.choice.place]
        best = runs.sort_values("gain").iloc[-1]
        return None if best["gain"] < LEAST_GAIN else best

    def next_run(self) -> str:
        """Return which run to make next, in words; see `next_cell`.

        Returns:
            A cell and what its run is expected to save, or that no run is expected to save enough.
        """
        cell, saved = self.next_cell(), _SAVED[self.objective.minimize]
        if cell is None:
            least = f"{100 * LEAST_GAIN:g} % or more"
            return f"nothing, because no further run is expected to save {least} {saved}"
        seconds = number(cell["worker_seconds"])
        takes = f"It takes about {seconds} worker-seconds plus its start and evaluations"
        gain = f"is expected to save {100 * cell['gain']:.1f} % {saved}"
        if not self.recommended["num_reached"]:
            return (
                f"the recommended cell itself, to its target. {takes}, shows whether the "
                f"prediction holds, and {gain}{self._probe_instead()}"
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

    def _probe_instead(self) -> str:
        """Return a sentence on the probe that would settle the step time of the recommended cell,
        if the cell lies beyond those that were timed; empty for programs, which cannot be probed.
        """
        cell = self.recommended
        if "(timed:" not in cell["beyond"] or self.seen.runs["strategy"].eq("program").any():
            return ""
        return (
            ". To see only the time of its steps, type bsweep probe with the settings of the runs "
            f"and local_batch={cell['local_batch']:g} num_workers={cell['num_workers']}, and then "
            "this command with --probe"
        )

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

    def _simulated(self) -> Iterator[str]:
        """Yield a sentence that says so if the seconds of a step come from a simulation."""
        if self.recommended["is_simulated"]:
            yield f"Simulated with {self._links}: no step was timed on so many workers."

    def _others(self) -> str:
        """Return sentences that name the best measured cell, and the cells that come near."""
        choice, lines = self.choice, []
        if choice.measured is not None and choice.measured != choice.place:
            lines.append(
                f"The best measured cell is {cell_name(self.cells.iloc[choice.measured])}, "
                f"{self._amount(choice.measured)}."
            )
        if choice.alternatives:
            near = [_marked(self.cells.iloc[place]) for place in choice.alternatives]
            lines.append(
                f"Each of these cells is better with a probability of {100 * TELLS_APART:g} % or "
                f"more: {first_of(near, comma='; ')}."
            )
        elif choice.runner_up is not None:
            next_best = _marked(self.cells.iloc[choice.runner_up])
            lines.append(f"The next best cell is {next_best}.")
        return " ".join(lines)

    def __repr__(self) -> str:
        doubts, notes = (
            [textwrap.fill(line, _WIDTH) for line in lines]
            for lines in (self._doubts(), self._notes())
        )
        networks = [textwrap.fill(line, _WIDTH) for line in self.network_lines()]
        networks += ["", _as_text(self._shown_curves()), ""] * bool(self.network)
        lines = [
            textwrap.fill(self.sentence(), _WIDTH), "", *doubts, "",
            *networks, _as_text(self._shown_cells()), "", _as_text(self._shown_fits()), "",
            _as_text(self._shown_critical()), "", *notes,
        ]  # fmt: skip
        return "\n".join(lines).rstrip()

    def _repr_html_(self) -> str:
        tables = [self._shown_cells(), self._shown_fits(), self._shown_critical()]
        tables = [self._shown_curves()] * bool(self.network) + tables
        body = "".join(table.to_html(index=False) for table in tables)
        doubts, notes = (
            "".join(f"<p>{html.escape(line)}</p>" for line in lines)
            for lines in ((*self._doubts(), *self.network_lines()), self._notes())
        )
        return f"<p><b>{html.escape(self.sentence())}</b></p>{doubts}{body}{notes}"

    def as_json(self) -> dict[str, Any]:
        """Return the whole prediction in plain values, with None for what is not known.

        Returns:
            Mappings, lists, numbers and texts that JSON can hold.
        """
        told: dict[str, Any] = {
            "study": self.study,
            "target": asdict(self.target),
            "objective": asdict(self.objective),
            "sentence": self.sentence(),
            "recommendation": self._recommendation(),
            "cells": self.cells.to_dict("records"),
            "fits": self.fits.reset_index().to_dict("records"),
            "critical_batches": [asdict(estimate) for estimate in self.critical_batches],
            "leave_out": self.leave_out.to_dict("records"),
            "learning_rate_rule": self.rate_rule,
            "warnings": list(self.warnings),
            "not_predicted": list(self.not_predicted),
            "network": self.network or None,
        }
        if self.network:
            told |= self.networks_as_json()
        found: dict[str, Any] = plain(told)
        return found

    def networks_as_json(self) -> dict[str, Any]:
        """Return the predictions for all simulated networks in plain values.

        Returns:
            The recommendation and the cells for each network, and the curves of all.
        """
        networks = [
            {
                "network": one.network,
                "recommendation": one._recommendation(),
                "cells": one.cells.to_dict("records"),
            }
            for one in self.of_networks
        ]
        told = {"networks": networks, "curves": self.curves.to_dict("records")}
        found: dict[str, Any] = plain(told)
        return found

    def _recommendation(self) -> dict[str, Any]:
        """Return the recommended cell for `as_json`, and which cells are near it."""
        choice = asdict(self.choice)
        del choice["place"]
        near = (("runner_up", self.choice.runner_up), ("measured", self.choice.measured))
        return {
            **{str(name): value for name, value in self.recommended.items()},
            **choice,
            "alternatives": [_key(self.cells.iloc[place]) for place in self.choice.alternatives],
            **{name: None if at is None else _key(self.cells.iloc[at]) for name, at in near},
        }

    def _doubts(self) -> Iterator[str]:
        yield from self._errors()
        yield from (f"Warning: {text}" for text in self.warnings)

    def _notes(self) -> Iterator[str]:
        if text := self._not_allowed():
            yield text
        yield (
            f"The prediction holds for the learning-rate rule of these runs ({self.rate_rule}), "
            "and for their model, data and machine. It assumes that steps depend only on the "
            "global batch, not on the number of workers that share it. Times and costs are those "
            "of training steps: starts and evaluations come on top."
        )

    def _not_allowed(self) -> str:
        left_out = ~self.cells["is_allowed"] & (self.cells["problem"] == "")
        if not left_out.any():
            return ""
        is_unreached = self.cells.loc[left_out, "is_unreached"]
        reasons = ["that exceed the objective's limits"] * (not is_unreached.all())
        if is_unreached.any():
            reasons.append(
                "with a batch size whose runs, or those of a smaller one, trained to their end "
                "without reaching the target"
            )
        return f"Left out: cells {', or '.join(reasons)}."

    def _errors(self) -> Iterator[str]:
        table = self.leave_out
        for name, words in (("global_batch", "batch size"), ("num_workers", "worker count")):
            of = table[table["left_out"] == name]
            if of.empty:
                yield f"Error without a cell's {words}: too few {words}s were measured to tell."
                continue
            errors, number_of = 100 * of["error"].abs(), of[name].nunique()
            measured = max(number_of, self.seen.runs[name].nunique())
            few = f"{number_of} of " * (number_of < measured)
            left_out = f"{few}{counted(measured, words)} left out, one at a time"
            yield (
                f"Error without a cell's {words} ({left_out}): {errors.max():.0f} % for the worst "
                f"cell, {errors.median():.0f} % in the median; {int(of['is_inside'].sum())} of "
                f"{len(of)} lie in their 90 % interval."
            )
        if table["is_bound"].any():
            yield "If a cell did not reach the target, the time that it trained is a lower bound."

    def _shown_cells(self) -> pd.DataFrame:
        rows = []
        for place, cell in enumerate(self.cells.to_dict("records")):
            mark = (
                f"{cell['num_reached']} of {cell['num_runs']} reached" if cell["num_runs"] else ""
            )
            mark += "; simulated" * bool(cell["is_simulated"])
            mark += "; extrapolated" * bool(
                cell["is_extrapolated"]
            ) + f"; {cell['problem']}" * bool(cell["problem"])
            mark += "; left out" * (not cell["is_allowed"] and not cell["problem"])
            row = {
                "": "*" if place == self.choice.place else "",
                "batch": f"{cell['global_batch']}",
                "workers": f"{cell['num_workers']}",
                **({"strategy": cell["way"]} if len(self.seen.ways) > 1 else {}),
                "time (s)": number(cell["seconds"]),
                "90 % interval": f"{number(cell['seconds_low'])} to {number(cell['seconds_high'])}",
                "steps": f"{cell['steps']:.0f}",
                "step (s)": number(cell["step_seconds"]),
                "worker-seconds": number(cell["worker_seconds"]),
                **({"money": number(cell["money"])} if self.cells["money"].notna().any() else {}),
                **(
                    {"joules": number(cell["joules"])} if self.cells["joules"].notna().any() else {}
                ),
                "best with": f"{cell['probability_best']:.2f}",
                "measured (s)": number(cell["measured_seconds"]),
                "runs": mark.removeprefix("; "),
            }
            rows.append(row)
        return pd.DataFrame(rows)

    def _shown_curves(self) -> pd.DataFrame:
        rows = []
        for row in self.curves.to_dict("records"):
            notes = ["simulated"] * row["is_simulated"] + ["knee"] * row["is_knee"]
            notes += ["above the critical batch"] * row["is_above_critical"]
            rows.append({
                "network": row["network"],
                "workers": str(row["num_workers"]),
                "batch": str(row["global_batch"]),
                "time (s)": number(row["seconds"]),
                "90 % interval": f"{number(row['seconds_low'])} to {number(row['seconds_high'])}",
                "worker-hours": number(row["worker_hours"]),
                **({"money": number(row["money"])} if row["money"] == row["money"] else {}),
                "": "; ".join(notes),
            })  # fmt: skip
        return pd.DataFrame(rows)

    def _shown_fits(self) -> pd.DataFrame:
        rows = [
            {
                "fit": str(name),
                "median": number(median),
                "90 % interval": f"{number(low)} to {number(high)}",
            }
            for name, (median, low, high) in zip(
                self.fits.index, self.fits.to_numpy(float), strict=True
            )
        ]
        return pd.DataFrame(rows)

    def _shown_critical(self) -> pd.DataFrame:
        rows = []
        for one in self.critical_batches:
            interval = "" if math.isnan(one.low) else f"{number(one.low)} to {number(one.high)}"
            rows.append({
                "critical batch by": one.source, "examples": number(one.value),
                "90 % interval": interval,
                "verdict": one.verdict,
            })  # fmt: skip
            if not math.isnan(one.ratio_of_sums):
                name, value = f"{one.source}, ratio of sums", number(one.ratio_of_sums)
                other = {"critical batch by": name, "examples": value, "90 % interval": ""}
                rows.append(other | {"verdict": "for comparison: large gradients dominate it"})
        return pd.DataFrame(rows)


_ADVERB = {
    "seconds": "Fastest",
    "worker_seconds": "Fewest worker-seconds",
    "money": "Cheapest",
    "joules": "Least energy",
}
_CLOSE = {
    "seconds": "takes at most 5 % longer than the best cell",
    "worker_seconds": "takes at most 5 % more worker-seconds than the best cell",
    "money": "costs at most 5 % more than the best cell",
    "joules": "takes at most 5 % more energy than the best cell",
}
assert CLOSE == 0.05
_SAVED = {
    "seconds": "of the time to the target",
    "worker_seconds": "of the worker-seconds to the target",
    "money": "of the cost to the target",
    "joules": "of the energy to the target",
}


def cell_name(cell: pd.Series[Any]) -> str:
    local = f"{cell['local_batch']:g}"
    passes = f" in {cell['passes']} passes" if cell["passes"] > 1 else ""
    named = (
        f"global batch {int(cell['global_batch'])} on "
        f"{counted(int(cell['num_workers']), 'worker')} (local batch {local}{passes})"
    )
    way = cell.get("way", "")
    return f"{named} with {way}" if way else named


def _marked(cell: pd.Series[Any]) -> str:
    """Return the name of a cell, which says so if its steps are simulated."""
    named = cell_name(cell)
    return f"{named}, simulated" if cell["is_simulated"] else named


def _key(cell: pd.Series[Any]) -> dict[str, Any]:
    names = ("global_batch", "num_workers", "passes", "way", "local_batch")
    return {name: cell[name] for name in names}


def _of_further(step: StepTimeFit) -> dict[str, Array]:
    """Return the parameters of the strategies beside the first by what they are."""
    found = {}
    for strategy, further in zip(step.strategies[1:], step.further, strict=True):
        found[f"{strategy}: factor on a pass"] = further.compute_factor
        found[f"{strategy}: a_s, an exchange (s)"] = further.sync_seconds
        found[f"{strategy}: b_s (s for a byte or a worker)"] = further.sync_more_seconds
    return found


def _as_text(table: pd.DataFrame) -> str:
    """Return a table as text for a terminal, with columns of digits aligned on the right, and the
    last column and columns of words on the left.
    """
    rows = [list(map(str, table.columns)), *table.astype(str).to_numpy().tolist()]
    columns = enumerate(zip(*rows[1:], strict=True))
    words = [place for place, cells in columns if not any(cell[:1].isdigit() for cell in cells)]
    return "\n".join(aligned(rows, left=[*words, len(rows[0]) - 1]))
