"""`bsweep run`, `bsweep probe` and `bsweep profile`: points as Hydra composes them, checked, planned and started."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from bsweep import allocation, anatomy, launch, study
from bsweep.cli import BAD_CONFIG, report
from bsweep.config import ConfigError, RunConfig, conf_dir, did_you_mean, own, parse, unknown_key
from bsweep.launch import team
from bsweep.place import inside_horovodrun
from bsweep.progress import Progress

# What the Hydra job and sweeper of this process share with `run`, which starts them through Hydra.
PROGRESS: Progress | None = None
STATUSES: list[str] = []
STUDIES: dict[Path, set[str]] = {}  # with the allocations in each


def run(arguments: Sequence[str]) -> int:
    """Train what Hydra composes from `arguments`; the exit code."""
    wants_report = "--report" in arguments
    hydra_arguments = [as_hydra_takes(argument) for argument in arguments if argument != "--report"]
    if inside_horovodrun():
        if any(a.startswith("hydra/launcher=") and a != "hydra/launcher=basic" for a in arguments):
            print("bsweep: inside horovodrun its processes run the points: leave out hydra/launcher", file=sys.stderr)
            return BAD_CONFIG
        from bsweep.launch import warm  # imports Horovod and torch

        code = warm.run(lambda: _run_hydra(hydra_arguments))
    else:
        code = _run_hydra(hydra_arguments)
    if code != BAD_CONFIG:
        for folder, allocations in sorted(STUDIES.items()):
            if len(allocations) > 1:
                _print_idle_seconds(folder)
            if wants_report:
                code = max(code, report([str(folder)]))
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


def as_hydra_takes(argument: str) -> str:
    """An argument with the ~ of key=~/path, which neither a shell nor Hydra takes, and with options as new keys."""
    argument = re.sub(r"^(\w+\.options(\.[\w.]+)?=)", r"++\1", argument)
    return re.sub(r"^([\w./+]+=)~(?=/|$)", rf"\g<1>{Path.home()}", argument)


def _run_hydra(arguments: Sequence[str]) -> int:
    import hydra

    shows_config = any(argument in ("--cfg", "-c", "--info", "-i") for argument in arguments)
    if shows_config and {"-m", "--multirun"} & set(arguments):
        print("bsweep: --cfg and --info show one point: leave out -m, and give each key one value", file=sys.stderr)
        return BAD_CONFIG
    for argument in arguments:
        if argument.startswith(("hydra/sweeper=", "hydra.mode=")):
            print(f"bsweep: {argument}: bsweep's own sweeper checks and runs all points; leave it out", file=sys.stderr)
            return BAD_CONFIG
    sys.argv = ["bsweep run", *arguments]
    wants_traceback = "HYDRA_FULL_ERROR" in os.environ
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting with 1
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        if wants_traceback:
            raise
        print(f"bsweep: {explain(error)}", file=sys.stderr)
        return BAD_CONFIG
    finally:
        team.end()
        if not wants_traceback:
            del os.environ["HYDRA_FULL_ERROR"]
    return 0 if all(status == "completed" for status in STATUSES) else 1


def job(composed: DictConfig) -> str:
    """Hydra's task function: run one point that `plan` has checked; its status."""
    return study.run_point(to_config(composed), PROGRESS or Progress(1), _launcher())


def _launcher() -> study.Launch:
    if not inside_horovodrun():
        return launch.launch
    from bsweep.launch import warm

    return warm.launch


def plan(composed: Sequence[DictConfig]) -> list[int]:
    """Check all points of a sweep; the places in `composed` of those to run, without repetitions.

    Raises:
        ConfigError: lists what is wrong with any of them. Nothing was started.
    """
    global PROGRESS
    configs: list[RunConfig] = []
    problems: list[str] = []
    for point in composed:
        try:
            configs.append(to_config(point))
            study.check(configs[-1])
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    for config in configs:
        try:
            config.study_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"results_dir={config.results_dir} study={config.study}: {error}.") from None
    study.ask_for_calibration(configs)
    chosen = {(config.study_dir, config.run_id): index for index, config in reversed(list(enumerate(configs)))}
    for config in configs:
        STUDIES.setdefault(config.study_dir, set()).add(config.allocation.name)
    PROGRESS = Progress(len(chosen))
    order = _by_processes({index: configs[index] for index in sorted(chosen.values())})
    team.expect(configs[index] for index in order if not study.is_completed(configs[index]))
    return order


