"""How far `bsweep simulate` is off: measured studies, the documents that bsweep implements, and
published curves.

    python results/measured/simulate_truth.py [NAME...]

Without names: all. Each line has what was published or measured, what is simulated, and by how many
per cent the simulation is off. The docstring of each function says where its numbers come from, and
what the simulation was told. For each measured study, the doubt about ways that were not measured
comes from the two others.
"""

from __future__ import annotations

import functools
import sys
import tarfile
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd

from bsweep.analysis import load
from bsweep.analysis.conclusions.published_study import published
from bsweep.analysis.simulation.cases import Case
from bsweep.analysis.simulation.choices import choice_of
from bsweep.analysis.simulation.constants import (
    BEYOND,
    NUM_DRAWS,
    OTHER_WAY,
    Constants,
    Spread,
    of_study,
)
from bsweep.analysis.simulation.network import Array, Link, Network, parse_network
from bsweep.analysis.simulation.rows import row_of
from bsweep.analysis.simulation.strategies import FORWARD_SHARE, Clocks

MEASURED = Path(__file__).parent
PUBLISHED = MEASURED.with_name("published")
NO_RUNS = pd.DataFrame()
_CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
_FEATURES = (7 * 7 * 512, 4096, 4096, 1000)
VGG16_LAYERS = (
    *((9 * before + 1) * after for before, after in pairwise(_CHANNELS)),
    *((before + 1) * after for before, after in pairwise(_FEATURES)),
)
"""The number of parameters in each layer of VGG-16, weights and biases: 13 convolutions of 3x3,
then 3 linear layers.
"""
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
    assert constants.link, constants.source
    return Network(constants.link)


def _row(constants: Constants, network: Network, way: str, workers: int, true: float) -> Row:
    """Return a comparison of the seconds of a step with measured ones."""
    cell = row_of(_case(constants, network, way, workers))
    names = ("step_seconds", "step_seconds_low", "step_seconds_high")
    return Row(way, true, *(cell[name] for name in names))


def _case(constants: Constants, network: Network, way: str, workers: int) -> Case:
    choice, batch = choice_of(way, NO_RUNS), constants.local_batch
    return Case(constants, network, choice, workers, batch, divides=False).with_replicas()


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
    """Yield the ways of a study's runs that can be simulated, in the words of a simulation, each
    with its runs.
    """
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
    for way, runs in steps.groupby(texts):
        try:
            choice_of(str(way), NO_RUNS)
        except ValueError:  # of a codec or an algorithm that bsweep does not have
            continue
        yield str(way), runs


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
    with TemporaryDirectory() as folder:
        with tarfile.open(MEASURED / "clusters/records.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        for path in sorted(Path(folder).iterdir()):
            study = load(path)  # whose folder is read again below
            few = study.runs[study.runs["num_workers"] <= 2]
            constants = of_study(replace(study, runs=few))
            measured = of_study(study).measured
            for workers in (4, 8):
                for way, select in _ways_of(measured[measured["num_workers"] == workers]):
                    true, strategy = float(select["step_seconds"].median()), way.partition(":")[0]
                    cell = ClusterCell(path.name, strategy, way, workers, true, constants)
                    found.append(cell)
    return tuple(found)


def clusters() -> Iterator[Row]:
    """Compare seconds of a step on 4 and 8 emulated hosts with what is simulated from 1 and 2.

    Two models, three strategies and three rates of the cables. The hosts share two cores, so
    workers sleep for most of each pass (`measure.sh` in `results/measured/clusters`). The doubt
    about more workers than were measured comes from the two other strategies.
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
        if constants.link is None or not of["compression"].eq("none").all():
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

    Speeds are those of the baseline's row, with the slowest node's time fitted to method C
    (`results/published/papers.ipynb`).
    """
    nodes = pd.read_csv(PUBLISHED / "geo_distributed.csv")
    baseline = nodes.loc[nodes["method"] == "baseline", "idle_seconds"]
    hundred_steps = 30.5037 - baseline.to_numpy(float)
    for method in ("baseline", "C"):
        row = nodes[nodes["method"] == method]
        seconds = hundred_steps * row["local_steps"].to_numpy(float) / 100
        speeds = tuple(float(seconds.max() / one) for one in seconds)
        constants = _known(float(seconds.max()), 6e8, speeds=speeds, local_batch=4)
        links = parse_network("1gbit,100us")
        cell = row_of(_case(constants, links, "diloco:sync_every=1", 4))
        total = 4 * cell["waiting_share"] * cell["step_seconds"]
        yield Row(f"total idle of {method}", float(row["idle_seconds"].sum()), total)


def third_document() -> Iterator[Row]:
    """Compare the speed of sharding by memory, relative to sharding by layer, VGG-16 at 10 Gbit/s.

    The computing time is unknown, and fitted to the gain on four workers.
    """
    published_speeds = pd.read_csv(PUBLISHED / "parameter_sharding.csv", index_col="num_workers")
    gains = published_speeds["memory_over_layer"] - 1

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
        constants = _known(64 / speed, num_bytes, backward=backward)  # whose exchange is a ring
        buckets = max(2, round(num_bytes / 2**26))
        ring = _step(constants, network, f"horovod:buckets={buckets}", 64)
        yield Row(f"gain with {name}", true, ring / _byteps_step(constants, network) - 1)


def _byteps_step(constants: Constants, network: Network) -> float:
    """Return the seconds of a step with BytePS, whose parts of 4,096,000 bytes (its docs/env.md)
    are pushed as the backward pass makes them. Each is pulled while the next is pushed.

    bsweep's own servers answer when they have all of their shard, so this is simulated here. The
    GPUs of a machine sum their gradients first, which takes no time. Machines and servers have
    equally many links.
    """
    alone = float(constants.pass_seconds[0] + constants.example_seconds[0])
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


GRID_GBIT = 0.1 * 10 ** (4 / 49 * np.arange(60))
"""The bandwidths of the tables of DiLoCo and streaming DiLoCo, 21 % apart."""
UTILIZATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)
UNKNOWN = float("nan")


