"""Estimates of how long points will take, from points that have trained.

For each kind of point, a line is fitted to the seconds of a step over the local batch: one line for
each number of workers, and one for all of them.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bsweep.study.history import Planned
from bsweep.study.states import State


@dataclass(frozen=True)
class Timed:
    """A point together with its measured times.

    `step_seconds` is the mean time of a step. `other_seconds` is the time that the point took
    besides its steps, or None if it did not run to its end or another run made some of the steps.
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
    measured = []
    for point in points:
        state = states.get(point.run_id)
        if not state or state.beside_others or not state.train_seconds or not state.whole_epochs:
            continue
        if point.num_examples is None:
            continue
        # The last epoch of a run that has ended may be a fragment.
        examples = state.num_examples or state.whole_epochs / point.epochs * point.num_examples
        steps = examples / point.examples_per_step
        has_ended = state.status == "completed" and state.wall_seconds
        other_seconds = (state.wall_seconds or 0) - state.train_seconds if has_ended else None
        if other_seconds is not None and other_seconds < 0:
            other_seconds = None  # `train_seconds` has another run's steps, too (resume_from)
        measured.append(Timed(point, state.train_seconds / steps, other_seconds))
    return measured


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
    points, per_epoch = list(points), dict[str, float]()
    for point in (timing.point for timing in tried):
        if point.num_examples:
            per_epoch[point.kind] = point.num_examples / point.epochs
    for point in points:
        state = states.get(point.run_id)
        if state and state.num_examples and state.whole_epochs:
            per_epoch.setdefault(point.kind, state.num_examples / state.whole_epochs)
    return [
        replace(point, num_examples=round(per_epoch[point.kind] * point.epochs))
        if point.num_examples is None and point.kind in per_epoch
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
        self._timed = {timing.point.run_id: timing for timing in (*timed, *tried)}
        # Pairs of a local batch and the seconds of a step; of each number of workers, and of all.
        steps: dict[tuple[str, int | None], list[tuple[float, float]]] = defaultdict(list)
        # Seconds besides the steps; of each number of epochs, and of all points.
        others: dict[tuple[str, int] | None, list[float]] = defaultdict(list)
        for timing in self._timed.values():
            point = timing.point
            for num_workers in (point.num_workers, None):
                steps[point.kind, num_workers].append((point.local_batch, timing.step_seconds))
            if timing.other_seconds is not None:
                others[point.kind, point.epochs].append(timing.other_seconds)
                others[None].append(timing.other_seconds)
        self._lines = {key: _fitted(pairs) for key, pairs in steps.items()}
        self._others = {key: statistics.median(seconds) for key, seconds in others.items()}
        errors = [
            abs(step / timing.step_seconds - 1)
            for timing in self._timed.values()
            if len(steps[timing.point.kind, timing.point.num_workers]) > 2
            and (step := self._step_seconds(timing.point))
        ]
        num_completed = len(others[None]) - len(tried)
        numbers = {
            "completed": num_completed,
            "with finished epochs": len(self._timed) - num_completed - len(tried),
            "tried for a few steps": len(tried),
        }
        points = ", ".join(f"{number} {how}" for how, number in numbers.items() if number)
        error = f", off by at most {max(errors):.0%}" if errors else ""
        self.source = f"the steps of points ({points}){error}" if self._timed else ""

    def seconds(self, point: Planned, state: State) -> float | None:
        """Return the estimated seconds that a point still needs until it is completed.

        The answer is 0 if the point is completed, and None if no similar point was timed.
        """
        if state.status == "completed":
            return 0.0
        timing = self._timed.get(point.run_id)
        step_seconds = timing.step_seconds if timing else self._step_seconds(point)
        if step_seconds is None or point.num_examples is None:
            return None
        share = point.trained_share(step_seconds)
        steps = share * point.num_examples / point.examples_per_step
        others = self._others.get((point.kind, point.epochs), self._others.get(None, 0.0))
        done = state.epochs_done / (share * point.epochs) if state.can_resume else 0.0
        return (steps * step_seconds + others) * max(0.0, 1 - done)

    def _step_seconds(self, point: Planned) -> float | None:
        """Return the seconds of a point's step by the line of its number of workers, or else by
        that of all numbers of workers; None if there is none.
        """
        for num_workers in (point.num_workers, None):
            if line := self._lines.get((point.kind, num_workers)):
                return line[0] + line[1] * point.local_batch
        return None


def _fitted(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Fit a line to pairs (x, y) by least squares of the relative errors, and return its offset and
    slope, of which neither is negative.

    If one would be negative, or if all x are the same, the line goes through the weighted mean of
    the pairs instead, with a slope or an offset of 0.
    """
    weighted = [(1 / y**2, x, y) for x, y in pairs]
    total = sum(w for w, _, _ in weighted)
    x_mean = sum(w * x for w, x, _ in weighted) / total
    y_mean = sum(w * y for w, _, y in weighted) / total
    variance = sum(w * (x - x_mean) ** 2 for w, x, _ in weighted)
    if variance < 1e-12 * total * x_mean**2:
        return 0.0, y_mean / x_mean
    slope = sum(w * (x - x_mean) * (y - y_mean) for w, x, y in weighted) / variance
    slope = min(max(0.0, slope), y_mean / x_mean)
    return y_mean - slope * x_mean, slope
