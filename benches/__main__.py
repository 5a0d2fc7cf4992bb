"""Speed of bsweep against plain programs, measured in one run, alternating, as ratios of medians.

python -m benches [--quick] [--models M,M] [--batches N,N] [--rounds N] [--json FILE] [NAME...]

Type it in the root of a checkout. Without names: all.

alone       steps of each shipped model at batches of 8 to 256, beside the plain loop
together    steps of two workers, of the same models and batches, beside DDP and Horovod's own
optimizer wrapper
exchange    Horovod's all-reduce of ResNet-18's gradient beside torch.distributed's
start       short points with processes that are reused, and with a launch for each
watch       what `bsweep watch` takes of a core beside a run that trains

--models and --batches choose a part of alone and together, --rounds how often each program takes
its turn; --quick is a look at the first model. The file (by default, of the whole suite,
results/bench/HARDWARE.json) gets every timed round of every program, in seconds, with the hardware
and the command. Where there is a GPU, alone runs on it; together, where there are two.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benches import alone, exchange, start, together, watch
from benches.common import ROOT
from bsweep.core.whole_files import write_whole
from bsweep.study.provenance import provenance

BENCHES: Mapping[str, Callable[[alone.Grid], Any]] = {
    "alone": alone.steps_alone,
    "together": together.steps_together,
    "exchange": lambda _: exchange.exchange(),
    "start": lambda _: start.start(),
    "watch": lambda _: watch.watch(),
}


def main(options: argparse.Namespace) -> None:
    """Run the benches that were named."""
    grid = alone.Grid(options.models, options.batches, options.rounds)
    grid = alone.QUICK if options.quick else grid
    hardware = provenance(shlex.join(["python", "-m", "benches", *sys.argv[1:]]))
    is_whole = not options.names and grid == alone.Grid()
    file = options.json or (default_file(hardware) if is_whole else None)
    results: dict[str, Any] = {}
    for name in [name for name in BENCHES if name in (options.names or BENCHES)]:
        results[name] = BENCHES[name](grid)
        if file:  # after each one: the next may want more memory than there is
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, (json.dumps(hardware | results, indent=1) + "\n").encode())
            print(f"{file} has what was measured so far")


def default_file(hardware: dict[str, Any]) -> Path:
    gpus = [gpu.partition(",")[0] for gpu in hardware["gpus"]]
    name = f"{len(gpus)}x {gpus[0]}" if gpus else f"{hardware['cpu']} {hardware['cores']} cores"
    return ROOT / "results/bench" / f"{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}.json"


def models_of(text: str) -> tuple[alone.Case, ...]:
    known = {case.name.replace(" ", "_"): case for case in alone.CASES}
    if unknown := {*text.split(",")} - {*known}:
        raise argparse.ArgumentTypeError(f"{unknown}: unknown. Known: {', '.join(known)}.")
    return tuple(case for name, case in known.items() if name in text.split(","))


def batches_of(text: str) -> tuple[int, ...]:
    return tuple(sorted(map(int, text.split(","))))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    whole = alone.Grid()
    parser.add_argument("--models", type=models_of, default=whole.cases, metavar="M,M")
    parser.add_argument("--batches", type=batches_of, default=whole.batches, metavar="N,N")
    parser.add_argument("--rounds", type=int, default=whole.rounds, metavar="N")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if unknown := sorted({*options.names} - {*BENCHES}):
        parser.error(f"{', '.join(unknown)}: unknown. Known: {', '.join(BENCHES)}.")
    return options


if __name__ == "__main__":
    main(parsed())
