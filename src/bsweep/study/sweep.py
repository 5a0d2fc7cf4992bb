"""`bsweep run`, `bsweep probe` and `bsweep profile`: points as Hydra composes them, checked,
planned and started.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from bsweep import allocation, launch
from bsweep.cli.main import BAD_CONFIG, report
from bsweep.compose import hydra_run, overrides
from bsweep.compose.grid import to_config, values_of
from bsweep.config import ConfigError, ProcessesConfig, RunConfig, own, parse, slurm
from bsweep.config.whole import is_full
from bsweep.core.ranks import inside_horovodrun
from bsweep.launch import preflight, team
from bsweep.runlog import profile_file
from bsweep.study import attempts, attendance, commands, parallel
from bsweep.study.commands import Command
from bsweep.study.progress import Progress
from bsweep.trackers import live

_WAIT_SECONDS = 0.5  # for a point that another process runs

# What the Hydra job and sweeper of this process share with those who start them through Hydra.
PROGRESS: Progress | None = None
STATUSES: list[str] = []
STUDIES: dict[Path, set[str]] = {}  # with the allocations in each
ARE_COMPOSED = False  # until then an error of any kind is Hydra's, over what was typed
_ATTENDANCE = attendance.Attendance()
_ARE_AT_ONCE = False  # several points of the sweep that was prepared
_choose: Callable[[Sequence[RunConfig]], list[int]]

_BAD = (
    ConfigError,
    HydraException,
    OmegaConfBaseException,
)  # what can be mended by typing something else


def run(arguments: Sequence[str]) -> int:
    """Train what Hydra composes from `arguments`; the exit code."""
    return led(lambda: _run_typed(arguments, functools.partial(_prepare, typed=arguments)))


def run_again(study_dir: Path, kept: Sequence[Command], run_ids: Set[str], repeats: bool) -> int:
    """Train points that a study's commands lead to, each in its folder; the exit code.

    Args:
        study_dir: The study.
        kept: Its commands.
        run_ids: The points.
        repeats: Whether what there is of them is set aside.
    """
    missing, study_dir = set(run_ids), study_dir.resolve()

    def is_wanted(config: RunConfig) -> bool:
        is_left = config.run_id in missing and config.study_dir.resolve() == study_dir
        missing.difference_update([config.run_id] * is_left)  # another command may lead to it, too
        return is_left

    code = 0
    for command in kept:
        if missing.isdisjoint(point.run_id for point in command.points):
            continue
        os.chdir(command.folder)
        print(f"bsweep run {shlex.join(command.arguments)}", file=sys.stderr)
        choose = functools.partial(
            _prepare, typed=command.arguments, is_wanted=is_wanted, repeats=repeats
        )
        code = max(code, _run_typed(command.arguments, choose))
    if missing:
        some = ", ".join(sorted(missing)[:3])
        print(
            f"bsweep: the study's commands no longer lead to {len(missing)} of its points "
            f"({some}): the folder was "
            "moved, or defaults or code have changed since. Type them again",
            file=sys.stderr,
        )
    return max(code, 1) if missing else code


def composed(arguments: Sequence[str]) -> tuple[list[RunConfig], int]:
    """The points that `arguments` give, checked, and the exit code; none where only help is
    shown.
    """
    found: list[RunConfig] = []

    def collect(configs: Sequence[RunConfig]) -> list[int]:
        _refuse_impossible(configs)
        found.extend(configs)
        return []

    code = _run_hydra(arguments, collect)
    return found, code


def led(lead: Callable[[], int]) -> int:
    """What `lead` gives, which one process runs; inside horovodrun the others follow it."""
    if not inside_horovodrun():
        if problem := slurm.started_often(os.environ):
            print(f"bsweep: {problem}", file=sys.stderr)
            return BAD_CONFIG
        return lead()
    from bsweep.launch import warm  # imports Horovod and torch

    return warm.run(lead)


def _run_typed(arguments: Sequence[str], choose: Callable[[Sequence[RunConfig]], list[int]]) -> int:
    wants_report = "--report" in arguments
    hydra_arguments = [argument for argument in arguments if argument != "--report"]
    if inside_horovodrun() and any(
        a.startswith("hydra/launcher=") and a != "hydra/launcher=basic" for a in hydra_arguments
    ):
        print(
            "bsweep: inside horovodrun its processes run the points: leave out hydra/launcher",
            file=sys.stderr,
        )
        return BAD_CONFIG
    try:
        code = _run_hydra(hydra_arguments, choose)
    finally:
        _ATTENDANCE.leave()
    if code != BAD_CONFIG:
        for folder, allocations in sorted(STUDIES.items()):
            if len(allocations) > 1:
                _print_idle_seconds(folder)
            if wants_report:
                code = max(
                    code, min(report([str(folder)]), 1)
                )  # 2 would say that nothing was started
    return code


def _print_idle_seconds(folder: Path) -> None:
    """What allocations are compared by: the idle seconds of each node."""
    from bsweep import analysis, report

    try:
        table = report.idle_text(analysis.load(folder))
    except (OSError, ValueError) as error:
        table = f"bsweep: no table of idle seconds: {error}"
    if table:
        print(table)


def shell(arguments: Sequence[str]) -> int:
    """Have Hydra serve a shell, see `bsweep.cli.completion`; the exit code."""
    return _run_hydra(arguments, lambda configs: [], "bsweep")


def _run_hydra(
    arguments: Sequence[str],
    choose: Callable[[Sequence[RunConfig]], list[int]],
    name: str = "bsweep run",
) -> int:
    """Have Hydra compose points, and run those that `choose` gives the places of, in that order;
    the exit code.
    """
    global ARE_COMPOSED, _choose
    _choose = choose
    shows_config = any(argument in ("--cfg", "-c", "--info", "-i") for argument in arguments)
    if shows_config and {"-m", "--multirun"} & set(arguments):
        print(
            "bsweep: --cfg and --info show one point: leave out -m, and give each key one value",
            file=sys.stderr,
        )
        return BAD_CONFIG
    wants_traceback = "HYDRA_FULL_ERROR" in os.environ
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting with 1
    ARE_COMPOSED = False
    try:
        hydra_run.start(name, overrides.arranged(arguments), job)
    except Exception as error:
        is_known = isinstance(error, _BAD) or (isinstance(error, OSError) and is_full(error))
        if wants_traceback or (ARE_COMPOSED and not is_known):
            raise
        print(f"bsweep: {overrides.explain(error)}", file=sys.stderr)
        return BAD_CONFIG
    finally:
        team.end()
        live.end()
        if not wants_traceback:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0 if all(status == "completed" for status in STATUSES) else 1


def job(composed: DictConfig) -> str:
    """Hydra's task function: run one point of a sweep that was checked; its status."""
    if slurm.number_of_task(os.environ):  # submitit starts a job once on each of its nodes
        return "led by the first task"
    return run_one(to_config(composed))


