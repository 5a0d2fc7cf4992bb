"""Simulated clusters: exchanges by their closed forms, hand-computed schedules, and what a user is
told.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bsweep
from bsweep import allocation
from bsweep.allocation import probes
from bsweep.analysis.prediction.seen_runs import observed
from bsweep.analysis.simulation import network as exchanges
from bsweep.analysis.simulation import strategies
from bsweep.analysis.simulation.cases import Case
from bsweep.analysis.simulation.choices import choice_of
from bsweep.analysis.simulation.constants import (
    NUM_DRAWS,
    OTHER_WAY,
    Constants,
    of_study,
    spread_of,
)
from bsweep.analysis.simulation.machines import machine_of
from bsweep.analysis.simulation.network import parse_network
from bsweep.analysis.simulation.rows import row_of
from bsweep.analysis.simulation.strategies import Outcome
from bsweep.cli import simulate as command
from bsweep.cli.options import counts
from bsweep.config.target import target_of
from bsweep.runlog.probe_file import PROBE_SCHEMA
from tests.support.running import compose
from tests.support.synthetic_study import diloco, server, write_run, write_study

BYTES = 8e7
RATE, LATENCY = 1e9 / 8 * 0.95, 1e-4
NETWORK = parse_network("1gbit,100us")
FREE = parse_network("100tbit,1ns")
NO_RUNS = pd.DataFrame()
MEASURED = Path(__file__).parents[2] / "results/measured"
STRATEGIES_1GBIT, GEO_PROBE = MEASURED / "strategies_1gbit", MEASURED / "geo_distributed/probe.json"


def constants(**others: Any) -> Constants:
    """Constants without any chance, unless `others` have some."""
    none = {"exchange_factors": np.ones(NUM_DRAWS), "source": "a test"}
    return Constants(**{
        "pass_seconds": np.full(NUM_DRAWS, 0.1), "example_seconds": np.full(NUM_DRAWS, 0.05),
        "parameter_bytes": BYTES, "local_batch": 8, **none, **others,
    })  # fmt: skip


def case(text: str, num_workers: int, of: Constants | None = None, **others: Any) -> Case:
    given = {"network": NETWORK, "local_batch": 8.0, **others}
    return Case(
        of or constants(), choice=choice_of(text, NO_RUNS), num_workers=num_workers, **given
    )


def steps(text: str, num_workers: int, of: Constants | None = None, **others: Any) -> Outcome:
    simulated = case(text, num_workers, of, **others)
    return strategies.outcome(simulated.choice.strategy, simulated)


def seconds(name: str, num_workers: int, network: str = "1gbit,100us") -> float:
    links, groups = parse_network(network), np.arange(num_workers)[None]
    rounds = {
        "ring": exchanges.ring(groups, BYTES),
        "tree": exchanges.tree(groups, BYTES),
        "hierarchical": exchanges.hierarchical(groups, BYTES, links),
    }
    return links.seconds(rounds[name])


# Links and exchanges


@pytest.mark.parametrize("n", [2, 3, 8, 100])
def test_rings_and_trees_take_their_closed_forms(n: int) -> None:
    ring = 2 * (n - 1) / n * BYTES / RATE + 2 * (n - 1) * LATENCY
    tree = 2 * math.ceil(math.log2(n)) * (LATENCY + BYTES / RATE)
    assert [seconds("ring", n), seconds("tree", n)] == pytest.approx([ring, tree])


def test_a_hierarchical_exchange_uses_the_links_of_nodes_less() -> None:
    network = "1gbit,100us,per_node=4,inner=100gbit/1us"
    inner = 2 * 3 * (BYTES / 4 / (100 * RATE) + 1e-6)
    outer = 2 * 3 * (4 * BYTES / 4 / 4 / RATE + LATENCY)
    assert seconds("hierarchical", 16, network) == pytest.approx(inner + outer, rel=1e-3)
    assert seconds("hierarchical", 6, network) == seconds("ring", 6, network)


def test_a_narrow_link_between_sites_slows_what_crosses_it() -> None:
    apart = "1gbit,100us,sites=2,between=100mbit/20ms"
    assert seconds("ring", 4, apart) == pytest.approx(
        6 * (BYTES / 4 / (RATE / 10) + LATENCY + 0.02)
    )


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "--network '': the bandwidth is missing"),
        ("25gbit,10gbit", "10gbit is a second bandwidth. Write one bandwidth"),
        ("25gbt,10us", r"25gbt,10us: 25gbt is not understood\. Did you mean 'gbit'"),
        ("25gbit,per_node=8,inner=2gbt/2us", r": inner=2gbt/2us: 2gbt is not understood"),
        ("25gbit,per_nod=8", "Did you mean"),
        ("25gbit,per_node=0", "per_node=0: give a whole number from 1, such as 8"),
        ("25gbit,per_node=8", "inner=2400gbit/2us"),
        ("25gbit,10us,inner=2400gbit/2us", "per_node=8"),
        ("25gbit,per_node=2,per_node=4,inner=1gbit", "per_node=4 is a second per_node"),
        ("25gbit,sites=4", "between=1gbit/20ms"),
    ],
)
def test_unknown_words_of_a_network_are_refused(text: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        parse_network(text)


@pytest.mark.parametrize(
    ("text", "microseconds"), [("1gbit", 50), ("100gbit", 1.05), ("30gbit", 7.5)]
)
def test_a_latency_that_is_not_given_is_that_of_a_listed_link(
    text: str, microseconds: float
) -> None:
    found = parse_network(f"{text},sites=2,between={text}/20ms")
    assert found.link.latency_seconds == pytest.approx(microseconds * 1e-6)
    assert found.link.bytes_per_second == parse_network(f"{text},1us").link.bytes_per_second
    (published,) = found.published
    assert published.startswith(f"{microseconds:g}us of ")
    assert "; " in published  # where it was published
    assert not parse_network(f"{text},1us").published


LIGHT = constants(parameter_bytes=1.0)

# Strategies, by hand


@pytest.mark.parametrize(
    ("text", "workers", "expected"),
    [
        ("allreduce", 1, 0.5),
        ("allreduce", 4, 0.5 + seconds("ring", 4)),
        ("diloco:sync_every=10", 4, 5 + seconds("ring", 4)),  # the seconds of a round
        ("parameter_server:num_servers=2", 8, 0.5 + 2 * (8 * BYTES / 2 / RATE + LATENCY)),
        (
            "parameter_server:num_servers=2:sharding=layer", 8,
            0.5 + 2 * (8 * BYTES * 0.75 / RATE + LATENCY),
        ),
    ],
)  # fmt: skip
def test_a_step_computes_and_then_exchanges(text: str, workers: int, expected: float) -> None:
    found = steps(text, workers, constants(layer_shares=(0.75, 0.15, 0.1)))
    np.testing.assert_allclose(found.step_seconds, expected)


def test_buckets_hide_behind_the_backward_pass() -> None:
    exchange = seconds("ring", 2)
    of_bucket = exchange / 4 + 3 / 4 * 2 * LATENCY
    # The first bucket is ready after the forward pass and a quarter of the backward pass.
    first = 0.5 * (1 / 3 + 2 / 3 / 4)
    whole = max(first + 4 * of_bucket, 0.5 + of_bucket)
    cycle = 0.0005
    found = steps("horovod:buckets=4", 2).step_seconds
    np.testing.assert_allclose(found, whole + 4 * cycle, atol=4 * cycle)
    narrow = replace(constants(), parameter_bytes=BYTES / 100)
    np.testing.assert_allclose(steps("ddp:bucket_mb=0.1", 2, narrow).step_seconds, 0.5, rtol=0.01)


@pytest.mark.full(but=8)
@pytest.mark.parametrize(
    ("batch", "asked", "off"), [("local_batch=6", 6, 0), ("global_batch=42", None, 1)]
)
@pytest.mark.parametrize(
    "name",
    ["uniform", "by_speed", "steps_by_flops", "batch_by_flops", "batch_by_memory", "hybrid"],
)
def test_batches_and_steps_are_those_that_runs_choose(
    name: str, batch: str, asked: int | None, off: int, tmp_path: Path
) -> None:
    """A run of three workers chooses them by a probe. Simulated batches that share the global one
    are not rounded.
    """
    of = constants(
        pass_seconds=np.full(NUM_DRAWS, 0.1), example_seconds=np.full(NUM_DRAWS, 0.005),
        speeds=(1.88, 1.0, 1.26), largest_batches=(100, 40, 512),
    )  # fmt: skip
    config = compose(
        "local_batch=null", batch, "num_workers=3", "strategy=diloco", "model=tiny_cnn", "study=s",
        f"results_dir={tmp_path}", f"allocation={name}", "strategy.sync_every=50",
    )  # fmt: skip
    workers = [
        {
            "host": "h", "device": "cpu", "precision": "fp32", "memory_bytes": None,
            "peak_flops": 1e9 * speed, "largest_batch": most, "stopped_by": "out_of_memory",
            "batches": [
                {"local_batch": batch, "step_seconds": (0.1 + 0.005 * batch) / speed}
                for batch in sorted({*(2**k for k in range(10) if 2**k <= most), 6, most})
            ],
        }
        for speed, most in zip(of.speeds, of.largest_batches, strict=True)
    ]  # fmt: skip
    found = {"probed": probes.settings(config), "workers": workers, "exchange_seconds": 0.5}
    probes.write(config, {"schema": PROBE_SCHEMA, **found})
    run = allocation.fill_in(config)
    own = f"diloco:sync_every=50:allocation={name}"
    simulated = case(own, 3, of, local_batch=asked or 14, divides=not asked)
    np.testing.assert_allclose(simulated.batches, run.local_batches, atol=off)
    simulated.__dict__["batches"] = np.array(run.local_batches, float)
    every = strategies.outcome(simulated.choice.strategy, simulated).steps_each
    assert [*simulated.local_steps(every)] == [*(run.local_steps or [50] * 3)]


def test_workers_with_more_memory_take_larger_batches() -> None:
    """AdamW's state and all else of a model of 20 million parameters are 320 MB."""
    of = constants(memories=(1.32, 4.32), speeds=(1.0, 4.0))
    horovod, diloco = (f"{name}:allocation=batch_by_memory" for name in ("horovod", "diloco"))
    assert [*case(horovod, 3, of, divides=False).batches] == [8, 32, 8]
    # The anchor and the momentum take as much of either memory.
    assert case(diloco, 3, of, divides=False).batches[1] > 32
    cells = row_of(case(horovod, 2, of, network=FREE, divides=False))
    assert (cells["global_batch"], cells["local_batch"]) == (40, 20)
    assert cells["step_seconds"] == pytest.approx(0.1 + 0.05 * 8, rel=0.01)  # not 0.425 of the fast
    shared = row_of(case(horovod, 2, of, network=FREE, local_batch=40))
    assert shared["step_seconds"] == pytest.approx(0.1 + 0.05 * 16, rel=0.01)


