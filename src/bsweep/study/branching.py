"""The setting `resume_from`, by which a run continues from another run's checkpoint and may have
other workers or batch sizes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config
from bsweep.config.values import ConfigError, flatten, show
from bsweep.runlog.checkpoint_files import (
    Checkpoint,
    checkpoints,
    crc32_of_records,
    cut_records,
    soundest,
)
from bsweep.runlog.files import RunLog, RunPaths, write_json
from bsweep.runlog.reading import read_meta
from bsweep.runlog.records import Continued

_MAY_DIFFER = (
    "study", "results_dir", "local_batch", "global_batch", "num_workers", "accumulation_steps",
    "log_every_steps",
    "checkpoint_every", "keep_weights", "resume_from", "launch.", "strategy.", "allocation.",
    "model.weights", "data.download", "trackers",
)  # fmt: skip


def check_branch(config: RunConfig) -> None:
    """Raise ConfigError if a point cannot continue the run that its `resume_from` names."""
    if config.resume_from is None:
        return
    folder = Path(config.resume_from).expanduser()
    if not (folder / "config.yaml").exists():
        raise ConfigError(
            f"resume_from={folder} is not the folder of a run. Give a folder such as "
            "results/STUDY/RUN."
        )
    problems = [
        f"resume_from={folder}: {problem}" for problem in _problems(config, RunPaths(folder))
    ]
    if problems:
        raise ConfigError(*problems)


def begin(config: RunConfig, paths: RunPaths) -> None:
    """Copy the latest checkpoint without damage of the run that `resume_from` names, and the
    records until that checkpoint, to the folder of a new run.

    Raises:
        ValueError: If that run has no checkpoint without damage.
    """
    assert config.resume_from is not None
    source = RunPaths(Path(config.resume_from).expanduser())
    latest, damage = soundest(source)
    if latest is None:
        why = damage or "that run no longer has a complete checkpoint"
        raise ValueError(f"resume_from={source.folder}: {why}. Give another run.")
    facts = latest.facts() or {}
    copied = Checkpoint(paths.checkpoints / latest.folder.name)
    copied.folder.mkdir(parents=True)
    for file in latest.folder.iterdir():
        if file.name != "complete.json":  # the mark, which comes last
            shutil.copyfile(file, copied.folder / file.name)  # its mode is the umask's
    shutil.copyfile(source.metrics, paths.metrics)
    cut_records(paths, facts["metrics_bytes"])
    if read_meta(source).get("beside_others"):  # the copied records have its times
        write_json(paths.meta, {"beside_others": True})
    before = (
        f"until step {facts['num_steps']}, in epoch {facts['epoch']}, it was {source.folder.name}"
    )
    with RunLog(paths.metrics) as log:
        log.write(
            Continued(
                message=f"{before}: times until that step are those of its workers",
                branch_of=source.folder.name,
                num_steps=facts["num_steps"],
                train_seconds=facts["train_seconds"],
            )
        )
    num_bytes = paths.metrics.stat().st_size
    crc32 = crc32_of_records(paths.metrics, num_bytes)
    copied.complete({**facts, "metrics_bytes": num_bytes, "metrics_crc32": crc32})


def _problems(config: RunConfig, source: RunPaths) -> Iterator[str]:
    other = read_config(source.config)
    if not checkpoints(source):
        yield (
            "that run has no complete checkpoint. bsweep removes the checkpoints of runs that "
            "completed or diverged: give a run that was interrupted after it had saved a "
            "checkpoint."
        )
    both = config.strategy.can, other.strategy.can
    are_alike = config.strategy.name == other.strategy.name
    if not (are_alike and all(can.loads_any_parts for can in both)):
        for run, whose in ((config, "this run's"), (other, "that run's")):
            if not run.strategy.can.replicates or run.compression.builds:
                yield (
                    f"with {whose} strategy={run.strategy.name} and "
                    f"compression={run.compression.name}, bsweep does not assume that all workers "
                    "have the same state, so no other workers can continue the run: use single, "
                    "horovod, allreduce or ddp, with compression=none and without "
                    "strategy.hook=powersgd, or the same of sharded, tensor and pipeline in both "
                    "runs."
                )
    if not config.batching.goes_on_elsewhere and _sizes(config) != _sizes(other):
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


def _sizes(config: RunConfig) -> tuple[int, ...]:
    return config.examples_per_step, config.num_workers, config.accumulation_steps
