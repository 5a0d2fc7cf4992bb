"""What a simulation costs: its time and memory for each strategy, by the number of workers.

python scripts/benches/simulate.py [--workers 256,1024,4096] [--json FILE]

100 steps are simulated for each. Run it on one core, such as by `taskset -c 0`. The last lines say
by which power of the workers the time of all strategies grows, and the peak of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd

from bsweep.analysis.simulation import Simulation, simulate_from
from bsweep.analysis.simulation.constants import NUM_DRAWS, Constants
from bsweep.analysis.simulation.network import parse_network
from bsweep.analysis.simulation.spread import Spread
from bsweep.analysis.simulation.words import Way, ways_of

STRATEGIES = (
    "horovod,horovod:buckets=8,ddp,allreduce:algorithm=tree,"
    "allreduce:compression=topk,local_sgd,diloco,diloco:overlap=true,parameter_server,"
    "parameter_server:consistency=asynchronous,"
    "parameter_server:consistency=stale_synchronous:staleness=3,"
    "sharded,tensor,pipeline:microbatches=8,pipedream,deepspeed"
)
CONSTANTS = Constants(
    pass_seconds=np.full(NUM_DRAWS, 0.01),
    example_seconds=np.full(NUM_DRAWS, 0.005),
    parameter_bytes=1e8,
    local_batch=32,
    source="a bench",
    spread=Spread(0.05, 0.02),
    example_bytes=1e6,
    is_gpu=True,
)
WAYS = ways_of(STRATEGIES, pd.DataFrame())
NETWORK = parse_network("25gbit,10us,per_node=8,inner=2400gbit/2us,per_switch=16")


def simulated(way: Way, num_workers: int) -> Simulation:
    """Return the simulation of 100 steps of a way on so many workers."""
    return simulate_from(CONSTANTS, {"": NETWORK}, [way], [num_workers])


def main() -> None:
    """Time the strategies, and print or write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="256,1024,4096")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    counts = [int(text) for text in given.workers.split(",")]
    rows: dict[str, dict[int, float]] = {}
    for way in WAYS:
        rows[way.name] = {}
        for count in counts:
            began = time.process_time()
            simulated(way, count)
            rows[way.name][count] = time.process_time() - began
    table = pd.DataFrame(rows).T
    print(table.round(3).to_string())
    whole = table.sum()
    grows = np.polyfit(np.log(counts), np.log(whole), 1)[0] if len(counts) > 1 else np.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = whole.round(1).to_dict()
    print(f"all, on one core: {seconds} s, growing as workers to the power of {grows:.2f}")
    print(f"peak of memory: {peak / 2**20:.0f} MiB")
    if given.json:
        told = {"seconds": rows, "power": grows, "peak_bytes": peak}
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