def _by_processes(configs: Mapping[int, RunConfig]) -> list[int]:
    """The points in their order, but those that the same processes can train one after another."""
    keys = {index: team.key_of(config) or index for index, config in configs.items()}
    first = {key: number for number, key in reversed(list(enumerate(keys.values())))}
    return sorted(configs, key=lambda index: first[keys[index]])


def to_config(composed: DictConfig) -> RunConfig:
    """The point that Hydra composed, checked, and with what its allocation gives each worker."""
    return allocation.fill_in(own.resolve(parse(_values(composed))))


def _values(composed: DictConfig) -> dict[str, Any]:
    """The keys that Hydra composed, without its own.

    Raises:
        ConfigError: one has no value.
    """
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    try:
        container: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        raise ConfigError(f"{key}: no value given. Give {key}=...") from None
    return dict(container)


def probe(arguments: Sequence[str]) -> int:
    """Measure the workers of the point that `arguments` give, and print what was found; the exit code."""
    config = _measured("probe", study.probe, arguments)
    if isinstance(config, int):
        return config
    print(allocation.table(allocation.read_probe(config)))
    print(allocation.probe_path(config))
    return 0


def profile(arguments: Sequence[str]) -> int:
    """Print what the steps of the point that `arguments` give consist of, and where the traces are; the exit code."""
    config = _measured("profile", study.profile, arguments, allocation.fill_in)
    if isinstance(config, int):
        return config
    workers = anatomy.read(config)
    print(anatomy.table(workers))
    print(anatomy.bottleneck(workers))
    for path in sorted(anatomy.folder_of(config).glob("trace.*")):
        print(path)
    return 0


def _measured(
    command: str,
    measure: Callable[[RunConfig, Callable[[str], None]], launch.Outcome],
    arguments: Sequence[str],
    fill_in: Callable[[RunConfig], RunConfig] = lambda config: config,
) -> RunConfig | int:
    """The first point that `arguments` give, once it is measured; the exit code if it is not."""
    problem = next((f"{flag}: leave it out, one point is measured" for flag in arguments if flag.startswith("-")), "")
    if inside_horovodrun():
        problem = f"bsweep {command} starts its own workers: leave horovodrun out"
    if problem:
        print(f"bsweep: {problem}", file=sys.stderr)
        return BAD_CONFIG
    try:
        composed = _first_point([as_hydra_takes(argument) for argument in arguments])
        config = fill_in(own.resolve(parse(_values(composed))))
        warnings = study.check(config)
        config.study_dir.mkdir(parents=True, exist_ok=True)
        study.ask_for_calibration([config])
    except (ConfigError, HydraException, OmegaConfBaseException, OSError) as error:
        print(f"bsweep: {explain(error)}", file=sys.stderr)
        return BAD_CONFIG
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    outcome = measure(config, lambda line: print(line, file=sys.stderr))
    if outcome.status != "completed":
        print(f"bsweep: the {command} ended as {outcome.status}: {outcome.message}", file=sys.stderr)
        return 1
    return config


def _first_point(arguments: Sequence[str]) -> DictConfig:
    """What Hydra composes, with the first value of each axis that an experiment or the command line sweeps.

    Raises:
        HydraException: an override is none, or names what there is not.
    """
    from hydra import compose, initialize_config_dir

    given = _first_values(arguments)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        axes = compose("config", list(given.values()), return_hydra_config=True).hydra.sweeper.params or {}
        swept = [f"{axis}={values}" for axis, values in axes.items() if values is not None and axis not in given]
        return compose("config", [*_first_values(swept).values(), *given.values()])


def _first_values(overrides: Sequence[str]) -> dict[str, str]:
    """Overrides by their keys, each with one value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    first = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        text = override.input_line or ""
        if override.is_sweep_override():
            text = f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
            print(f"measuring {text}, the first of {override.input_line}", file=sys.stderr)
        first[override.get_key_element().lstrip("+~")] = text
    return first


def explain(error: Exception) -> str:
    """What is wrong in one paragraph, with what was perhaps meant."""
    text = str(error)
    unknown = re.search(r"Could not override '([^'@]+)'", text)
    if unknown:
        return f"{unknown_key(unknown[1])} `bsweep run --help` lists all."
    group = re.search(r"Could not find '([\w/]+)/([^/']+)'\s+Available options in '[\w/]+':\s+((?:\s*\S+\n)+)", text)
    if group:
        options = group[3].split("Config search path")[0].split()
        return (
            f"{group[1]}={group[2]}: unknown {group[1]}.{did_you_mean(group[2], options)} Known: {', '.join(options)}."
        )
    return text.split("\nConfig search path")[0].strip()