def run_one(config: RunConfig) -> str:
    """Run a point of a sweep that was checked, after those before it; its status."""
    return _run(config, PROGRESS or Progress(1), _launcher())


def _run(config: RunConfig, progress: Progress, start: attempts.Launch) -> str:
    """Run a point that was checked; its status."""
    unready = unready_hosts([config])
    if unready:  # a point before failed on them
        progress.skip(config, f"not tried: {'; '.join(unready)}")
        return "unready"
    try:
        return attempts.run_point(config, progress, start)
    except OSError as error:  # of files of the run itself: what fails in its processes is on record
        if not is_full(error):
            raise
        progress.give_up(config, str(error.strerror))
        return "interrupted"  # which is what it looks like to who finds no summary


def _launcher() -> attempts.Launch:
    if not inside_horovodrun():
        return launch.launch
    from bsweep.launch import warm

    return warm.launch


def run_points(
    configs: Sequence[RunConfig],
    one_by_one: Callable[[Sequence[int]], list[str]],
    *,
    runs_here: bool,
) -> list[str]:
    """Run the points that are to be run; the status of each.

    Args:
        configs: All that Hydra composed.
        one_by_one: Runs those at certain places one after another, and gives the status of each.
        runs_here: Whether it does so in this process.
    """
    global ARE_COMPOSED
    ARE_COMPOSED = True
    if not runs_here:
        parallel.refuse_elsewhere(configs)
    chosen = _choose(configs)
    start = functools.partial(_start_at_once, configs) if _ARE_AT_ONCE else one_by_one
    statuses = dict(zip(chosen, start(chosen) if chosen else [], strict=True))
    while others := [index for index, status in statuses.items() if status == "running"]:
        free = [index for index in others if not attempts.is_running(configs[index])]
        for index in free:
            # One that was broken off is for us to run; any other end is that of the point.
            statuses[index] = (
                attempts.ended_elsewhere(configs[index], PROGRESS or Progress(1))
                or start([index])[0]
            )
        time.sleep(0 if free else _WAIT_SECONDS)
    STATUSES.extend(statuses.values())
    return list(statuses.values())


def _start_at_once(configs: Sequence[RunConfig], places: Sequence[int]) -> list[str]:
    return parallel.run([configs[index] for index in places], PROGRESS or Progress(1), _run)


