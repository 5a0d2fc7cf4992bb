"""The command `bsweep recommend`, which trains points of a grid, and recommends one of the grid's
cells for reaching a target.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from bsweep.advise.search import AXES, LIMIT, RATE, Search
from bsweep.analysis.conclusions.next_run import Next
from bsweep.analysis.conclusions.predicting import on_networks
from bsweep.analysis.conclusions.prediction_texts import Prediction, cell_name
from bsweep.analysis.conclusions.simulated import check_networks, check_points, larger_grid
from bsweep.analysis.prediction.forecast import Key
from bsweep.analysis.prediction.missing_runs import missing
from bsweep.analysis.prediction.objectives import (
    CLOSE,
    LEAST_GAIN,
    SURE,
    Objective,
    parse_objective,
)
from bsweep.analysis.prediction.sampler import NUM_DRAWS
from bsweep.analysis.prediction.ways import names_of_points
from bsweep.analysis.simulation import DOUBLINGS
from bsweep.analysis.study.frames import LargerClusters
from bsweep.analysis.study.numbers import different_texts, number
from bsweep.compose import hydra_grid, words
from bsweep.config.programs import OwnProgramConfig
from bsweep.config.run import RunConfig
from bsweep.config.strategies import OwnStrategyConfig
from bsweep.config.target import SETTINGS, target_of
from bsweep.config.values import ConfigError, flatten, numbers, parse_seconds, show
from bsweep.core.gpus import num_gpus
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.words import duration, joined
from bsweep.study import checks, claims
from bsweep.study.states import result_of


def run(arguments: Sequence[str]) -> int:
    """Search a grid for its best cell, print the recommendation or why there is none, and return
    the exit code.

    Args:
        arguments: What follows `bsweep recommend` on the command line.

    Returns:
        0, or 1 if no run reached the target.

    Raises:
        ValueError: If the command is wrong, or a run failed.
    """
    options = _parser().parse_intermixed_args(list(arguments))
    if inside_horovodrun():
        raise ValueError("bsweep recommend starts its own workers: leave horovodrun out")
    speeds, price = numbers("--speeds", options.speeds), options.price_per_worker_hour
    larger = LargerClusters(
        tuple(dict.fromkeys(options.network)), None, price, options.measured_network, speeds
    )
    check_networks(larger)
    target = target_of(options.target_accuracy, options.target_loss)
    objective = parse_objective(options.objective, price)
    budget = None if options.budget is None else parse_seconds(options.budget)
    given = [*options.overrides, f"{SETTINGS[target.metric]}={target.value!r}"]
    configs = hydra_grid.composed(words.read(given))
    target = replace(target, part=configs[0].evaluated_part)
    warnings = checks.check_all(configs)
    for config in configs:
        result_of(config)  # refuses the run of a newer bsweep
    cells = _cells(configs, objective)
    check_points(configs, options.network)
    command = f"bsweep recommend {shlex.join(arguments)}"
    search = Search(cells, warnings, command, given, target, objective, budget, price)
    search.study_dir.mkdir(parents=True, exist_ok=True)
    with claims.registered(search.study_dir):
        end = search.lead()
    return _print(search, end, larger, options.json, options.verbose)


def _parser() -> argparse.ArgumentParser:
    about = (
        "Train a part of a grid, and recommend a batch size and a worker count. The same command "
        "again resumes."
    )
    parser = argparse.ArgumentParser(prog="bsweep recommend", description=about)
    add = parser.add_argument
    grid = "the grid, as for bsweep run: local_batch=8,16,32 ..."
    add("overrides", nargs="+", metavar="key=value", help=grid)
    add("--target-accuracy", type=float, help="test accuracy to reach, such as 0.9")
    add("--target-loss", type=float, help="test loss to reach instead")
    default = LIMIT.replace("%", "%%")
    add("--budget", metavar="TIME", help=f"time for everything, such as 30m (default: {default})")
    objectives = "fastest | cheapest | joules | deadline=2h | 'workers<=4', joined by commas"
    add("--objective", default="fastest", help=objectives)
    add("--price-per-worker-hour", type=float, help="price of a worker's hour, for costs in money")
    links = (
        f"links as 25gbit,10us: simulate up to {DOUBLINGS[-1]} workers after the search; may be "
        "repeated"
    )
    add("--network", action="append", default=[], help=links)
    add("--measured-network", help="links between the workers of the search, as 1gbit,100us")
    add("--speeds", help="relative speeds of the simulated workers, such as 1,1,0.5")
    add("--json", action="store_true", help="print the answer as JSON")
    add("--verbose", action="store_true", help="also print all cells, the fits and the warnings")
    return parser


def _cells(configs: Sequence[RunConfig], objective: Objective) -> dict[Key, list[RunConfig]]:
    """Return the points of a grid, grouped by cell, without cells that have more workers than the
    objective allows.

    Raises:
        ConfigError: If `recommend` cannot search these points, such as a grid of one cell.
    """
    most_workers = objective.max_workers or max(config.num_workers for config in configs)
    points = {c.run_id: c for c in configs if c.num_workers <= most_workers}
    configs = [*points.values()]
    if not configs:
        raise ConfigError(
            f"--objective {objective.text}: every point of the grid has more workers. Allow more "
            "workers, or add smaller worker counts to the grid."
        )
    cells: dict[Key, list[RunConfig]] = {}
    ways = names_of_points([config.strategy for config in configs])
    for config, way in zip(configs, ways, strict=True):
        key = config.examples_per_step, config.num_workers, config.accumulation_steps, way
        cells.setdefault(key, []).append(config)
    problems = [text for config in configs for text in _problems(config)]
    problems += [*_other_axes(configs), *_other_steps(configs)]
    if objective.minimize == "joules" and not any(map(_may_know_energy, configs)):
        problems.append(
            "--objective joules: the processors of this machine do not report their energy, or you "
            "may not read it (/sys/class/powercap/intel-rapl:*/energy_uj). Use --objective "
            "cheapest, which counts worker-seconds."
        )
    if len(cells) < 2:
        allowed = f" that --objective {objective.text} allows" if objective.max_workers else ""
        problems.append(
            f"the grid has only one cell{allowed}: give several batch sizes, such as "
            "local_batch=8,16,32, or several worker counts."
        )
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return cells


def _problems(config: RunConfig) -> list[str]:
    """Return why `recommend` cannot search a grid with the given point."""
    program = config.program
    metrics = program.metrics if isinstance(program, OwnProgramConfig) else ""
    is_uniform = config.batching.name == "fixed" and config.allocation.name == "uniform"
    is_possible = {
        f"strategy={config.strategy.name}: its workers do not take every step together, as the "
        "formula for the steps needs. Use strategy=horovod, ddp, allreduce, or "
        "strategy=parameter_server with strategy.consistency=synchronous.": (
            config.strategy.can.lockstep
        ),
        "recommend chooses one batch size for equal workers: use batching=fixed "
        "allocation=uniform.": is_uniform,
        "checkpoint_every=null: recommend stops long runs, which resume from a checkpoint. Use "
        "checkpoint_every=auto.": config.checkpoint_every is not None,
        "stop_at_target=false: a run would train on after it has reached the target. Use "
        "stop_at_target=true.": config.stop_at_target,
        f"program.metrics={metrics}: recommend times single steps, but such a program tells the "
        "times of epochs alone. Call bsweep.join() and run.steps(...) in the program, or train "
        "some points with bsweep run, and then type bsweep predict.": not metrics,
        "resume_from: recommend needs runs that begin without a checkpoint of another run. Use "
        "resume_from=null.": not config.resume_from,
    }
    return [text for text, is_so in is_possible.items() if not is_so]


def _other_axes(configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield messages about keys and groups that have several values in a grid, although only batch
    size, workers, accumulation steps, learning rate, seed and strategy may have several.

    If a group such as `model` has several variants, the message names the group and not the keys of
    its variants. `_problems` refuses allocations, and `_other_steps` some strategies.
    """
    settings = [flatten(asdict(config)) for config in configs]
    others: tuple[str, ...] = ("allocation.", "strategy.")
    if len({config.strategy.name for config in configs}) > 1:  # which choose the launcher
        others += ("launch.",)
    values = {
        key: [*dict.fromkeys(show(point.get(key)) for point in settings)]
        for key in dict.fromkeys(itertools.chain(*settings))
        if key not in AXES and not key.startswith(others)
    }
    several = {key: texts for key, texts in values.items() if len(texts) > 1}
    groups = {key.removesuffix(".name") for key in several if key.endswith(".name")}
    for key, texts in several.items():
        group = key.removesuffix(".name")
        if group in groups or key.partition(".")[0] not in groups:
            yield (
                f"{group} has several values ({', '.join(texts)}), but only batch size, workers, "
                f"accumulation_steps, {RATE}, seed and strategy may have several. Choose one: "
                f"{group}={texts[0]}."
            )


