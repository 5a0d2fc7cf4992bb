"""The commands `bsweep probe` and `bsweep profile`, which measure the workers of one point."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bsweep import allocation, launch
from bsweep.allocation import probes
from bsweep.compose import hydra_grid, overrides
from bsweep.compose.grid import values_of
from bsweep.config import slurm
from bsweep.config.launch import ProcessesConfig
from bsweep.config.parsing import parse
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError, show
from bsweep.core import terminal
from bsweep.core.ranks import inside_horovodrun
from bsweep.core.terminal import BAD_CONFIG
from bsweep.core.words import aligned
from bsweep.runlog import profile_file
from bsweep.runlog.probe_file import Probe
from bsweep.runlog.reading import Damaged
from bsweep.study import checks, side_runs, split_probe

logger = terminal.logger(__name__)

_BAD = (
    ConfigError,
    HydraException,
    OmegaConfBaseException,
)  # the user mends these by typing other arguments


def probe(arguments: Sequence[str]) -> int:
    """Measure the speed and memory of each worker of the point on the command line; print the
    results and the path of their file.

    Returns:
        The exit code.
    """
    config = _measured("probe", _probed, arguments, _with_place)
    if isinstance(config, int):
        return config
    is_split = _is_split(config)
    table = _splits(probes.kept(config)) if is_split else _workers(probes.read(config))
    print(*table, probes.path_of(config), sep="\n")
    return 0


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


def _with_place(config: RunConfig) -> RunConfig:
    """Return the configuration. Raise ConfigError if its probe file has something else, before the
    minutes that a probe takes.
    """
    probes.kept(config)
    return config


def _probed(config: RunConfig, say: Callable[[str], None]) -> launch.Outcome:
    return split_probe.probe(config, say) if _is_split(config) else side_runs.probe(config, say)


def _is_split(config: RunConfig) -> bool:
    return config.strategy.num_parts(config.num_workers) > 1


def profile(arguments: Sequence[str]) -> int:
    """Print how long each part of a training step takes for the point on the command line, and the
    paths of the trace files.

    Returns:
        The exit code.
    """
    config = _measured("profile", side_runs.profile, arguments, allocation.fill_in)
    if isinstance(config, int):
        return config
    try:
        workers = profile_file.read_anatomies(config)
    except Damaged as error:
        logger.error(f"bsweep: {error}")
        return 1
    print(profile_file.table(workers))
    print(profile_file.bottleneck(workers))
    for path in sorted(profile_file.folder_of(config).glob("trace.*")):
        print(path)
    return 0


def one_point(arguments: Sequence[str]) -> RunConfig | int:
    """Return the configuration of the point on the command line, from which `bsweep doctor` takes
    the hosts; or return an exit code if the arguments are wrong.

    A point without a batch size gets a local batch of 8, because `bsweep doctor` does not use it.
    If the arguments are wrong, print why and return the exit code.
    """
    try:
        composed = hydra_grid.first_point(overrides.arranged(arguments))
        if composed.local_batch is None and composed.global_batch is None:
            composed.local_batch = 8
        config = parse(values_of(composed)).resolved()
        if not isinstance(config.launch, ProcessesConfig):
            raise ConfigError(f"launch={config.launch.name} starts no processes: leave launch out.")
        launch.check_hosts(config)
    except (*_BAD, ValueError) as error:
        logger.error(f"bsweep: {overrides.explain(error)}")
        return BAD_CONFIG
    return config


def _measured(
    command: str,
    measure: Callable[[RunConfig, Callable[[str], None]], launch.Outcome],
    arguments: Sequence[str],
    fill_in: Callable[[RunConfig], RunConfig],
) -> RunConfig | int:
    """Call `measure` on the first point of the command line, after checks of the point and its
    hosts. Return the point's configuration, or an exit code after a failure.
    """
    problem = next(
        (
            f"{flag}: bsweep {command} has no flags: leave it out"
            for flag in arguments
            if flag.startswith("-")
        ),
        "",
    )
    if inside_horovodrun():
        problem = f"bsweep {command} starts its own workers: leave horovodrun out"
    problem = problem or slurm.started_often(os.environ)
    if problem:
        logger.error(f"bsweep: {problem}")
        return BAD_CONFIG
    try:
        composed = hydra_grid.first_point(overrides.arranged(arguments))
        config = fill_in(parse(values_of(composed)).resolved())
        if config.program.is_own:
            raise ConfigError(
                f"bsweep {command} measures bsweep's own training, not program=own: `bsweep plan "
                "--probe` times a few steps of your program."
            )
        warnings = checks.check_point(config)
        config.study_dir.mkdir(parents=True, exist_ok=True)
        if unready := checks.unready_hosts([config]):
            raise ConfigError(*unready)
    except (*_BAD, OSError) as error:
        logger.error(f"bsweep: {overrides.explain(error)}")
        return BAD_CONFIG
    for warning in warnings:
        logger.warning(f"warning: {warning}")
    outcome = measure(config, logger.info)
    if outcome.status != "completed":
        logger.error(f"bsweep: the {command} ended as {outcome.status}: {outcome.message}")
        return 1
    return config
