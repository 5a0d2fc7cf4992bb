"""The command `bsweep simulate`, which simulates steps on more workers than were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bsweep.cli.commands import parser_of
from bsweep.cli.options import MEASURED_NETWORK, SPEEDS, counts, pair
from bsweep.config.values import numbers
from bsweep.core import terminal

logger = terminal.logger(__name__)


def run(arguments: Sequence[str]) -> int:
    """Print how long a training step takes on clusters that were not measured; return the exit
    code.
    """
    parser = parser_of("simulate")
    add = parser.add_argument
    add("study", nargs="?", help="the study's folder, whose records give the constants")
    doublings = "worker counts, such as 1,2,4, or 1..4096 for all doublings (default: 1..64)"
    add("--workers", type=counts, default="1..64", help=doublings)
    add(
        "--network",
        action="append",
        help="bandwidth and latency of a node's link, such as 25gbit,10us, with per_node=, inner=, "
        "sites= and between= (default: as the study measured, or the machine's vendor states); may "
        "be repeated",
    )
    add("--measured-network", help=MEASURED_NETWORK)
    default = "horovod,parameter_server,diloco"
    such = f"such as horovod,diloco:sync_every=500 (default: {default})"
    add("--strategies", default=default, help=such)
    add("--local-batch", type=int, help="examples of a worker's pass (default: the study's)")
    add("--global-batch", type=int, help="examples of a step of all workers instead")
    add("--where", action="append", default=[], metavar="COLUMN=VALUE", help="use only such runs")
    add("--parameters", type=float, help="the number of the model's parameters, such as 11e6")
    add("--example-bytes", type=float, help="what an example sends between parts of a split model")
    add("--probe", help="a probe.json in place of a study")
    add("--machine", help="a100, h100, h200, rtx4090 or a YAML file in place of a study")
    add("--flops-per-example", type=float, help="operations of a training step for an example")
    add("--speeds", help=SPEEDS)
    add("--memories", help="memory of uneven workers in GB, such as 80,40,24")
    add("--price-per-worker-hour", type=float, help="price of one worker for an hour")
    add("--figure", type=Path, metavar="FILE", help="also draw the speed-up, such as in speed.svg")
    add("--json", action="store_true", help="print everything as JSON")
    options = vars(parser.parse_args(arguments))
    figure, as_json = options.pop("figure"), options.pop("json")
    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--figure {figure}: give a file that ends in .png, .svg or .pdf.")
    options["where"] = dict(map(pair, options["where"]))
    for name in ("speeds", "memories"):
        options[name] = numbers(f"--{name}", options[name])
    from bsweep.analysis import simulate

    with terminal.console().status("simulating"):
        answer = simulate(**options)
    print(json.dumps(answer.as_json(), indent=2, allow_nan=False) if as_json else answer)
    if figure is not None:
        from bsweep.plots import simulation

        simulation.write(answer, figure)
        logger.info(f"wrote {figure}")
    return 0
