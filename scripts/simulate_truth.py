"""How far `bsweep simulate` is off: measured studies, the documents that bsweep implements, and
published curves.

    python scripts/simulate_truth.py [NAME...]

Without names: all. Each line has what was published or measured, what is simulated, and by how many
per cent the simulation is off. The docstring of each function says where its numbers come from, and
what the simulation was told. For each measured study, the doubt about ways that were not measured
comes from the two others.
"""

from __future__ import annotations

import functools
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd

from bsweep.analysis import load, published_idle
from bsweep.analysis.geo_distributed import idle_model
from bsweep.analysis.published import published
from bsweep.analysis.sharding import VGG16_LAYERS, published_gains
from bsweep.analysis.simulation import simulate_from
from bsweep.analysis.simulation.constants import (
    BEYOND,
    NUM_DRAWS,
    OTHER_WAY,
    Constants,
    of_study,
)
from bsweep.analysis.simulation.network import Network, parse_network
from bsweep.analysis.simulation.spread import Spread
from bsweep.analysis.simulation.strategies import FORWARD_SHARE
from bsweep.analysis.simulation.words import ways_of

MEASURED = Path(__file__).parents[1] / "results/measured"
NO_RUNS = pd.DataFrame()
VGG16_BYTES = 4.0 * sum(VGG16_LAYERS)
VGG16_SHARES = tuple(size / sum(VGG16_LAYERS) for size in VGG16_LAYERS)
VGG16_SIDES = (224, 224, 112, 112, 56, 56, 56, 28, 28, 28, 14, 14, 14, 1, 1, 1)
EVEN = ((1.0, 1.0),)
Parts = tuple[tuple[float, float], ...]
STUDIES: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "strategies_1gbit": (2, {}),
    "parameter_sharding_1gbit": (4, {"layer_shares": VGG16_SHARES}),
    "stragglers": (2, {"speeds": (1.5, 0.75)}),  # the mean worker's time is the measured one
}
"""The workers of each measured study, and what the simulation is told beside its records."""


class Row(NamedTuple):
    """One comparison."""

    what: str
    true: float
    simulated: float
    low: float = float("nan")  # ends of the 90 % interval, of simulated seconds of a step
    high: float = float("nan")

    @property
    def off(self) -> float:
        """By how much the simulation is off, as a fraction of the truth."""
        return self.simulated / self.true - 1 if self.true else float("nan")


def _known(seconds: float, parameter_bytes: float, **others: object) -> Constants:
    """Return constants of a worker that computes so long, whatever its batch."""
    none: dict[str, object] = {"exchange_factors": np.ones(NUM_DRAWS), "spread": Spread()}
    given: dict[str, object] = {
        "pass_seconds": np.full(NUM_DRAWS, seconds),
        "example_seconds": np.zeros(NUM_DRAWS),
        "parameter_bytes": parameter_bytes,
        "local_batch": 1,
        "source": "published",
    }
    return Constants(**{**given, **none, **others})  # type: ignore[arg-type]


def _own_links(constants: Constants) -> Network:
    """Return the links that a study's own exchanges had."""
    assert constants.network, constants.source
    return Network(constants.network.link)


def _row(constants: Constants, network: Network, way: str, workers: int, true: float) -> Row:
    """Return a comparison of the seconds of a step with measured ones."""
    found = simulate_from(constants, {"": network}, ways_of(way, NO_RUNS), [workers])
    cell = found.cells[found.cells["kind"] == "simulated"].iloc[0]
    names = ("step_seconds", "step_seconds_low", "step_seconds_high")
    return Row(way, true, *(float(cell[name]) for name in names))


def _step(constants: Constants, network: Network, way: str, workers: int) -> float:
    return _row(constants, network, way, workers, float("nan")).simulated


def _vgg16_backward() -> Parts:
    """Return the parts of VGG-16's backward pass, whose time is that of the layers' operations."""
    work = [size * side**2 for size, side in zip(VGG16_LAYERS, VGG16_SIDES, strict=True)]
    return tuple(
        (share, part / sum(work))
        for share, part in zip(reversed(VGG16_SHARES), reversed(work), strict=True)
    )