def _bandwidths(
    what: str, true: Sequence[float], alone: float, step: Callable[[Network], float]
) -> Iterator[Row]:
    """Yield comparisons of the first bandwidth of the grid, in Gbit/s, with which workers compute
    for 50 to 99 % of the time.

    Args:
        what: The model and the way.
        true: The published bandwidths.
        alone: The seconds that a worker computes in a step.
        step: Returns the seconds of a step on links.
    """

    def computing(place: int) -> float:
        return alone / step(Network(Link(GRID_GBIT[place] * 1e9 / 8, 0.0)))

    for share, gbit in zip(UTILIZATIONS, true, strict=True):
        if gbit == gbit:
            place = bisect_left(range(len(GRID_GBIT)), share, key=computing)
            yield Row(f"{what}, {share:.0%}", gbit, float(GRID_GBIT[place]))


def diloco() -> Iterator[Row]:
    """Compare the bandwidth in Gbit/s that data-parallel training and DiLoCo with rounds of H steps
    need so that two workers compute for 50 to 99 % of the time: table 6 of arXiv 2503.09799.

    What the table's own simulator sent is not published. 11 bits for each parameter fit the cells
    with H=100 and 50 %. It exchanged a layer as soon as the backward pass had made it, in DiLoCo,
    too. `strategy=diloco` exchanges after it, which tells where exchanges are short.
    """
    for model, layers, parameters, seconds, table in (
        ("Chinchilla 10B", 48, 10e9, 0.8, {
            1: (104.8, 184.2, 222.3, 222.3, 390.7), 10: (16.0, 49.4, 86.8, 152.6, 222.3),
            50: (3.0, 11.0, 23.3, 41.0, 126.5), 100: (1.4, 6.2, 13.3, 23.3, 86.8),
            300: (0.5, 2.0, 4.3, 9.1, 41.0),
        }),
        ("Llama3 405B", 126, 405e9, 26.0, {
            1: (126.5, 222.3, 268.3, 323.8, 323.8), 10: (19.3, 72.0, 126.5, 184.2, 268.3),
            50: (3.6, 13.3, 28.1, 59.6, 184.2), 100: (2.0, 7.5, 16.0, 33.9, 126.5),
            300: (0.7, 3.0, 6.2, 13.3, 59.6),
        }),
        ("DeepSeek-V3 671B", 61, 671e9, 20.0, {
            1: (323.8, 569.0, 686.6, 686.6, UNKNOWN), 10: (49.4, 152.6, 268.3, 390.7, 686.6),
            50: (7.5, 33.9, 72.0, 126.5, 390.7), 100: (4.3, 16.0, 41.0, 72.0, 268.3),
            300: (1.7, 6.2, 13.3, 28.1, 126.5),
        }),
    ):  # fmt: skip
        num_bytes = 11 / 8 * parameters
        bucket = int(np.ceil(num_bytes / layers / 2**20))
        for steps, true in table.items():
            way = f"ddp:bucket_mb={bucket}" if steps == 1 else f"diloco:sync_every={steps}"
            name = "data-parallel" if steps == 1 else f"H={steps}"
            step = functools.partial(_step_of, _known(seconds, num_bytes, is_gpu=True), way)
            yield from _bandwidths(f"{model}, {name}", true, seconds, step)