def _other_steps(configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield messages about the strategies of a grid, if it has several whose runs may not take the
    same steps to a target.
    """
    strategies = [*dict.fromkeys(config.strategy for config in configs)]
    names = [str(strategy.name) for strategy in strategies]
    for strategy, name in zip(strategies, names, strict=True) if len(names) > 1 else ():
        if isinstance(strategy, OwnStrategyConfig) or not strategy.can.takes_mean:
            yield (
                f"strategy={name}: its steps may differ from those of the grid's other strategies, "
                "but a search counts the steps of all of them together. Search it alone."
            )
        elif names.count(name) > 1 and not strategy.can.splits_model:
            yield (
                f"strategy={name} has several settings, but only a strategy that splits the model "
                "may have several, such as strategy=sharded strategy.replicas=1,2. Choose one."
            )


def _may_know_energy(config: RunConfig) -> bool:
    """Return False if the given point names no hosts, would train on CPUs, and the energy use of
    this machine's CPUs cannot be read; otherwise return True.

    This process does not find out whether GPUs and named hosts report their energy use.
    """
    if getattr(config.launch, "named_hosts", None) or num_gpus(config.device):
        return True
    import torch  # the import takes seconds

    from bsweep.core import energy

    return not math.isnan(energy.EnergyMeter(torch.device("cpu"), counts_host=True).joules())


def _print(
    search: Search, end: Next, wanted: LargerClusters, as_json: bool, is_verbose: bool
) -> int:
    """Print the recommendation of a search, or why there is none, and return the exit code."""
    seen = search.observed()
    why = missing(seen) if seen else "no run was started."
    prediction = None if why else search.prediction(seen, NUM_DRAWS, search.objective)
    lines = [
        _ENDS[end.ends].format(what=search.what_is_minimized),
        f"Budget: {search.budget_text()}.",
    ]
    if prediction is not None:
        # Starts and evaluations count for the search alone.
        trainings = search.spent(is_wall=False) / float(prediction.recommended["worker_seconds"])
        cost = (
            f"The search cost as much as the steps of {number(trainings)} trainings of this cell."
        )
        lines += [*_best_rate(search, prediction), cost]
        if is_verbose:
            _ = prediction.leave_out  # what is computed is told
    lines += filter(None, [_next_run(search, end, is_recommended=prediction is not None)])
    larger, simulated = _larger(prediction, wanted)
    answer = prediction.brief() if prediction is not None else [f"No recommendation: {why}"]
    if as_json:
        answer = [] if prediction is not None else answer
        print(json.dumps({
            "ended": end.ends or "runs",
            "budget_seconds": search.budget,
            "spent": {
                "seconds": search.spent(is_wall=True),
                "worker_seconds": search.spent(is_wall=False),
            },
            "said": [*answer, *lines, *larger],
            "runs": search.run_ids,
            "prediction": prediction.as_json() if prediction else None,
            "simulated": simulated.networks_as_json() if simulated else None,
        }, indent=2, allow_nan=False))  # fmt: skip
    elif is_verbose:
        first = answer if prediction is None else [f"{prediction}\n"]
        print("\n".join([*first, *lines, *larger]))
    else:
        network = wanted.words() if simulated else ""
        page = f"Page: bsweep report {shlex.quote(str(search.study_dir))}{network} writes it."
        print("\n".join([*answer, joined(lines), *larger, page]))
    return 0 if prediction is not None else 1


def _larger(
    prediction: Prediction | None, wanted: LargerClusters
) -> tuple[list[str], Prediction | None]:
    """Return lines on what more workers than were timed would bring, by simulation, and the
    prediction with them; nothing without a network or a recommendation.
    """
    if prediction is None or not wanted.networks:
        return [], None
    seen, fits, objective = prediction.seen, prediction.fitted, prediction.objective
    try:
        simulated = on_networks(seen, fits, objective, larger_grid(seen), wanted)
    except ValueError as error:
        return [f"Larger clusters were not simulated: {error}"], None
    first = f"Simulated with {simulated.network}"
    if simulated.recommended["is_simulated"]:
        first += f", and no part of the above: {simulated.brief()[0]}"
    else:
        limits = f" that --objective {objective.text} allows" if objective.max_workers else ""
        first += f": no larger number of workers{limits} does better."
    new = [text for text in simulated.warnings if text not in prediction.warnings]
    lines = [first, *simulated.network_lines(), *(f"Warning: {text}" for text in new)]
    return lines, simulated


def _best_rate(search: Search, prediction: Prediction) -> list[str]:
    """Return a sentence on the learning rate of the recommended batch size, if the search has
    several.
    """
    if len(search.rates) < 2:
        return []
    batch, runs = prediction.recommended["global_batch"], prediction.seen.study.runs
    tried = runs.loc[runs["global_batch"] == batch, "lr"]
    if tried.empty:
        return [f"No run had batch size {batch}: choose {RATE} by runs of it."]
    best = prediction.seen.rates.get(batch, tried.iloc[0])
    among = ", ".join(different_texts(tried))
    return [f"Use {RATE}={best:g}, the best of the rates run with batch size {batch} ({among})."]


def _next_run(search: Search, end: Next, is_recommended: bool) -> str:
    """Return a sentence on the run that the search would make next if it went on; empty if no run
    is left.
    """
    if end.offer is None:
        return ""
    cell, seconds = cell_name(end.offer.cell), end.worker_seconds / end.offer.cell[1]
    takes = duration(seconds)
    if end.ends != "budget":
        # Rounded down, so that a gain below the limit of `next_run` does not read as the limit.
        gain = math.floor(1000 * end.gain) / 10
        return (
            f"The next run would be {cell}: it would take about {takes}, and is expected to save "
            f"{gain:.1f} % of the {search.what_is_minimized}."
        )
    budget = round(search.spent(is_wall=True) + 1.5 * seconds) + 1
    again = f"the same command with --budget {budget}s continues."
    if not is_recommended:
        most = " at most" * math.isnan(end.gain)
        return f"{takes}{most} more would pay for a run of {cell}: {again}"
    return (
        f"A larger budget would pay for a run of {cell}, which takes about {takes} and is expected "
        f"to save {100 * end.gain:.1f} % of the {search.what_is_minimized}: {again}"
    )


_ENDS = {
    "sure": f"Ended: the recommended cell is within {100 * CLOSE:.0f} % of the best with a "
    f"probability of {SURE:g} or more.",
    "budget": "Ended: the rest of the budget pays for no run that is expected to help.",
    "gain": f"Ended: no further run is expected to save {100 * LEAST_GAIN:g} % of the "
    "{what} or more.",
    "runs": "Ended: no point of the grid is left to run, except batches as large as one that did "
    "not reach the target, or larger.",
}
