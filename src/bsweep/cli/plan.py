"""The command `bsweep plan`, which shows what `bsweep run` would train.

It also tells how far each point is and, if it can estimate it, how long the rest will take. It
trains no point of a study, and writes nothing into a study's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bsweep.compose import hydra_grid, words
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core import terminal
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.terminal import end_with_reader
from bsweep.launch import Outcome
from bsweep.study import checks, history, overview, side_runs
from bsweep.study.estimate import Timed
from bsweep.study.history import Planned
from bsweep.study.overview import Row

logger = terminal.logger(__name__)

_SWITCHES = ("--json", "--probe", "--report")  # a command typed for `run` is planned, too


def run(arguments: Sequence[str]) -> int:
    """Print the state and the estimated remaining time of each point of the command line, and
    return the exit code.
    """
    if inside_horovodrun():
        raise ConfigError(
            "plan does not run inside horovodrun: leave horovodrun out, and give num_workers=..."
        )
    typed = words.read(arguments, _SWITCHES)
    if typed.only_show:
        return hydra_grid.answer_flags("bsweep run", typed)
    configs = hydra_grid.composed(typed)
    checks.check_all(configs)
    by_study: dict[Path, dict[str, RunConfig]] = {}
    for config in configs:
        by_study.setdefault(config.study_dir, {}).setdefault(config.run_id, config)
    plans = {
        study_dir: _planned(study_dir, points, typed.flags.probe)
        for study_dir, points in by_study.items()
    }
    end_with_reader()
    if not typed.flags.json:
        for study_dir, (rows, source) in plans.items():
            print(f"{study_dir}:\n{overview.plan_text(rows, source)}")
    else:
        every = [row for rows, _ in plans.values() for row in rows]
        sources = "; ".join(dict.fromkeys(source for _, source in plans.values() if source))
        print(overview.as_json(every, sources, studies=[str(study_dir) for study_dir in plans]))
    return 0


def _planned(
    study_dir: Path, points: dict[str, RunConfig], wants_probe: bool
) -> tuple[list[Row], str]:
    facts = {run_id: history.planned(config) for run_id, config in points.items()}
    rows, source = overview.of_grid(study_dir, list(facts.values()))
    unknown = [row.run_id for row in rows if row.is_left and row.seconds is None]
    if not wants_probe or not unknown:
        return rows, source
    tried = _try_out([(facts[run_id], points[run_id]) for run_id in unknown])
    return overview.of_grid(study_dir, list(facts.values()), tried)


def _try_out(points: Sequence[tuple[Planned, RunConfig]]) -> list[Timed]:
    """Time a few steps of one point with the smallest and one with the largest batch in each group
    of comparable points, and return the times that could be measured.

    The points of a group have the same number of workers and the same `Planned.kind`.
    """
    alike: dict[tuple[str, int], dict[int, tuple[Planned, RunConfig]]] = {}
    for point, config in points:
        alike.setdefault((point.kind, point.num_workers), {})[point.examples_per_step] = (
            point,
            config,
        )
    timed = []
    for by_batch in alike.values():
        for batch in sorted({min(by_batch), max(by_batch)}):
            point, config = by_batch[batch]
            logger.info(f"trying {point.run_id} for a few steps")
            tried = side_runs.try_out(config, logger.info)
            if isinstance(tried, Outcome):
                logger.warning(f"bsweep: {point.run_id}: {tried.status}: {tried.message}")
            else:
                trained = replace(point, num_examples=config.epochs * tried.num_train)
                timed.append(Timed(trained, tried.step_seconds, tried.other_seconds))
    return timed
