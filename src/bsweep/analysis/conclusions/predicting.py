"""The prediction of which batch size, on how many workers, reaches a target soonest or cheapest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bsweep.analysis.conclusions.prediction_texts import Prediction
from bsweep.analysis.conclusions.prediction_warnings import warnings_of
from bsweep.analysis.conclusions.simulated import check_networks, larger_grid, with_simulated
from bsweep.analysis.prediction.fitting import Fits, fit
from bsweep.analysis.prediction.forecast import Key, forecast, grid
from bsweep.analysis.prediction.objectives import (
    Objective,
    choose_cell,
    parse_objective,
    with_probabilities,
)
from bsweep.analysis.prediction.probed_steps import with_probe
from bsweep.analysis.prediction.seen_runs import Observed, observed
from bsweep.analysis.simulation import constants as constants_of
from bsweep.analysis.study.folder import load
from bsweep.analysis.study.frames import LargerClusters, Study
from bsweep.analysis.study.targets import named_targets
from bsweep.config.target import Target, target_of
from bsweep.config.values import counts
from bsweep.core.words import counted, listed


def predict(
    study: Study | str | Path,
    target_accuracy: float | None = None,
    target_loss: float | None = None,
    *,
    objective: str = "fastest",
    batches: int | str | Sequence[int] | None = None,
    workers: int | str | Sequence[int] | None = None,
    price_per_worker_hour: float | None = None,
    where: Mapping[str, str] | None = None,
    probe: str | Path | None = None,
    network: str | Sequence[str] | None = None,
    measured_network: str | None = None,
    speeds: Sequence[float] = (),
) -> Prediction:
    """Predict the time to a target for every cell of a grid, and recommend one cell.

    Args:
        study: A study or its folder.
        target_accuracy: The test accuracy to reach, a fraction.
        target_loss: The test loss to reach, in place of an accuracy. Without either, the one target
            that the study's runs name is taken.
        objective: `fastest`, `cheapest` (in worker-seconds, or in money if a price is given),
            `joules`, `deadline=2h`, `workers<=4`, or several of them joined by commas.
        batches: Global batch sizes of the grid, or a text such as `32,64,128`. None takes those of
            the runs, and doublings of the smallest up to the largest.
        workers: Worker counts of the grid, or a text such as `1,2,4` or `1..64`. None takes those
            of the runs and, with a network, all doublings up to 64.
        price_per_worker_hour: The price of an hour of one worker, in any currency.
        where: Columns of `study.runs` and the value to select in each. It is needed if runs differ
            in settings other than batch size, workers, way of splitting the model, learning rate
            and seed.
        probe: A `probe.json`. Its timings of steps and exchange count beside those of the runs.
        network: The links between workers, such as `25gbit,10us`, or `measured`. Steps on more
            workers than were timed are then simulated, see `bsweep.simulate`. A word such as
            `compression=fp16` among them simulates a codec. Several networks are compared: the
            prediction is that for the first one, `others` has the further ones, and `curves` the
            time on each number of workers with each.
        measured_network: The links on which the study was measured; see `bsweep.simulate`.
        speeds: Relative speeds of the workers on these networks; see `bsweep.simulate`.

    Returns:
        The cells of the grid with their predictions and intervals, the recommended cell, and
        warnings.

    Raises:
        ValueError: If an argument is wrong, no run reached the target, points are missing, the grid
            has fewer than two cells, or the runs do not compare. The message says what is wrong.
        FileNotFoundError: If there is no such folder of a study.
    """
    wanted = parse_objective(objective, price_per_worker_hour)
    batches = None if batches is None else counts("--batches", batches)
    workers = None if workers is None else counts("--workers", workers)
    networks = (network,) if isinstance(network, str) else tuple(dict.fromkeys(network or ()))
    larger = LargerClusters(networks, None, price_per_worker_hour, measured_network, tuple(speeds))
    check_networks(larger)
    # `where` may select among runs of different hardware.
    study = study if isinstance(study, Study) else load(study, mix=True)
    seen = observed(study, _target(study, target_accuracy, target_loss), where)
    seen, warnings = with_probe(seen, probe) if probe else (seen, [])
    fits = fit(seen)
    cells = (larger_grid if networks else grid)(seen, batches, workers)
    if len(cells) < 2:
        raise ValueError(
            f"the grid has {'only one cell' if cells else 'no cells'}: there is nothing to choose "
            "from. Give --batches (global, each a multiple of the workers times the passes of a "
            "step, and no larger than the training set) or --workers, as in --batches 32,64,128 "
            "--workers 1,2."
        )
    if networks:
        prediction = on_networks(seen, fits, wanted, cells, larger, where)
    else:
        prediction = predict_from(seen, fits, wanted, cells, price_per_worker_hour)
    return replace(
        prediction,
        warnings=(*warnings, *prediction.warnings),
        not_predicted=(*_without_cell(workers, cells), *prediction.not_predicted),
    )


def predict_from(
    seen: Observed,
    fits: Fits,
    objective: Objective,
    cells: Sequence[Key],
    price_per_worker_hour: float | None = None,
    network: str = "",
) -> Prediction:
    """Return the predicted time of each cell of a grid and the recommended cell, given fits that
    were made before; see `predict`.
    """
    predicted = forecast(seen, fits.steps, fits.step_time, cells, price_per_worker_hour)
    predicted = with_probabilities(predicted, objective)
    choice = choose_cell(predicted, objective)
    warnings = warnings_of(seen, fits, predicted.cells, choice.place)
    return Prediction(
        target=seen.target,
        objective=objective,
        choice=choice,
        warnings=tuple(dict.fromkeys(warnings)),
        seen=seen,
        forecast=predicted,
        fitted=fits,
        network=network,
    )


def on_networks(
    seen: Observed,
    fits: Fits,
    objective: Objective,
    cells: Sequence[Key],
    larger: LargerClusters,
    where: Mapping[str, str] | None = None,
) -> Prediction:
    """Return what `predict_from` does for the first of several networks, with steps on more workers
    than were timed from a simulation, and with the predictions for the others.

    A network with which nothing can be simulated, or no cell keeps the objective's limits, is left
    out, and `Prediction.not_predicted` says why. So are cells that bsweep would refuse to
    train, with a warning.

    Args:
        seen: The runs.
        fits: The fits to them.
        objective: The objective.
        cells: The cells of the grid.
        larger: The networks, and what else is said of the simulated workers.
        where: Columns of the study's runs, and the value to select in each.

    Returns:
        The prediction.

    Raises:
        ValueError: If the study has no constants for a simulation, or all networks are left out.
    """
    constants = constants_of.of_study(seen.study, where)
    constants = replace(constants, speeds=larger.speeds or constants.speeds)
    price = larger.price_per_worker_hour
    predictions, warnings, problems = [], list[str](), dict[str, str]()
    for network in larger.networks:
        try:
            step_time, kept, more_warnings = with_simulated(
                fits.step_time, seen, cells, network, constants, larger.measured_network
            )
            simulated = replace(fits, step_time=step_time)
            prediction = predict_from(seen, simulated, objective, kept, price, network)
        except ValueError as error:
            problems[network] = error.args[0]
            continue
        warnings += more_warnings
        predictions.append(prediction)
    if not predictions:
        raise ValueError("--network {}: {}".format(*next(iter(problems.items()))))
    first, *others = predictions
    return replace(
        first,
        others=tuple(others),
        not_predicted=tuple(f"With {network}: {problem}" for network, problem in problems.items()),
        warnings=tuple(dict.fromkeys((*warnings, *first.warnings))),
    )


def _target(study: Study, accuracy: float | None, loss: float | None) -> Target:
    """Return the target that is given, or else the one that the study's runs name."""
    if accuracy is not None or loss is not None:
        return target_of(accuracy, loss)
    named = [*named_targets(study.runs)]
    if len(named) != 1:
        raise ValueError(
            "give a target: --target-accuracy 0.9, or --target-loss, because the runs name "
            "no target, or several."
        )
    return named[0]


def _without_cell(workers: Sequence[int] | None, cells: Sequence[Key]) -> Iterator[str]:
    """Yield a sentence on the numbers of workers that have no cell, if there are some."""
    if lost := sorted(set(workers or ()) - {count for _, count, *_ in cells}):
        yield (
            f"no batch size of the grid suits {counted(listed(lost), 'worker')}: it must be no "
            "larger than the training set, and divide evenly among the workers."
        )
