"""The setting `resume_from`, by which a run continues from another run's checkpoint and may have
other workers or batch sizes.
"""

from __future__ import annotations

import operator
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config
from bsweep.config.values import ConfigError, flatten, show
from bsweep.runlog.checkpoint_files import Checkpoint, checkpoints, crc32_of_records, soundest
from bsweep.runlog.files import RunLog, RunPaths
from bsweep.runlog.reading import read_meta
from bsweep.runlog.records import Continued

_MAY_DIFFER = (
    "study", "results_dir", "local_batch", "global_batch", "num_workers", "accumulation_steps",
    "log_every_steps",
    "checkpoint_every", "keep_weights", "resume_from", "launch.", "strategy.", "allocation.",
    "model.weights", "data.download", "trackers",
)  # fmt: skip
_SIZES = operator.attrgetter("examples_per_step", "num_workers", "accumulation_steps")


def check_branch(config: RunConfig) -> None:
    """Raise ConfigError if a point cannot continue the run that its `resume_from` names."""
    folder = Path(config.resume_from or "").expanduser()
    if not (folder / "config.yaml").exists():
        raise ConfigError(
            f"resume_from={folder} is not the folder of a run. Give a folder such as "
            "results/STUDY/RUN."
        )
    if problems := [*_problems(config, RunPaths(folder))]:
        raise ConfigError(*(f"resume_from={folder}: {problem}" for problem in problems))


def begin(config: RunConfig, paths: RunPaths) -> bool:
    """Copy the latest checkpoint without damage of the run that `resume_from` names, and the
    records until that checkpoint, to the folder of a new run.

    Returns:
        True if other points ran beside that run, whose times the copied records have.

    Raises:
        ValueError: If that run has no checkpoint without damage.
    """
    assert config.resume_from is not None
    source = RunPaths(Path(config.resume_from).expanduser())
    latest, damage = soundest(source)
    if latest is None:
        why = damage or "that run no longer has a complete checkpoint"
        raise ValueError(f"resume_from={source.folder}: {why}. Give another run.")
    facts = latest.facts or {}
    copied = Checkpoint(paths.checkpoints / latest.folder.name)
    copied.folder.mkdir(parents=True)
    for file in latest.folder.iterdir():
        if file.name != "complete.json":  # the mark, which comes last
            shutil.copyfile(file, copied.folder / file.name)  # its mode is the umask's
    paths.metrics.write_bytes(source.metrics.read_bytes()[: facts["metrics_bytes"]])
    name, num_steps = source.folder.name, facts["num_steps"]
    event = Continued(
        message=f"until step {num_steps}, in epoch {facts['epoch']}, it was {name}: times until "
        "that step are those of its workers",
        branch_of=name,
        num_steps=num_steps,
        train_seconds=facts["train_seconds"],
    )
    with RunLog(paths.metrics) as log:
        log.write(event)
    num_bytes = paths.metrics.stat().st_size
    crc32 = crc32_of_records(paths.metrics, num_bytes)
    copied.complete({**facts, "metrics_bytes": num_bytes, "metrics_crc32": crc32})
    return bool(read_meta(source).get("beside_others"))


def _problems(config: RunConfig, source: RunPaths) -> Iterator[str]:
    other = read_config(source.config)
    if not checkpoints(source):
        yield (
            "that run has no complete checkpoint, as runs that completed or diverged: give a run "
            "that was interrupted after it had saved one."
        )
    both = config.strategy.can, other.strategy.can
    are_alike = config.strategy.name == other.strategy.name
    if not (are_alike and all(can.loads_any_parts for can in both)):
        for run, whose in ((config, "this run's"), (other, "that run's")):
            if not run.strategy.can.replicates or run.compression.builds:
                yield (
                    f"with {whose} strategy={run.strategy.name} and compression="
                    f"{run.compression.name}, workers differ in their state, so no other workers "
                    "can continue the run: use single, horovod, allreduce or ddp, with "
                    "compression=none and without strategy.hook=powersgd, or the same of sharded, "
                    "tensor and pipeline in both runs."
                )
    if not config.batching.goes_on_elsewhere and _SIZES(config) != _SIZES(other):
        yield (
            f"batching={config.batching.name} chose its batch sizes for the global batch, "
            "num_workers and accumulation_steps of that run, and this run has others. Give the "
            "same values, or use batching=fixed in both runs."
        )
    here, there = flatten(asdict(config)), flatten(asdict(other))
    for key in here.keys() | there.keys():
        may_differ = key in _MAY_DIFFER or f"{key.partition('.')[0]}." in _MAY_DIFFER
        if not may_differ and here.get(key) != there.get(key):
            yield (
                f"that run has {key}={show(there.get(key))}, but this run has "
                f"{show(here.get(key))}: give the same value."
            )