def _step_of(constants: Constants, way: str, network: Network) -> float:
    return _step(constants, network, way, 2)


def streaming_diloco() -> Iterator[Row]:
    """Compare the bandwidth in Gbit/s that DiLoCo needs with and without fragments: table 4 of
    arXiv 2501.18512, whose H is 100.

    A fragment of three layers is exchanged in each 11th, 5th or 2nd step, as its backward pass
    makes them, and is needed in the next step or one later. bsweep's DiLoCo has no fragments, so
    these programs of a step are the script's. What was sent is not published: 13 bits for each
    parameter fit DiLoCo without fragments at 50 %; a quarter is sent as FP4.
    """
    for model, layers, parameters, seconds, every, table in (
        ("1B", 24, 1e9, 0.1, 11, (
            (1.4, 6.2, 13.3, 23.3, 86.8), (1.4, 5.2, 9.1, 16.0, 28.1),
            (1.4, 4.3, 6.2, 9.1, 11.0), (0.4, 0.9, 1.7, 2.0, 3.0),
        )),
        ("10B", 48, 10e9, 0.8, 5, (
            (1.7, 7.5, 16.0, 33.9, 104.8), (1.7, 5.2, 9.1, 13.3, 19.3),
            (1.7, 3.6, 5.2, 6.2, 7.5), (0.4, 0.9, 1.4, 1.4, 1.7),
        )),
        ("100B", 108, 100e9, 4.9, 2, (
            (3.0, 11.0, 23.3, 49.4, 184.2), (2.4, 6.2, 9.1, 11.0, 19.3),
            (1.7, 3.6, 4.3, 5.2, 5.2), (0.5, 0.9, 1.1, 1.1, 1.4),
        )),
    ):  # fmt: skip
        middle = frozenset((2 * part + 1) * layers // 6 for part in range(3))
        ways = (
            ("whole", frozenset(range(layers)), 100, 0, 13), ("fragments", middle, every, 0, 13),
            ("fragments, late", middle, every, 1, 13),
            ("fragments, late, FP4", middle, every, 1, 13 / 4),
        )  # fmt: skip
        for (way, sent, steps, late, bits), true in zip(ways, table, strict=True):
            layer_bytes = bits / 8 * parameters / layers
            step = functools.partial(_fragments, layers, sent, steps, late, seconds, layer_bytes)
            yield from _bandwidths(f"{model}, {way}", true, seconds, step)


def _fragments(
    layers: int, sent: Collection[int], steps: int, late: int, seconds: float, layer_bytes: float,
    network: Network,
) -> float:  # fmt: skip
    """Return the seconds of a step in rounds of steps, in whose last backward pass some layers are
    exchanged, which the next round needs after so many `late` steps.
    """
    clocks = Clocks(np.array([seconds / layers]))  # a step of one layer
    exchange = np.array([layer_bytes / network.link.bytes_per_second])
    exchanged: dict[int, Array] = {}
    rounds = [0.0]
    for _ in range(20):
        clocks.compute(late * layers)
        for layer in range(layers):
            if layer in exchanged:
                clocks.wait(exchanged[layer])
            clocks.compute(FORWARD_SHARE)
        clocks.compute((steps - late - 1) * layers)
        for layer in reversed(range(layers)):
            clocks.compute(1 - FORWARD_SHARE)
            if layer in sent:
                exchanged[layer] = clocks.exchange(exchange)
        rounds.append(float(clocks.workers[0]))
    return float(np.median(np.diff(rounds))) / steps


COMPARISONS: Mapping[str, Callable[[], Iterator[Row]]] = {
    one.__name__: one
    for one in (
        strategies_1gbit, parameter_sharding_1gbit, stragglers, clusters, beyond, between_ways,
        first_document, second_document, third_document, horovod, byteps, pipeline, diloco,
        streaming_diloco,
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
