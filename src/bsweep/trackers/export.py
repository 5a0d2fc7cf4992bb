"""The command `bsweep export`, which copies the records of a study's runs to a tracker."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bsweep.config.values import did_you_mean
from bsweep.core import terminal
from bsweep.runlog import reading
from bsweep.runlog.files import RunPaths
from bsweep.trackers import NAMES, Sink, check_trackers, records, sink

logger = terminal.logger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Copy the records of a study's runs to a tracker, and return the exit code of `bsweep
    export`.

    Raises:
        ValueError: If the folder holds no runs, or the tracker cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="bsweep export", description="Copy the records of a study's runs to a tracker."
    )
    parser.add_argument("study", type=Path, help="the study's folder, such as results/quickstart")
    parser.add_argument("--to", type=_known, required=True, metavar="|".join(NAMES))
    parser.add_argument(
        "--out",
        help="a folder, or for mlflow an SQLite file or an address (default: in the study, or for "
        "mlflow the address in MLFLOW_TRACKING_URI if it is set)",
    )
    options = parser.parse_args(arguments)
    folders = sorted(p.parent for p in options.study.glob("[!.]*/metrics.jsonl"))
    if not folders:
        raise ValueError(
            f"{options.study} holds no runs with records. Give the folder of one study."
        )
    check_trackers([options.to])
    to, study = sink(options.to), options.study.resolve().name
    stored_in = options.out or to.place(options.study)
    failed = 0
    for folder in folders:
        try:
            logger.info(f"{folder}: {_pass_on(to, stored_in, study, RunPaths(folder))}")
        except Exception as error:
            failed += 1
            logger.error(f"{folder}: left out, {type(error).__name__}: {error}")
    print(to.view(stored_in))
    return 1 if failed else 0


def _known(name: str) -> str:
    if name not in NAMES:
        raise argparse.ArgumentTypeError(
            f"{name}: unknown.{did_you_mean(name, NAMES)} Known: {', '.join(NAMES)}."
        )
    return name


def _pass_on(to: Sink, stored_in: str, study: str, paths: RunPaths) -> str:
    """Copy a run's records to a tracker unless the tracker says that it has them; return a text
    such as `12 records` or `there already`.
    """
    run = paths.folder.name
    if to.has(stored_in, study, run, records.fingerprint(paths)):
        return "there already"
    found, _ = reading.read_records(paths.metrics)
    settled = reading.settled(found)
    times = [record["time"] for record in settled] or [paths.metrics.stat().st_mtime]
    tracked = to.open(stored_in, study, run, times[0])
    for record in settled:
        records.forward(record, tracked)
    records.finish(paths, tracked, times[-1])
    return f"{len(settled)} records"
