"""The command `bsweep predict`, which predicts the best cell of a study's grid."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bsweep.cli.commands import parser_of
from bsweep.cli.options import add_networks, counts, pair
from bsweep.config.values import numbers

if TYPE_CHECKING:
    from bsweep.analysis import Prediction


def run(arguments: Sequence[str]) -> int:
    """Print which cell of a study's grid is predicted to be the best for reaching a target; return
    the exit code.

    The best cell is the fastest one, the cheapest one, or what else `--objective` asks for.
    """
    parser = parser_of("predict")
    add = parser.add_argument
    add("study", help="the study's folder, such as results/quickstart")
    add("--target-accuracy", type=float, help="test accuracy to reach, such as 0.9")
    add("--target-loss", type=float, help="test loss to reach instead")
    objectives = "fastest | cheapest | joules | deadline=2h | 'workers<=4', joined by commas"
    add("--objective", default="fastest", help=objectives)
    add("--batches", type=counts, help="global batch sizes (default: those of the runs)")
    default = "default: those of the runs; with --network 1,2,4,...,64"
    add("--workers", type=counts, help=f"worker counts, such as 1..64 ({default})")
    add("--price-per-worker-hour", type=float, help="price of a worker's hour, for costs in money")
    add("--where", action="append", default=[], metavar="COLUMN=VALUE", help="use only such runs")
    add("--probe", help="a probe.json, to use its times of steps and exchanges too")
    add_networks(parser)
    add("--json", action="store_true", help="print everything as JSON")
    add("--verbose", action="store_true", help="also print all cells, the fits and the warnings")
    options = vars(parser.parse_args(arguments))
    study, as_json, is_verbose = map(options.pop, ("study", "json", "verbose"))
    from bsweep.analysis import predict as predicted
    from bsweep.analysis.study.frames import LargerClusters

    options["speeds"] = numbers("--speeds", options["speeds"])
    where = dict(map(pair, options.pop("where")))
    prediction = predicted(study, **options, where=where)
    names = ("network", "workers", "price_per_worker_hour", "measured_network", "speeds")
    larger = LargerClusters(*[options[name] for name in names]).words()
    _print(prediction, study, larger, as_json, is_verbose)
    return 0


def _print(
    prediction: Prediction, study: str, larger: str, as_json: bool, is_verbose: bool
) -> None:
    if is_verbose:
        _ = prediction.leave_out  # what is computed is told
    if as_json:
        print(json.dumps(prediction.as_json(), indent=2, allow_nan=False))
        return
    run_next = f"Run next: {prediction.next_run()}."
    if is_verbose:
        print(prediction, textwrap.fill(run_next, 100), sep="\n")
    else:
        page = f"Page: bsweep report {shlex.quote(study)}{larger} writes it."
        print("\n".join([*prediction.brief(), run_next, page]))