def test_a_machine_and_a_probe_tell_what_workers_hold() -> None:
    given: dict[str, Any] = {
        "network": "1gbit", "parameters": 1e6, "workers": [4, 8],
        "strategies": "diloco:allocation=batch_by_memory",
    }  # fmt: skip
    probed = bsweep.simulate(probe=GEO_PROBE, **given).cells["global_batch"]
    assert [*probed] == [512 * 3 + 1024, 2 * (512 * 3 + 1024)]
    even = bsweep.simulate(machine="h100", flops_per_example=1e12, local_batch=16, **given).cells
    assert [*even["global_batch"]] == [64, 128]
    shared = bsweep.simulate(probe=GEO_PROBE, global_batch=4096, **given)
    assert [*shared.cells["num_workers"]] == [8]
    assert any("not on 4 workers" in note and "819.2" in note for note in shared.notes)


def test_so_many_local_steps_that_the_exchange_is_a_tenth_of_a_round() -> None:
    found = steps("diloco:allocation=network_aware", 4, constants(speeds=(1.0, 2.0)))
    step = found.slowest_seconds.mean() / found.steps_each
    exchange = (found.step_seconds - found.slowest_seconds).mean()
    shares = [
        exchange / (exchange + number * step) for number in (found.steps_each, found.steps_each - 1)
    ]
    assert shares[0] <= 0.1 < shares[1]
    assert found.examples_factor == pytest.approx(1.5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("parts", "microbatches"), [(2, 4), (4, 8), (4, 32), (8, 2)])