def strategies_1gbit() -> Iterator[Row]:
    """Compare seconds of a step of ResNet-18 on two emulated hosts at 1 Gbit/s.

    The constants come from the runs with the native all-reduce and no codec. All others are
    simulated from them, codecs with their measured seconds.
    """
    study = load(MEASURED / "strategies_1gbit", mix=True)
    where = {
        "strategy": "allreduce",
        "compression": "none",
        "strategy.algorithm": "native",
        "model": "resnet18",
    }
    constants = of_study(study, where)
    whole = of_study(study)
    constants = replace(
        constants, codec_seconds=whole.codec_seconds, codec_shares=whole.codec_shares
    )
    constants = _doubted(constants, "strategies_1gbit")
    steps = whole.measured
    links = _own_links(constants)
    for text, select in _ways_of(steps):
        yield _row(constants, links, text, 2, float(select["step_seconds"].median()))


def _ways_of(steps: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the ways of a study's runs in the words of a simulation, each with its runs."""
    keys = ["num_servers", "sharding", "consistency", "staleness", "colocated", "algorithm"]
    keys += ["sync_every"]
    names = [f"strategy.{key}" for key in keys if f"strategy.{key}" in steps]
    texts = []
    for run in steps[["strategy", "compression", *names]].to_dict("records"):
        words = [str(run["strategy"])]
        for name in names:
            value = run[name]
            if value is not None and value == value and value != "":
                text = f"{value:g}" if isinstance(value, float) else str(value).lower()
                words.append(f"{name.partition('.')[2]}={text}")
        if run["compression"] != "none":
            words.append(f"compression={run['compression']}")
        texts.append(":".join(words))
    yield from steps.groupby(texts)  # type: ignore[misc]


def parameter_sharding_1gbit() -> Iterator[Row]:
    """Compare seconds of a step of VGG-16 on four emulated hosts at 1 Gbit/s.

    The constants come from the run with a ring; the layers of VGG-16 are known. The hosts share two
    cores, which the simulation does not know.
    """
    study = load(MEASURED / "parameter_sharding_1gbit", mix=True)
    constants = of_study(study, {"strategy": "allreduce"})
    constants = replace(constants, layer_shares=VGG16_SHARES)
    constants = _doubted(constants, "parameter_sharding_1gbit")
    steps = of_study(study).measured
    links = _own_links(constants)
    for text, select in _ways_of(steps[steps["strategy"] == "parameter_server"]):
        yield _row(constants, links, text, 4, float(select["step_seconds"].median()))


def stragglers() -> Iterator[Row]:
    """Compare seconds of a step of ResNet-18 on two workers, one at half the speed, on one host.

    The constants come from the runs with an all-reduce.
    """
    study = load(MEASURED / "stragglers", mix=True)
    constants = of_study(study, {"strategy": "allreduce"})
    constants = _doubted(replace(constants, speeds=(1.5, 0.75)), "stragglers")
    steps = of_study(study).measured
    links = _own_links(constants)
    for text, select in _ways_of(steps):
        yield _row(constants, links, text, 2, float(select["step_seconds"].median()))


class ClusterCell(NamedTuple):
    """Runs of one way on four or eight emulated hosts, and what one and two workers tell."""

    study: str
    strategy: str
    way: str
    workers: int
    step_seconds: float
    constants: Constants


@functools.cache
def _cluster_cells() -> tuple[ClusterCell, ...]:
    found = []
    for archive in sorted((MEASURED / "clusters").glob("*.tar.gz")):
        name = archive.name.removesuffix(".tar.gz")
        with TemporaryDirectory() as folder:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
            study = load(Path(folder, name))
            few = study.runs[study.runs["num_workers"] <= 2]
            constants = of_study(replace(study, runs=few))
            measured = of_study(study).measured
        for workers in (4, 8):
            for way, select in _ways_of(measured[measured["num_workers"] == workers]):
                true, strategy = float(select["step_seconds"].median()), way.partition(":")[0]
                found.append(ClusterCell(name, strategy, way, workers, true, constants))
    return tuple(found)


def clusters() -> Iterator[Row]:
    """Compare seconds of a step on 4 and 8 emulated hosts with what is simulated from 1 and 2.

    Two models, three strategies and three rates of the cables. The hosts share two cores, so
    workers sleep for most of each pass (`scripts/cluster.sh`). The doubt about more workers than
    were measured comes from the two other strategies.
    """
    for cell in _cluster_cells():
        others = {one.strategy for one in _cluster_cells()} - {cell.strategy}
        constants = replace(cell.constants, beyond=_beyond(frozenset(others)))
        row = _row(constants, _own_links(constants), cell.way, cell.workers, cell.step_seconds)
        yield row._replace(what=f"{cell.study}, {cell.strategy} on {cell.workers}")


def beyond() -> Iterator[Row]:
    """Compare how much `bsweep simulate` doubts more workers than were measured with how far
    `clusters` is off: the root mean square of the logarithm of a step's seconds, divided by the
    square root of the doublings from two workers to four or eight.
    """
    strategies = sorted({cell.strategy for cell in _cluster_cells()})
    for names in (*([name] for name in strategies), strategies):
        yield Row(", ".join(names), _beyond(frozenset(names)), BEYOND)


@functools.cache
def _beyond(strategies: frozenset[str]) -> float:
    squares = []
    for cell in _cluster_cells():
        if cell.strategy in strategies:
            step = _step(cell.constants, _own_links(cell.constants), cell.way, cell.workers)
            squares.append(np.log(step / cell.step_seconds) ** 2 / np.log2(cell.workers / 2))
    return float(np.sqrt(np.mean(squares)))


def between_ways() -> Iterator[Row]:
    """Compare how much `bsweep simulate` doubts a way that a study has not measured with how far
    measured ways are from each other: the root mean square of the logarithm of a step's seconds,
    in which each study counts as much as each other.
    """
    doubts = [_doubt(name) for name in STUDIES]
    for name, doubt in zip(STUDIES, doubts, strict=True):
        yield Row(name, doubt, OTHER_WAY)
    yield Row("all", float(np.sqrt(np.mean(np.square(doubts)))), OTHER_WAY)


def _doubted(constants: Constants, study: str) -> Constants:
    """Return constants that doubt other ways as much as the other studies say."""
    others = [_doubt(name) for name in STUDIES if name != study]
    return replace(constants, other_way=float(np.sqrt(np.mean(np.square(others)))))


@functools.cache
def _doubt(name: str) -> float:
    """Return how far the ways of a study are from each other, see `between_ways`.

    Each way without a codec is taken alone, with the seconds of all codecs, and tells of each other
    way of its study.
    """
    workers, told = STUDIES[name]
    study = load(MEASURED / name, mix=True)
    whole = of_study(study)
    codecs = {"codec_seconds": whole.codec_seconds, "codec_shares": whole.codec_shares}
    ways, off = dict(_ways_of(whole.measured)), []
    for text, of in ways.items():
        runs = study.runs[study.runs["run_id"].isin(of["run_id"])]
        try:
            constants = of_study(replace(study, runs=runs), None, whole.parameter_bytes / 4)
        except ValueError:  # its computing was not timed
            continue
        if constants.network is None or not of["compression"].eq("none").all():
            continue
        constants = replace(constants, **codecs, **told)  # type: ignore[arg-type]
        for other, select in ways.items():
            if other != text:
                step = _step(constants, _own_links(constants), other, workers)
                off.append(np.log(step / float(select["step_seconds"].median())))
    return float(np.sqrt(np.mean(np.square(off))))


def first_document() -> Iterator[Row]:
    """Compare seconds of 50 epochs by batch size, four T4 in one machine with Horovod.

    Computing and exchange are fitted to the batches 16 and 256 alone.
    """
    runs = published().runs.set_index("local_batch")["train_seconds"].astype(float)
    steps = {batch: 50 * np.ceil(50_000 / (4 * batch)) for batch in runs.index}
    few, many = (runs[batch] / steps[batch] for batch in (16, 256))
    each = (many - few) / 240
    for batch in runs.index:
        one = few + each * (batch - 16)
        seconds = _step(_known(one, 1.0), parse_network("100gbit,1us"), "horovod", 4)
        yield Row(f"batch {batch}", runs[batch], seconds * steps[batch])


def second_document() -> Iterator[Row]:
    """Compare idle seconds of four uneven nodes under DiLoCo: the baseline and the method C.

    Speeds are those of the baseline's row, with the slowest node's time fitted to method C.
    """
    idle, model = published_idle(), idle_model()
    for method in ("baseline", "C"):
        row = idle.loc[method]
        seconds = model.compute_seconds(row["local_batch"], row["local_steps"])
        speeds = tuple(float(seconds.max() / one) for one in seconds)
        constants = _known(float(seconds.max()), 6e8, speeds=speeds, local_batch=4)
        found = simulate_from(
            constants,
            {"": parse_network("1gbit,100us")},
            ways_of("diloco:sync_every=1", NO_RUNS),
            [4],
        )
        cell = found.cells.iloc[0]
        total = 4 * cell["waiting_share"] * cell["step_seconds"]
        yield Row(f"total idle of {method}", float(row["idle_seconds"].sum()), total)


def third_document() -> Iterator[Row]:
    """Compare the speed of sharding by memory, relative to sharding by layer, VGG-16 at 10 Gbit/s.

    The computing time is unknown, and fitted to the gain on four workers.
    """
    gains = published_gains()["gain"]

    def gain(seconds: float, workers: int) -> float:
        constants = _known(seconds, VGG16_BYTES, layer_shares=VGG16_SHARES)
        network = parse_network("10gbit,50us")
        layer, memory = (
            _step(constants, network, f"parameter_server:sharding={one}", workers)
            for one in ("layer", "memory")
        )
        return layer / memory

    tried = np.geomspace(0.5, 10, 25)
    best = min(tried, key=lambda seconds: abs(gain(seconds, 4) - 1 - gains[4]))
    for workers in (4, 8):
        fitted = " (fitted)" if workers == 4 else f" (computing {best:.1f} s)"
        yield Row(f"speed on {workers} workers{fitted}", 1 + gains[workers], gain(best, workers))


def horovod() -> Iterator[Row]:
    """Compare Horovod's efficiency on 512 GPUs: 128 servers with four P100, 25 Gbit/s with RoCE.

    Published: 90, 90 and 68 % (docs/benchmarks.rst of Horovod; an earlier README has 79 % for
    VGG-16 on 128 GPUs). One P100 makes 142 images/s with Inception V3 and 154 with VGG-16, batch 64
    (TensorFlow's benchmarks, r1). ResNet-101 lies between ResNet-50 and -152 (219 and 91.8) by its
    operations. Steps are assumed to differ by 3 %, and GPUs of a node exchange by PCIe.
    """
    network = parse_network("25gbit,10us,per_node=4,inner=80gbit/10us")
    resnet101 = 1 / (1 / 219 + (7.6 - 4.1) / (11.3 - 4.1) * (1 / 91.8 - 1 / 219))
    vgg16 = _vgg16_backward()
    for name, speed, parameters, backward, workers, true in (
        ("Inception V3", 142.0, 27.2e6, EVEN, 512, 0.90),
        ("ResNet-101", resnet101, 44.5e6, EVEN, 512, 0.90),
        ("VGG-16", 154.0, VGG16_BYTES / 4, vgg16, 128, 0.79),
        ("VGG-16", 154.0, VGG16_BYTES / 4, vgg16, 512, 0.68),
    ):
        alone = 64 / speed
        constants = _known(
            alone, 4 * parameters, backward=backward, spread=Spread(0.03), is_gpu=True
        )
        buckets = max(2, round(4 * parameters / 2**26))  # 64 MiB are fused
        step = _step(constants, network, f"horovod:buckets={buckets}", workers)
        yield Row(f"{name}, {workers} GPUs", true, alone / step)


def byteps() -> Iterator[Row]:
    """Compare BytePS's gain over Horovod, machines of eight V100 at 20 Gbit/s: 100 % with VGG-16,
    44 % with ResNet-50.

    Published in docs/performance.md of BytePS, without the number of machines: 8 are assumed, and
    220 and 360 images/s of a V100. There are as many servers, on machines of their own
    (docs/best-practice.md). Horovod sums 64 MiB at once, during the backward pass, in one ring of
    all GPUs (docs/rationale.md).
    """
    network = parse_network("20gbit,50us,per_node=8,inner=1200gbit/3us")
    for name, speed, num_bytes, backward, true in (
        ("VGG-16", 220.0, VGG16_BYTES, _vgg16_backward(), 1.0),
        ("ResNet-50", 360.0, 4 * 25.6e6, EVEN, 0.44),
    ):
        constants = _known(64 / speed, num_bytes, backward=backward, is_gpu=True)
        buckets = max(2, round(num_bytes / 2**26))
        ring = _step(constants, network, f"horovod:buckets={buckets}:algorithm=ring", 64)
        yield Row(f"gain with {name}", true, ring / _byteps_step(constants, network) - 1)


def _byteps_step(constants: Constants, network: Network) -> float:
    """Return the seconds of a step with BytePS, whose parts of 4,096,000 bytes (its docs/env.md)
    are pushed as the backward pass makes them. Each is pulled while the next is pushed.

    bsweep's own servers answer when they have all of their shard, so this is simulated here. The
    GPUs of a machine sum their gradients first, which takes no time. Machines and servers have
    equally many links.
    """
    alone = float(constants.busy_seconds(1)[0])
    parts = max(1, round(constants.parameter_bytes / 4_096_000))
    each = constants.parameter_bytes / parts / network.link.bytes_per_second
    shares, seconds = np.array(((0.0, 0.0), *constants.backward)).cumsum(axis=0).T
    made = np.interp(np.linspace(0, 1, parts + 1)[1:], shares / shares[-1], seconds / seconds[-1])
    pushed = pulled = 0.0
    for ready in alone * (FORWARD_SHARE + (1 - FORWARD_SHARE) * made):
        pushed = max(pushed, ready) + each
        pulled = max(pulled, pushed) + each
    return max(alone, pulled) + 2 * network.link.latency_seconds


def pipeline() -> Iterator[Row]:
    """Compare the bubble of GPipe and 1F1B, (p - 1) / (m + p - 1), and of interleaved 1F1B."""
    network = parse_network("100tbit,1ns")
    for schedule, parts, microbatches in (
        ("gpipe", 4, 8), ("1f1b", 8, 32), ("interleaved_1f1b", 4, 8),
    ):  # fmt: skip
        text = f"pipeline:schedule={schedule}:microbatches={microbatches}"
        stages = 2 if "interleaved" in schedule else 1
        bubble = (parts - 1) / (stages * microbatches + parts - 1)
        each = np.full(NUM_DRAWS, 1 / microbatches)
        of = _known(0.0, 1.0, example_seconds=each, local_batch=microbatches)
        step = _step(of, network, text, parts)
        name = f"{schedule}, {parts} workers, {microbatches} micro-batches"
        yield Row(name, bubble, 1 - 1 / parts / step)


def diloco() -> Iterator[Row]:
    """Compare the bandwidth of DiLoCo: rounds of H steps need 1/H of the bytes of a data-parallel
    step (arXiv 2311.08105: 500 times less for H = 500).
    """
    constants = _known(1.0, 6e8)
    for sync_every in (100, 500):
        slow = _step(constants, parse_network("1gbit,1us"), f"diloco:sync_every={sync_every}", 8)
        plain = _step(constants, parse_network("1gbit,1us"), "allreduce", 8)
        yield Row(f"exchange, H={sync_every}", sync_every, (plain - 1) / (slow - 1))


COMPARISONS: Mapping[str, Callable[[], Iterator[Row]]] = {
    one.__name__: one
    for one in (
        strategies_1gbit, parameter_sharding_1gbit, stragglers, clusters, beyond, between_ways,
        first_document, second_document, third_document, horovod, byteps, pipeline, diloco,
    )
}  # fmt: skip


def main() -> None:
    """Print the comparisons that were named."""
    all_inside = []
    for name in sys.argv[1:] or COMPARISONS:
        rows = list(COMPARISONS[name]())
        off = [abs(row.off) for row in rows]
        print(f"\n{name}: off by {np.median(off):.0%} in the median, {max(off):.0%} at most")
        inside = [row.low <= row.true <= row.high for row in rows if row.low == row.low]
        if inside:
            print(f"  {sum(inside)} of {len(inside)} in their 90 % interval")
        all_inside += inside
        for row in rows:
            is_outside = row.low == row.low and not row.low <= row.true <= row.high
            where = ", outside its interval" * is_outside
            simulated = f"{row.true:.4g}, simulated {row.simulated:.4g} ({row.off:+.0%}{where})"
            print(f"  {row.what}: {simulated}")
    if all_inside:
        share = np.mean(all_inside)
        print(f"\n{sum(all_inside)} of {len(all_inside)} in their 90 % interval, {share:.0%}")


if __name__ == "__main__":
    main()
