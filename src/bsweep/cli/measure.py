"""The commands `bsweep probe` and `bsweep profile`, which measure the workers of one point."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bsweep import allocation, launch
from bsweep.allocation import probes
from bsweep.cli.commands import parser_of
from bsweep.compose import hydra_grid, words
from bsweep.config import slurm
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError, show
from bsweep.core import terminal
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.words import aligned
from bsweep.launch import hosts_check
from bsweep.runlog import profile_file
from bsweep.runlog.probe_file import Probe
from bsweep.study import checks, side_runs, split_probe

logger = terminal.logger(__name__)


def probe(arguments: Sequence[str]) -> int:
    """Measure the speed and memory of each worker of the point on the command line; print the
    results and the path of their file.

    Returns:
        The exit code.
    """
    config = _point("probe", arguments)
    # Refuses a file with something else, before the minutes of a probe.
    probes.read_or_empty(config)
    _check(config)
    is_split = config.strategy.num_parts(config.num_workers) > 1
    outcome = (split_probe if is_split else side_runs).probe(config, logger.info)
    if outcome.status != "completed":
        return _failed("probe", outcome)
    table = _splits(probes.read_or_empty(config)) if is_split else _workers(probes.read(config))
    print(*table, probes.path_of(config), sep="\n")
    return 0


def profile(arguments: Sequence[str]) -> int:
    """Print how long each part of a training step takes for the point on the command line, and the
    paths of the trace files.

    Returns:
        The exit code.
    """
    config = allocation.fill_in(_point("profile", arguments))
    _check(config)
    outcome = side_runs.profile(config, logger.info)
    if outcome.status != "completed":
        return _failed("profile", outcome)
    workers = profile_file.read_anatomies(config)
    print(profile_file.table(workers))
    print(profile_file.bottleneck(workers))
    for path in sorted(profile_file.folder_of(config).glob("trace.*")):
        print(path)
    return 0


def _point(command: str, arguments: Sequence[str]) -> RunConfig:
    """Return the first point of the command line, without what its allocation chooses.

    Raises:
        ConfigError: If the command cannot measure this point here.
    """
    parser = parser_of(command)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="a point, as for run")
    overrides = parser.parse_args(arguments).overrides
    if inside_horovodrun():
        raise ConfigError(f"bsweep {command} starts its own workers: leave horovodrun out")
    if problem := slurm.started_often(os.environ):
        raise ConfigError(problem)
    config = hydra_grid.first_point(words.read(overrides))
    if config.program.is_own:
        raise ConfigError(
            f"bsweep {command} measures bsweep's own training, not program=own: `bsweep plan "
            "--probe` times a few steps of your program."
        )
    return config


def _check(config: RunConfig) -> None:
    """Check a point and its hosts, and log warnings.

    Raises:
        ConfigError: If the point cannot run.
    """
    warnings = checks.check_point(config)
    config.study_dir.mkdir(parents=True, exist_ok=True)
    if unready := hosts_check.problems([config]):
        raise ConfigError(*unready)
    for warning in warnings:
        logger.warning(f"warning: {warning}")


def _failed(command: str, outcome: launch.Outcome) -> int:
    logger.error(f"bsweep: the {command} ended as {outcome.status}: {outcome.message}")
    return 1


def _workers(probe: Probe) -> list[str]:
    """Return the lines of a table of each worker's seconds per step at each local batch."""
    batches = sorted({batch.local_batch for worker in probe.workers for batch in worker.batches})
    rows = [
        ["worker", "host", "device", *(f"b={batch}" for batch in batches), "largest", "TFLOP/s"]
    ]
    for rank, worker in enumerate(probe.workers):
        seconds = {batch.local_batch: f"{batch.step_seconds:.3g}" for batch in worker.batches}
        more = "" if worker.stopped_by == "out_of_memory" else ">="
        numbers = [f"{more}{worker.largest_batch}", f"{worker.peak_flops / 1e12:.3g}"]
        times = [seconds.get(batch, "-") for batch in batches]
        rows.append([str(rank), worker.host, worker.device, *times, *numbers])
    exchange = f"one exchange: {probe.exchange_seconds:.3g} s"
    return ["seconds per step at local batches:", *aligned(rows), exchange]


def _splits(probe: Probe) -> list[str]:
    """Return the lines of a table of the seconds of a step and the peak memory at each local batch,
    for each way of splitting the model.
    """
    rows = [["strategy", "workers", "local batch", "s per step", "peak MiB", "largest"]]
    for split in probe.splits:
        values = (
            f"{key.removeprefix('strategy.')}={show(value)}"
            for key, value in split.probed.items()
            if key.startswith("strategy.") and key != "strategy.name" and value is not None
        )
        name = " ".join([str(split.probed["strategy.name"]), *values])
        largest = "largest" if split.stopped_by == "out_of_memory" else "more may fit"
        for batch in split.batches:
            peak = "-" if batch.peak_bytes is None else f"{batch.peak_bytes / 2**20:,.0f}"
            numbers = [str(split.probed["num_workers"]), str(batch.local_batch)]
            note = largest if batch.local_batch == split.largest_batch else ""
            rows.append([name, *numbers, f"{batch.step_seconds:.3g}", peak, note])
            name = ""
    return aligned(rows)