def test_a_pipeline_has_the_bubble_of_the_textbook_and_pays_for_each_micro_batch(
    schedule: str, parts: int, microbatches: int
) -> None:
    text = f"pipeline:schedule={schedule}:microbatches={microbatches}"
    found = steps(text, parts, LIGHT, network=FREE).step_seconds.mean()
    bubble = (parts - 1) / (microbatches + parts - 1)
    busy = (microbatches * 0.1 + 8 * 0.05) / parts
    assert found == pytest.approx(busy / (1 - bubble), rel=1e-4)


@pytest.mark.parametrize(
    "text",
    ["pipeline:microbatches=4", "parameter_server:consistency=asynchronous", "horovod", "sharded"],
)
def test_a_slow_link_between_sites_slows_every_strategy(text: str) -> None:
    of = constants(example_bytes=1e6)
    one, two = (
        steps(text, 8, of, network=parse_network(f"10gbit,10us{sites}")).step_seconds.mean()
        for sites in ("", ",sites=2,between=10mbit/50ms")
    )
    assert two > 1.5 * one


def test_asynchronous_servers_gain_nothing_if_one_worker_is_always_slow() -> None:
    of = constants(pass_seconds=np.zeros(NUM_DRAWS), example_seconds=np.full(NUM_DRAWS, 1 / 8),
                   speeds=(1.0, 0.5), parameter_bytes=1.0)  # fmt: skip
    row = row_of(case("parameter_server:consistency=asynchronous", 2, of, network=FREE))
    assert row["examples_per_second"] == pytest.approx(8.0, rel=1e-3)
    assert row["waiting_share"] == pytest.approx(0.25, rel=1e-3)


