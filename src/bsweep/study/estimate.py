"""Estimates of how long points will take, from points that have trained.

For each kind of point, a line is fitted to the seconds of a step over the local batch: one line for
each number of workers, and one for all of them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bsweep.study.commands import Planned
from bsweep.study.states import State


@dataclass(frozen=True)
class Timed:
    """A point together with its measured times.

    `step_seconds` is the mean time of a step. `other_seconds` is the time that the point took
    besides its steps, or None if it did not run to its end.
    """

    point: Planned
    step_seconds: float
    other_seconds: float | None = None


def timed(points: Iterable[Planned], states: Mapping[str, State]) -> list[Timed]:
    """Return the measured times of those points that have finished an epoch and did not run beside
    others: the mean seconds of a step and, once completed, the seconds besides the steps.

    Points that ran beside others (`launch.parallel`) may have been slowed down by them.

    Args:
        points: The points to look at.
        states: The states of the study's runs, by run id.
    """
    found = []
    for point in points:
        state = states.get(point.run_id)
        if not state or state.beside_others or not state.train_seconds or not state.whole_epochs:
            continue
        if point.num_examples is None:
            continue
        steps = state.whole_epochs / point.epochs * point.num_examples / point.examples_per_step
        ends = state.status == "completed" and state.wall_seconds is not None
        other = state.wall_seconds - state.train_seconds if ends and state.wall_seconds else None
        found.append(Timed(point, state.train_seconds / steps, other))
    return found


def with_examples(
    points: Iterable[Planned], states: Mapping[str, State], tried: Sequence[Timed] = ()
) -> list[Planned]:
    """Return points with the number of their examples, if only the user's own program knows it and
    a similar point has ended or was tried.

    Args:
        points: The points.
        states: The states of the study's runs, by run id.
        tried: Points that were trained for a few steps.
    """
    points = list(points)
    told = [one.point for one in tried]
    of_epoch = {one.kind: one.num_examples / one.epochs for one in told if one.num_examples}
    for point in points:
        state = states.get(point.run_id)
        if state and state.num_examples and state.whole_epochs:
            of_epoch.setdefault(point.kind, state.num_examples / state.whole_epochs)
    return [
        replace(point, num_examples=round(of_epoch[point.kind] * point.epochs))
        if point.num_examples is None and point.kind in of_epoch
        else point
        for point in points
    ]


class Estimate:
    """A model that predicts how many seconds a study's points will take, fitted to points whose
    steps were timed.

    `source` is a text on the points that the estimate is based on. It also has the largest error
    of the estimate on the steps of points of which more than two have one kind and number of
    workers; through fewer the line of the estimate goes exactly.
    """

    def __init__(self, timed: Iterable[Timed], tried: Sequence[Timed] = ()) -> None:
        """Fit the estimate.

        Args:
            timed: Timed points of the study.
            tried: Points that were trained for a few steps to time them.
        """
        self._timed, self._num_tried = [*timed, *tried], len(tried)
        self._own = {one.point.run_id: one for one in self._timed}
        self._lines = {key: _fitted(pairs) for key, pairs in self._steps().items()}
        self._others = {
            key: statistics.median(seconds) for key, seconds in self._other_times().items()
        }
        self.source = self._named() if self._timed else ""

    def seconds(self, point: Planned, state: State) -> float | None:
        """Return the estimated seconds that a point still needs until it is completed.

        The answer is 0 if the point is completed, and None if no similar point was timed.
        """
        if state.status == "completed":
            return 0.0
        whole = self._whole_seconds(point)
        done = state.epochs_done / point.epochs if state.can_resume else 0.0
        return None if whole is None else whole * max(0.0, 1 - done)

    def _whole_seconds(self, point: Planned) -> float | None:
        step = (
            self._own[point.run_id].step_seconds
            if point.run_id in self._own
            else self._step_seconds(point)
        )
        if step is None or point.num_examples is None:
            return None
        return point.num_examples / point.examples_per_step * step + self._other_seconds(point)

    def _step_seconds(self, point: Planned) -> float | None:
        line = self._lines.get((point.kind, point.num_workers)) or self._lines.get(
            (point.kind, None)
        )
        return line[0] + line[1] * point.local_batch if line else None

    def _other_seconds(self, point: Planned) -> float:
        return self._others.get((point.kind, point.epochs), self._others.get(None, 0.0))

    def _steps(self) -> dict[tuple[str, int | None], list[tuple[float, float]]]:
        """Return the pairs (local batch, seconds of a step) of timed points, grouped by (kind of
        point, number of workers).

        The kind is `Planned.kind`. The key (kind, None) has the pairs of all numbers of workers.
        """
        found: dict[tuple[str, int | None], list[tuple[float, float]]] = defaultdict(list)
        for one in self._timed:
            for num_workers in (one.point.num_workers, None):
                found[one.point.kind, num_workers].append((one.point.local_batch, one.step_seconds))
        return found

    def _other_times(self) -> dict[tuple[str, int] | None, list[float]]:
        """Return the seconds that timed points took besides their steps, grouped by (kind of point,
        number of epochs).

        The kind is `Planned.kind`. The key None has the seconds of all points.
        """
        found: dict[tuple[str, int] | None, list[float]] = defaultdict(list)
        for one in self._timed:
            if one.other_seconds is not None:
                found[one.point.kind, one.point.epochs].append(one.other_seconds)
                found[None].append(one.other_seconds)
        return found

    def _named(self) -> str:
        num_completed = sum(one.other_seconds is not None for one in self._timed) - self._num_tried
        steps = self._steps()
        errors = [
            abs(step / one.step_seconds - 1)
            for one in self._timed
            if len(steps[one.point.kind, one.point.num_workers]) > 2
            and (step := self._step_seconds(one.point))
        ]
        numbers = {
            "completed": num_completed,
            "with finished epochs": len(self._timed) - num_completed - self._num_tried,
            "tried for a few steps": self._num_tried,
        }
        points = ", ".join(f"{number} {how}" for how, number in numbers.items() if number)
        within = f", off by at most {max(errors):.0%}" if errors else ""
        return f"the steps of points ({points}){within}"


def _fitted(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Fit a line to pairs (x, y) by least squares of the relative errors, and return its offset and
    slope, of which neither is negative.

    If one would be negative, or if all x are the same, the line goes through the weighted mean of
    the pairs instead, with a slope or an offset of 0.
    """
    weights = [1 / y**2 for _, y in pairs]
    total = sum(weights)
    x_mean = sum(w * x for w, (x, _) in zip(weights, pairs, strict=True)) / total
    y_mean = sum(w * y for w, (_, y) in zip(weights, pairs, strict=True)) / total
    variance = sum(w * (x - x_mean) ** 2 for w, (x, _) in zip(weights, pairs, strict=True))
    if variance < 1e-12 * total * x_mean**2:
        return 0.0, y_mean / x_mean
    slope = (
        sum(w * (x - x_mean) * (y - y_mean) for w, (x, y) in zip(weights, pairs, strict=True))
        / variance
    )
    slope = min(max(0.0, slope), y_mean / x_mean)
    return y_mean - slope * x_mean, slope