def _prepare(
    configs: Sequence[RunConfig],
    typed: Sequence[str],
    is_wanted: Callable[[RunConfig], bool] = lambda config: True,
    repeats: bool = False,
) -> list[int]:
    """Check all points of a sweep; the places in `configs` of those to run, without repetitions.

    Raises:
        ConfigError: lists what is wrong with any of them. Nothing was started.
    """
    global PROGRESS, _ARE_AT_ONCE
    _refuse_impossible(configs)
    for study_dir in {config.study_dir for config in configs}:
        try:
            attempts.refuse_newer(study_dir)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    places = reversed(
        [(index, config) for index, config in enumerate(configs) if is_wanted(config)]
    )
    chosen = {(config.study_dir, config.run_id): index for index, config in places}
    studies = {study_dir for study_dir, _ in chosen}
    configs_there = [config for config in configs if config.study_dir in studies]
    if unready := unready_hosts(configs[index] for index in sorted(chosen.values())):
        raise ConfigError(*unready)
    for study_dir in studies:
        _join(
            study_dir, [config for config in configs_there if config.study_dir == study_dir], typed
        )
    attempts.ask_for_calibration(configs_there)
    if repeats:
        for index in chosen.values():
            attempts.set_aside(configs[index])
    PROGRESS = Progress(len(chosen))
    left = {
        index: configs[index]
        for index in sorted(chosen.values())
        if not attempts.result_of(configs[index])
    }
    if reason := parallel.why_not([*left.values()]):
        PROGRESS.say(reason)
    _ARE_AT_ONCE = parallel.is_possible([*left.values()])
    if _ARE_AT_ONCE:  # each has processes of its own
        team.expect(())
        return sorted(chosen.values())
    order = team.by_processes({index: configs[index] for index in sorted(chosen.values())})
    team.expect(configs[index] for index in order if index in left)
    return order


def _join(study_dir: Path, points: Sequence[RunConfig], typed: Sequence[str]) -> None:
    """Have a study know of a sweep and of what was typed for its points; ConfigError where it
    cannot.
    """
    try:
        study_dir.mkdir(parents=True, exist_ok=True)
        commands.keep(study_dir, typed, points)
        _ATTENDANCE.join(study_dir)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(
            f"results_dir={points[0].results_dir} study={points[0].study}: {error}."
        ) from None
    STUDIES.setdefault(study_dir, set()).update(config.allocation.name for config in points)


def _refuse_impossible(configs: Sequence[RunConfig]) -> None:
    """ConfigError that lists what keeps points from being run here, if anything does."""
    problems: dict[str, None] = {}  # each once, in order
    for config in configs:
        try:
            attempts.check(config)
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigError(*problems)


def unready_hosts(configs: Iterable[RunConfig]) -> list[str]:
    """What keeps hosts from running those points that are not done."""
    if inside_horovodrun():
        return []
    try:
        return preflight.problems(config for config in configs if not attempts.result_of(config))
    except OSError as error:
        return [f"results_dir: {error}."]


def probe(arguments: Sequence[str]) -> int:
    """Measure the workers of the point that `arguments` give, and print what was found; the exit
    code.
    """
    config = _measured("probe", attempts.probe, arguments)
    if isinstance(config, int):
        return config
    print(allocation.table(allocation.read_probe(config)))
    print(allocation.probe_path(config))
    return 0


def profile(arguments: Sequence[str]) -> int:
    """Print what the steps of the point that `arguments` give consist of, and where the traces are;
    the exit code.
    """
    config = _measured("profile", attempts.profile, arguments, allocation.fill_in)
    if isinstance(config, int):
        return config
    workers = profile_file.read(config)
    print(profile_file.table(workers))
    print(profile_file.bottleneck(workers))
    for path in sorted(profile_file.folder_of(config).glob("trace.*")):
        print(path)
    return 0


def one_point(arguments: Sequence[str]) -> RunConfig | int:
    """A point to look at hosts for, by the keys that say where; the exit code where they are
    wrong.
    """
    try:
        composed = hydra_run.first_point(overrides.arranged(arguments))
        if composed.local_batch is None and composed.global_batch is None:
            composed.local_batch = 8
        config = own.resolve(parse(values_of(composed)))
        if not isinstance(config.launch, ProcessesConfig):
            raise ConfigError(f"launch={config.launch.name} starts no processes: leave it out.")
        launch.check_hosts(config)
    except (*_BAD, ValueError) as error:
        print(f"bsweep: {overrides.explain(error)}", file=sys.stderr)
        return BAD_CONFIG
    return config


def _measured(
    command: str,
    measure: Callable[[RunConfig, Callable[[str], None]], launch.Outcome],
    arguments: Sequence[str],
    fill_in: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> RunConfig | int:
    """The first point that `arguments` give, once it is measured; the exit code if it is not."""
    problem = next(
        (
            f"{flag}: leave it out, one point is measured"
            for flag in arguments
            if flag.startswith("-")
        ),
        "",
    )
    if inside_horovodrun():
        problem = f"bsweep {command} starts its own workers: leave horovodrun out"
    problem = problem or slurm.started_often(os.environ)
    if problem:
        print(f"bsweep: {problem}", file=sys.stderr)
        return BAD_CONFIG
    try:
        composed = hydra_run.first_point(overrides.arranged(arguments))
        config = fill_in(own.resolve(parse(values_of(composed))))
        warnings = attempts.check(config)
        config.study_dir.mkdir(parents=True, exist_ok=True)
        if unready := unready_hosts([config]):
            raise ConfigError(*unready)
    except (*_BAD, OSError) as error:
        print(f"bsweep: {overrides.explain(error)}", file=sys.stderr)
        return BAD_CONFIG
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    outcome = measure(config, lambda line: print(line, file=sys.stderr))
    if outcome.status != "completed":
        print(
            f"bsweep: the {command} ended as {outcome.status}: {outcome.message}", file=sys.stderr
        )
        return 1
    return config