def test_the_speed_up_of_a_divided_batch_is_over_one_worker_with_it() -> None:
    cells = bsweep.simulate(
        machine="h100", flops_per_example=1e10, parameters=1.0, network="100tbit,1ns",
        strategies="allreduce", workers=[1, 4], global_batch=1024,
    ).cells  # fmt: skip
    alone = cells.set_index("num_workers")["speed_up"]
    assert alone[1] == pytest.approx(1.0, rel=1e-6)
    assert alone[4] < 4


def test_stages_of_hand_computed_length_end_when_they_should() -> None:
    # Forward 1 s and 2 s, backward 2 s and 4 s for each pass of four examples; a message 0.5 s.
    of = constants(
        pass_seconds=np.zeros(NUM_DRAWS), example_seconds=np.full(NUM_DRAWS, 1.5),
        speeds=(1.0, 0.5), example_bytes=(0.5 - LATENCY) * RATE / 2,
    )  # fmt: skip
    found = steps("pipeline:schedule=gpipe:microbatches=2", 2, of).step_seconds
    # F: 0-1, 1-2 and 1.5-3.5, 3.5-5.5; B: 5.5-9.5, 9.5-13.5, then 14-16 on the first worker.
    np.testing.assert_allclose(found, 16.0)


def test_a_worker_without_a_free_place_waits_for_a_micro_batch_to_come_back() -> None:
    """Computing takes no time, and six messages of 0.5 s bring a micro-batch to the last worker and
    back. GPipe sends all eight at once, 1F1B four and then four.
    """
    idle = constants(
        pass_seconds=np.zeros(NUM_DRAWS), example_seconds=np.zeros(NUM_DRAWS),
        example_bytes=(0.5 - LATENCY) * RATE * 2,
    )  # fmt: skip
    once, twice = (
        steps(f"pipeline:schedule={name}:microbatches=8", 4, idle).step_seconds.mean()
        for name in ("gpipe", "1f1b")
    )
    assert [once, twice] == pytest.approx([3.0, 6.0])


@pytest.mark.parametrize(
    "schedule", ["interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev"]
)
def test_interleaved_and_divided_schedules_idle_less(schedule: str) -> None:
    plain, other = (
        steps(f"pipeline:schedule={name}:microbatches=8", 4, LIGHT, network=FREE)
        for name in ("1f1b", schedule)
    )
    assert 0.5 / 4 <= other.step_seconds.mean() < plain.step_seconds.mean()


def test_pipedream_has_no_bubble() -> None:
    found = steps("pipedream", 4, LIGHT, network=FREE).step_seconds
    np.testing.assert_allclose(found, 0.5 / 4)


def test_workers_that_divide_layers_do_not_divide_what_a_pass_costs() -> None:
    alone, four = (steps("tensor", workers, LIGHT, network=FREE) for workers in (1, 4))
    assert alone.step_seconds.mean() == pytest.approx(0.1 + 0.05 * 8)
    assert four.step_seconds.mean() == pytest.approx(0.1 + 0.05 * 2, rel=1e-3)


def test_gathering_is_hidden_by_computing_if_links_are_fast() -> None:
    fast = parse_network("1tbit,1us")
    assert steps("sharded", 4, network=fast).step_seconds.mean() == pytest.approx(0.5, rel=0.02)
    slow = steps("sharded", 4).step_seconds.mean()
    assert slow > 3 * 0.75 * BYTES / RATE


# Spread


def test_steps_differ_within_epochs_and_between_them_as_epochs_say() -> None:
    rng = np.random.default_rng(0)
    medians = np.exp(0.2 * rng.standard_normal(400))
    epochs = pd.DataFrame({
        "run_id": "r", "num_steps": 50, "step_seconds_p50": medians,
        "step_seconds_p95": medians * math.exp(0.1 * 1.645),
    })  # fmt: skip
    found = spread_of(epochs)
    assert (found.fast, found.slow) == pytest.approx((0.1, 0.2), rel=0.1)
    assert found.stretch == 50
    drawn = np.log(found.draw(2000, 50, rng)).reshape(40, 50, 50)
    assert drawn.std(axis=1).mean() == pytest.approx(0.1, rel=0.1)
    assert drawn.mean(axis=1).std() == pytest.approx(0.2, rel=0.1)
    assert np.exp(drawn).mean() == pytest.approx(1, abs=0.02)


# Studies and the command


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "mine"
    return write_study(folder, local_batches=(8, 64))


def test_a_study_gives_constants_and_its_measured_cells(study: Path) -> None:
    """A way that nobody measured is doubted more."""
    found = bsweep.simulate(
        study, workers=[1, 2, 256], strategies="horovod,allreduce,allreduce:compression=topk",
        local_batch=64, price_per_worker_hour=2,
    )  # fmt: skip
    assert any("seconds of topk" in note for note in found.notes)
    paid = found.cells["hours"] * found.cells["num_workers"] * 2
    assert found.cells["money"].tolist() == pytest.approx(paid.tolist(), nan_ok=True)
    cells = found.cells.set_index(["kind", "strategy", "num_workers"])
    measured, simulated = (
        cells.xs((kind, "horovod"))["step_seconds"] for kind in ("measured", "simulated")
    )
    for workers in (1, 2):
        assert simulated[workers] == pytest.approx(measured[workers], rel=0.15)
    assert simulated[256] > simulated[2]
    for kind in ("measured", "simulated"):  # each compared with its own kind
        rows = cells.xs((kind, "horovod"))
        rate = rows["global_batch"] / rows["step_seconds"]
        assert rows["speed_up"][[1, 2]].tolist() == pytest.approx([1, rate[2] / rate[1]])
    low, middle, high = (
        np.log(cells.loc["simulated"][f"step_seconds{end}"]) for end in ("_low", "", "_high")
    )
    assert ((low < middle) & (middle < high)).all()
    widths = high - low
    assert widths["allreduce", 2] > np.hypot(widths["horovod", 2], 2 * 1.6 * OTHER_WAY) * 0.9
    assert widths["horovod", 2] < 2 * 1.6 * OTHER_WAY
    assert widths["allreduce", 1] == pytest.approx(widths["horovod", 1])


def test_runs_with_another_allocation_are_no_measured_runs(tmp_path: Path) -> None:
    for seed, name in enumerate(("uniform", "steps_by_speed")):
        write_run(tmp_path / "s", local_batch=4, num_workers=4, seed=seed, settings=diloco(name))
    study = bsweep.load(tmp_path / "s")
    cells = bsweep.simulate(study, workers=[4], network="25gbit", strategies="diloco").cells
    seconds = bsweep.analysis.step_times(study).xs("uniform", level="variant")["total_seconds"]
    assert [*cells.loc[cells["kind"] == "measured", "step_seconds"]] == [*seconds]


WAY = "--network 25gbit --strategies horovod,"
BY_MEMORY = "--network 25gbit --strategies diloco,diloco:allocation=batch_by_memory"


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--network 25gbit --strategies horovid", "Did you mean"),
        ("--network 25gbit --strategies horovod:bucket=2", "has no key 'bucket'"),
        ("--network 25gbit --strategies horovod:buckets=0", "buckets"),
        ("--network 25gbit --strategies horovod:buckets=[", r"strategy\.buckets=\["),
        ("--network 25gbit --strategies horovod,own", "--strategies own"),
        ("--network 25gbit --global-batch 32 --workers 64", "32 cannot be divided by 64"),
        ("--network 25gbit --strategies single --workers 2", "exchanges nothing"),
        ("--network 25gbit --machine h100", "one source"),
        ("--network 25gbit --speeds 0,1", "above 0"),
        ("--network 25gbit --local-batch 0", "--local-batch 0: give a number above 0"),
        ("--network 25gbit --global-batch 0", "--global-batch 0: give a number above 0"),
        ("--network 25gbit --example-bytes=-5", "--example-bytes -5: give a number above 0"),
        ("--network 25gbit --price-per-worker-hour inf", "--price-per-worker-hour inf"),
        ("--flops-per-example 3", "--machine and --flops-per-example"),
        ("--network measured --measured-network 1gbit", "--measured-network 1gbit"),
        ("--strategies ''", "--strategies names none"),
        ("--network 25gbit --figure speed.txt", r"--figure speed\.txt: .*\.png"),
        (f"{WAY}horovod:buckets=4:compression=topk", "takes the whole gradient"),
        (f"{WAY}ddp:compression=topk", "--strategies ddp:compression=topk: .* DDP's own"),
        (f"{WAY}horovod:allocation=steps_by_speed", "use strategy=diloco"),
        (f"{WAY}pipeline:microbatches=5", "use a divisor of the local batch"),
        (f"{WAY}pipeline:schedule=gpipe:replicas=64 --workers 1,2,8", "a divisor of num_workers"),
        (BY_MEMORY, "--strategies diloco:allocation=batch_by_memory: .* --memories 80,40,24"),
        (f"{BY_MEMORY} --memories 1e-6", r"take 0\.\d+ GB of a worker's 1e-06 GB on 1 worker"),
        (f"{BY_MEMORY} --memories 80,x", "--memories 80,x"),
    ],
)
def test_wrong_words_get_a_message_with_the_remedy(words: str, message: str, study: Path) -> None:
    with pytest.raises(ValueError, match=message):
        command.run([str(study), *shlex.split(words)])


@pytest.mark.full
def test_numbers_of_workers_that_do_not_divide_the_batch_are_left_out(study: Path) -> None:
    given: dict[str, Any] = {"network": "25gbit", "global_batch": 100}
    found = bsweep.simulate(study, workers=counts("1..64"), strategies="horovod", **given)
    simulated = found.cells[found.cells["kind"] == "simulated"]
    assert list(simulated["num_workers"]) == [1, 2, 4]
    assert any(note.startswith("horovod: not on 8, 16, 32 and 64 workers") for note in found.notes)
    uneven = "horovod:allocation=batch_by_flops"  # whose batches are not rounded
    assert len(bsweep.simulate(study, workers=[64], strategies=uneven, **given).cells) == 1


def test_a_run_tells_the_sizes_of_layers(tmp_path: Path) -> None:
    sizes = (1_000_000, 9_000_000, 181_642, 1_000_000)
    found = {}
    for known in (sizes, None):
        folder = tmp_path / str(known is None)
        write_run(folder, local_batch=8, layer_parameters=known)
        found[known] = bsweep.simulate(
            folder, workers=[8], strategies="parameter_server:sharding=layer", network="1gbit"
        )
    step = {known: float(one.cells["step_seconds"].iloc[-1]) for known, one in found.items()}
    assert step[sizes] > 1.5 * step[None]
    assert not any("layers are not known" in note for note in found[sizes].notes)
    assert any("layers are not known" in note for note in found[None].notes)


PIECES = {"pieces": ("stem", "one", "two", "three", "head")}
LLAMA = {"settings": {"model": {"name": "llama_tiny", "num_heads": 4.0}}}
LAYERS = {"layer_parameters": (1_000_000, 9_000_000, 1_181_642)}


@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("run", "way", "workers", "suitable", "says"),
    [
        (PIECES, "pipedream", [4, 8, 64], [4, 8, 64], ""),
        (PIECES, "pipedream:replicas=1", [4, 8, 64], [4], "5 pieces"),
        (LLAMA, "tensor:replicas=1", [4, 8, 64], [4], "more strategy.replicas"),
        (LAYERS, "parameter_server:sharding=layer", [4, 8], [4], "3 layers"),
    ],
)
def test_a_way_is_simulated_on_workers_that_suit_the_model(
    run: dict[str, Any], way: str, workers: list[int], suitable: list[int], says: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    write_run(tmp_path / "study", local_batch=8, **run)
    found = bsweep.simulate(
        tmp_path / "study", workers=workers, strategies=way, network="1gbit,50us"
    )
    simulated = found.cells[found.cells["kind"] == "simulated"]
    assert simulated["num_workers"].tolist() == suitable
    notes = [note for note in found.notes if note.startswith(f"{way}: not on")]
    assert len(notes) == (suitable != workers)
    assert all(says in note for note in notes)


def test_more_workers_than_measured_are_doubted_more() -> None:
    """Runs of two workers tell of two; four and eight are one and two doublings more."""
    runs = pd.DataFrame({
        "strategy": ["horovod"], "compression": ["none"], "allocation": ["uniform"],
        "num_workers": [2], "local_batch": [8], "step_seconds": [1.0],
    })  # fmt: skip
    known = constants(measured=runs, beyond=0.1, other_way=0.2)
    errors = {
        workers: [case(name, workers, known).log_error for name in ("horovod", "allreduce")]
        for workers in (1, 2, 4, 8)
    }
    assert errors[1] == [0, 0]
    assert errors[2] == pytest.approx([0, 0.2])
    assert errors[4] == pytest.approx([0.1, math.hypot(0.1, 0.2)])
    assert errors[8] == pytest.approx([0.1 * 2**0.5, math.hypot(0.1 * 2**0.5, 0.2)])
    nothing = case("horovod", 4, constants(beyond=0.1, other_way=0.2))
    assert nothing.log_error == pytest.approx(math.hypot(0.1 * 2**0.5, 0.2))


def test_machines_whose_memory_is_too_small_are_named() -> None:
    """AdamW has two vectors of state, and diloco the anchor and the outer momentum, too."""
    found = bsweep.simulate(
        machine="h100", flops_per_example=1e12, parameters=20e9, network="400gbit",
        workers=[8, 64],
        strategies="allreduce,sharded,deepspeed:stage=3,diloco,sharded:replicas=64",
    )  # fmt: skip
    notes = [note for note in found.notes if "GB of a worker's 80 GB" in note]
    assert [note.partition(" workers ")[0] for note in notes] == [
        "allreduce: on 8 and 64", "diloco: on 8 and 64", "sharded:replicas=64: on 64",
    ]  # fmt: skip
    assert "up to 320 GB" in notes[0]
    assert "up to 480 GB" in notes[1]


@pytest.mark.full
def test_python_takes_what_the_command_takes(study: Path) -> None:
    given: dict[str, Any] = {"network": "25gbit"}
    found = bsweep.simulate(study, workers="1..4,6", strategies=["horovod", "diloco"], **given)
    simulated = found.cells[found.cells["kind"] == "simulated"]
    for name in ("horovod", "diloco"):
        rows = simulated[simulated["strategy"] == name]
        assert rows["num_workers"].tolist() == [1, 2, 4, 6]
    one = bsweep.simulate(study, workers=4, strategies="horovod", **given).cells
    assert list(one["num_workers"]) == [4]
    refused: list[Any] = [[2.5], "0..4", "a", "8..2", ""]
    for wrong in refused:
        with pytest.raises(ValueError, match=r"--workers .*: give counts such as 1,2,4 or 1\.\."):
            bsweep.simulate(study, workers=wrong, **given)


def test_a_study_without_step_times_is_refused(tmp_path: Path) -> None:
    settings = {"strategy": {"name": "ddp", "hook": "none", "powersgd_rank": 1, "bucket_mb": 25.0}}
    write_run(tmp_path / "ddp", local_batch=8, num_workers=2, settings=settings)
    with pytest.raises(ValueError, match="Train a run on one worker"):
        bsweep.simulate(tmp_path / "ddp", network="1gbit")


def test_machines_are_published_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--machine", "h100", "--flops-per-example", "1e12", "--parameters", "1e9"]
    command.run([*given, "--network", "400gbit,5us", "--workers", "1,8,64", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {cell["kind"] for cell in told["cells"]} == {"simulated"}
    assert "not measured" in told["notes"][0]
    with pytest.raises(ValueError, match="flops-per-example"):
        bsweep.simulate(machine="h100", parameters=1e9, network="1gbit")


def test_a_machine_has_the_link_that_its_vendor_states() -> None:
    given: dict[str, Any] = {
        "machine": "rtx4090", "flops_per_example": 1e12, "parameters": 1e9, "workers": [64],
        "strategies": "allreduce",
    }  # fmt: skip
    found, link = bsweep.simulate(**given), machine_of("rtx4090").link
    assert f"Links: {link} a node, as published, not measured." in found.notes
    assert any(note.startswith("Latencies that --network does not give") for note in found.notes)
    other = bsweep.simulate(**given, network="1gbit,50us")
    assert not any("--network does not give" in one or "Links:" in one for one in other.notes)
    assert (other.cells["step_seconds"] > found.cells["step_seconds"]).all()


def test_what_describes_a_machine_wrongly_is_refused(tmp_path: Path) -> None:
    """A machine without a link needs a network."""
    file = tmp_path / "mine.yaml"
    own = "{tflops: 1, reached: 0.4, memory_gb: 8, workers: 1, inner: 1gbit, source: me"
    given: dict[str, Any] = {"machine": str(file), "flops_per_example": 1e9, "parameters": 1e6}
    for text, says in (
        (own, "--network"),
        (own.replace("reached: 0.4, ", ""), "reached: Field required"),
        (f"{own}, lnk: 1gbit", r"lnk: Unexpected keyword argument\. The keys are tflops, "),
        (f"{own}, link: 2gb", f"--machine {file}: 2gb"),
    ):
        file.write_text(text + "}")
        with pytest.raises(ValueError, match=says):
            bsweep.simulate(**given)
    with pytest.raises(ValueError, match="Known: a100"):
        bsweep.simulate(**given | {"machine": "h99"})


@pytest.mark.full
def test_networks_are_compared_and_drawn(study: Path, tmp_path: Path) -> None:
    from bsweep.plots import simulation
    from bsweep.plots.curves import MARKERS

    found = bsweep.simulate(
        study, workers=[1, 4, 64], strategies="horovod,pipeline", price_per_worker_hour=1.0,
        network=["10gbit,10us", "100mbit,1ms,sites=2,between=10mbit/20ms"],
    )  # fmt: skip
    assert found.cells["network"].nunique() == 3  # measured cells have none
    assert any("The pieces of the model are not known" in note for note in found.notes)
    # The first exchange is slow, but 64 workers are much faster than 4: there is no knee.
    assert not any(note.startswith("Knee of horovod with 100mbit") for note in found.notes)
    path = tmp_path / "figures/speed.svg"
    simulation.write(found, path)
    # Text is outlines, with its words in a comment.
    assert "simulated, not measured." in path.read_text()
    speed_up = simulation.simulated_speedup(found)
    lines = [line for line in speed_up.axes[0].lines if line.get_marker() in MARKERS]
    assert len(lines) == 4
    assert all(line.is_dashed() for line in lines)


def test_measured_rows_are_of_the_way_that_is_simulated_and_the_studys_own_links() -> None:
    """The study has allreduce on two workers by four algorithms."""
    ways = ["allreduce:algorithm=ring", "allreduce:algorithm=tree"]
    found = bsweep.simulate(STRATEGIES_1GBIT, workers=[2], network="25gbit,10us", strategies=ways)
    measured = found.cells[found.cells["kind"] == "measured"].set_index("strategy")
    assert list(measured.index) == ways
    assert measured["step_seconds"].nunique() == 2
    assert found.cells.groupby("kind")["network"].unique().map(list).to_dict() == {
        "measured": ["measured"], "simulated": ["25gbit,10us"],
    }  # fmt: skip
    assert "network" in repr(found).splitlines()[0]


def test_ddp_sends_what_its_hook_leaves() -> None:
    idle = constants(pass_seconds=np.zeros(NUM_DRAWS), example_seconds=np.zeros(NUM_DRAWS))
    links = parse_network("1gbit,1ns")
    whole, half = (
        steps(f"ddp:hook={hook}", 4, idle, network=links).step_seconds for hook in ("none", "fp16")
    )
    np.testing.assert_allclose(half, whole / 2, rtol=1e-3)
    with pytest.raises(ValueError, match=r"what strategy\.hook=powersgd sends depends"):
        steps("ddp:hook=powersgd", 4)


def test_report_prediction_and_simulation_read_one_table_of_steps(tmp_path: Path) -> None:
    """Older runs did not tell the exchange that computing hides."""
    write_run(tmp_path / "s", local_batch=50, num_workers=4, settings=server("layer"))
    study = bsweep.load(tmp_path / "s")
    older = replace(study, epochs=study.epochs.assign(exposed_exchange_seconds=np.nan))
    for known in (study, older):
        (step,) = bsweep.analysis.step_times(known).to_dict("records")
        seconds = {one.kind: one.seconds for one in observed(known, target_of(0.5)).timings()}
        (run,) = of_study(known).measured.to_dict("records")
        assert seconds["step"] == pytest.approx(step["total_seconds"])
        assert seconds["step"] == pytest.approx(run["step_seconds"])
        exposed = step["exposed_exchange_seconds"] + step["wait_seconds"]
        assert seconds["exposed"] == pytest.approx(exposed)
        assert run["step_seconds"] - run["compute_seconds"] == pytest.approx(exposed)
