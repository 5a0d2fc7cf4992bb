"""However many workers and by whatever strategy: the same examples, the same crops and the same
weights.

In float64 on a network without BatchNorm, W workers at batch b are one worker at W * b. The 91
examples make the last step uneven. Every test also checks that the weights moved, so that it cannot
pass on a run that did nothing.
"""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep import models
from bsweep.config.values import ConfigError
from tests.strategies.test_sharding import SHARDINGS
from tests.support.gpus import on_gpus
from tests.support.running import (
    ROOT,
    TINY,
    Fork,
    compose,
    forks,
    meeting_port,
    options,
    popen,
    ranks,
    write_text,
)

# The last step of an epoch, 19 of 24, has uneven parts for two workers and for three.
NUM_TRAIN = 91
FP64 = ("precision=fp64", "epochs=2", "optimizer.lr=0.5", "optimizer.weight_decay=0.01")
CONTRACT = (*TINY, f"data.num_train={NUM_TRAIN}", "model=tiny_cnn", *FP64)
LAYERED = ("model=own", f"model.target={ROOT}/tests/support/noisy_network.py:layered")
# A network with a plan of tensor parallelism.
DIVIDED, DROPPING, JOINED = (
    ("model=own", f"model.target={ROOT}/tests/support/divided_network.py:{name}")
    for name in ("build", "dropping", "Joined")
)
TIED = ("model=own", f"model.target={ROOT}/tests/support/tied_network.py:Tied")
LAMB = ("optimizer=lamb", "optimizer.lr=0.01")
COLOCATED = ("strategy=parameter_server", "strategy.num_servers=2", "strategy.colocated=true")
SCORES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


class Processes:
    """Real processes, started once, that train job after job; see `tests.support.one_run`.

    Only horovodrun's need a launcher: it keeps where they meet. Others meet by variables, as
    torchrun would set them.
    """

    def __init__(self, folder: Path, launcher: str, num_processes: int) -> None:
        self.folder, self.num_processes, self.num_jobs = folder, num_processes, 0
        self.output = folder / "output"
        self.bells = [_bell(folder, rank) for rank in range(num_processes)]
        self.processes: list[Fork] | list[subprocess.Popen[str]]
        with self.output.open("w") as output:
            if launcher == "horovodrun":
                command = [forks().horovodrun, "-np", str(num_processes), "--gloo"]
                worker = [forks().python, "-m", "tests.support.one_run", str(folder)]
                self.processes = [popen([*command, *worker], ROOT, output=output)]
            else:
                variables = ranks(num_processes) if launcher == "torchrun" else [{}]
                words = ("tests.support.one_run", str(folder))
                self.processes = [
                    Fork(*words, cwd=ROOT, env=env, stdout=output, stderr=output)
                    for env in variables
                ]

    def run(self, job: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Each process's answer to a job; None ends them."""
        number, self.num_jobs = self.num_jobs, self.num_jobs + 1
        unfinished = self.folder / f"{number}.tmp"
        unfinished.write_bytes(pickle.dumps(job))
        unfinished.rename(self.folder / f"{number}.pickle")
        for bell in self.bells:
            os.write(bell, b"\n")
        if job is None:
            assert all(process.wait(60) == 0 for process in self.processes)
            for bell in self.bells:
                os.close(bell)
            return []
        answers = [self.folder / f"{number}.{rank}.pt" for rank in range(self.num_processes)]
        end = time.monotonic() + 120
        while not all(answer.exists() for answer in answers):
            failed = time.monotonic() > end or any(
                process.poll() is not None for process in self.processes
            )
            assert not failed, f"{job}:\n{self.output.read_text()}"
            time.sleep(0.02)
        return [torch.load(answer) for answer in answers]


def _bell(folder: Path, rank: int) -> int:
    """Return the end of a pipe into which each job writes a line; the process waits at the other
    end.
    """
    path = folder / f"{rank}.bell"
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


_FOLDER: Path
_STARTED: dict[tuple[str, int], Processes] = {}


@pytest.fixture(autouse=True, scope="module")
def _end_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _FOLDER
    _FOLDER = tmp_path_factory.mktemp("contract")
    yield
    for group in _STARTED.values():
        if all(process.poll() is None for process in group.processes):
            group.run(None)
    _STARTED.clear()  # another module starts its own


@functools.cache
def trained(
    num_workers: int,
    *overrides: str,
    contract: tuple[str, ...] = CONTRACT,
    policy: str | None = None,
    warm_up: bool = True,
    overflow: tuple[int, ...] = (),
    break_off: tuple[int, int] = (0, 0),
) -> list[dict[str, Any]]:
    """What each worker of a real run saw and ended with; by one of `tests.support.policies`, or by
    its configured batch.

    Gradients `overflow` on a rank, in a step. Those that `break_off` save after a round, end as by
    a kill after a later one, and train on.
    """
    given = (
        ("local_batch=8", *overrides) if not any("_batch=" in o for o in overrides) else overrides
    )
    words = [f"num_workers={num_workers}", *contract, *given]
    config = _composed(*words)
    num_processes = num_workers + config.num_server_processes
    launcher = (
        "alone" if num_processes == 1 and config.launch.name == "horovodrun" else config.launch.name
    )
    key = (launcher, num_processes)
    if key not in _STARTED:
        (folder := _FOLDER / f"{launcher}{num_processes}").mkdir()
        _STARTED[key] = Processes(folder, *key)
    job = {
        "config": config,
        "policy": policy,
        "warm_up": warm_up,
        "overflow": list(overflow),
        "break_off": break_off,
    }
    return _STARTED[key].run({**job, "ports": [meeting_port(), meeting_port()]})[:num_workers]


# A run that is interrupted has the configuration of the whole one.
_composed = functools.cache(compose)


def oracle(global_batch: int, *overrides: str, **how: Any) -> dict[str, Any]:
    return trained(1, "strategy=single", f"global_batch={global_batch}", *overrides, **how)[0]


def text_contract() -> tuple[str, ...]:
    """A language model and 1457 bytes to train on: 91 sequences and the byte after them."""
    path = write_text(_FOLDER / "text.txt", 1618)
    data = ("data=text", f"data.path={path}", "data.sequence_length=16", "local_batch=null")
    return (*data, "model=llama_tiny", *FP64)


def assert_reached(workers: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """All workers have the weights of a run whose weights moved, and its scores of each epoch."""
    assert expected["moved"] > 0.005
    for worker in workers:
        torch.testing.assert_close(
            worker["parameters"], expected["parameters"], rtol=1e-9, atol=1e-11
        )
        for key in SCORES:
            one, many = ([epoch[key] for epoch in run["epochs"]] for run in (expected, worker))
            assert many == pytest.approx(one, rel=1e-9)


STRATEGIES = [
    name for name in options("strategy") if name not in ("single", "own", "program", "deepspeed")
]

# With one plain step a round, DiLoCo is synchronous SGD.
SYNCHRONOUS_DILOCO = (
    "optimizer=sgd",
    "optimizer.momentum=0",
    "strategy.sync_every=1",
    "strategy.outer_lr=1",
    "strategy.outer_momentum=0",
)
# Synchronous and exact ways to run a strategy: its defaults, unless something else is said here.
VARIANTS: dict[str, list[tuple[int, tuple[str, ...]]]] = {
    "horovod": [
        (2, ()),
        (2, ("strategy.buckets=3",)),
        (2, ("accumulation_steps=2",)),
        (2, ("strategy.buckets=3", "accumulation_steps=2")),
        (2, ("channels_last=true",)),
        (3, ()),
        (3, ("compression=topk", "compression.density=1")),
    ],
    "ddp": [(2, ("accumulation_steps=2",)), (3, ())],
    "allreduce": [
        (2, ("compression=topk", "compression.density=1")),
        *((3, (f"strategy.algorithm={algorithm}",)) for algorithm in ("native", "ring", "tree")),
    ],
    "parameter_server": [
        (2, ()),
        *(
            (
                num_workers,
                (
                    *("strategy.num_servers=2", f"strategy.sharding={sharding}"),
                    *("strategy.chunk_bytes=256", f"strategy.colocated={is_colocated}"),
                    "optimizer.decay_norm_and_bias=false",
                ),
            )
            for sharding, is_colocated, num_workers in itertools.product(
                SHARDINGS, ("false", "true"), (2, 3)
            )
        ),
        (3, ("strategy.num_servers=2", "optimizer=adamw", "optimizer.lr=0.01")),
        (2, ("strategy.num_servers=3", "strategy.sharding=layer", "optimizer=lars")),
    ],
    "local_sgd": [
        (2, ("strategy.sync_every=1",)),
        (3, ("strategy.sync_every=3", "strategy.warmup_steps=100")),
    ],
    "diloco": [
        (2, SYNCHRONOUS_DILOCO),
        (3, (*SYNCHRONOUS_DILOCO, "strategy.algorithm=ring")),
        (2, (*SYNCHRONOUS_DILOCO, "strategy.algorithm=horovod", "launch=horovodrun")),
        (2, (*SYNCHRONOUS_DILOCO, "compression=topk", "compression.density=1")),
    ],
    "sharded": [
        (1, ()),
        (2, ()),
        (2, ("accumulation_steps=2",)),
        (3, ("strategy.reshard=step", "strategy.wrap=model")),
        (4, ("strategy.replicas=2", "optimizer=adamw", "optimizer.lr=0.01")),
        (2, LAMB),
        (2, ("optimizer=lars",)),
        (2, ("strategy.wrap=model", *TIED, "optimizer.lr=0.01")),
    ],
    "tensor": [
        (1, DIVIDED),
        (2, DIVIDED),
        (2, (*DIVIDED, "accumulation_steps=2")),
        (4, DIVIDED),
        (4, (*DIVIDED, "strategy.replicas=2", "optimizer=adamw", "optimizer.lr=0.01")),
        (4, (*DIVIDED, "strategy.replicas=2", *LAMB)),
        (4, (*DIVIDED, "strategy.replicas=2", "optimizer=lars", "optimizer.lr=1")),
        (2, DROPPING),
        (2, (*JOINED, "optimizer.decay_norm_and_bias=false", *LAMB)),  # whose biases are vectors
    ],
    "pipeline": [
        (1, ("strategy.schedule=gpipe",)),
        (2, ()),
        (2, ("strategy.schedule=gpipe", "accumulation_steps=2", "strategy.cuts=[2]")),
        (3, ("strategy.microbatches=3", "optimizer=lars", "optimizer.lr=0.5")),
        (4, ("strategy.replicas=2", "strategy.microbatches=2")),
    ],
    # Without stages no weights are old; see test_pipedream.py.
    "pipedream": [(1, ()), (2, ("strategy.replicas=2", "accumulation_steps=2"))],
}
# Local batches of three workers that share a global batch of 24.
UNEVEN = {
    "horovod": ("strategy.buckets=2",),
    "ddp": (),
    "allreduce": (),
    "parameter_server": ("strategy.num_servers=2",),
    "diloco": SYNCHRONOUS_DILOCO,
    "sharded": (),
}


def variants() -> list[tuple[str, int, tuple[str, ...]]]:
    return [
        (strategy, num_workers, overrides)
        for strategy in STRATEGIES
        for num_workers, overrides in VARIANTS.get(strategy, [(2, ()), (3, ())])
    ]


def of_one_worker(overrides: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(o for o in overrides if o.startswith(("model", "optimizer", "global_batch")))


@pytest.mark.full(but=12)
@pytest.mark.parametrize(("strategy", "num_workers", "overrides"), variants())
def test_workers_reach_the_weights_of_one_worker_with_the_global_batch(
    strategy: str, num_workers: int, overrides: tuple[str, ...]
) -> None:
    workers = trained(num_workers, f"strategy={strategy}", "global_batch=24", *overrides)
    assert_reached(workers, oracle(24, *of_one_worker(overrides)))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("strategy", UNEVEN)
def test_uneven_local_batches_reach_the_same_weights(strategy: str) -> None:
    overrides = ("global_batch=24", "allocation.local_batches=[5,12,7]", *UNEVEN[strategy])
    workers = trained(3, f"strategy={strategy}", *overrides)
    assert_reached(workers, oracle(24, *of_one_worker(overrides)))
    assert [len(indices) for indices, _ in workers[1]["seen"]] == [12, 12, 12, 10] * 2, (
        "its part, of a tail too"
    )


@pytest.mark.full
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tail_smaller_than_the_worker_count_is_trained_too(strategy: str) -> None:
    """The third step has one example for two workers."""
    tail, cases = "data.num_train=49", VARIANTS.get(strategy, [])
    overrides = next((o for n, o in cases if n == 2 and "topk" not in str(o)), ())
    workers = trained(2, f"strategy={strategy}", "global_batch=24", *overrides, tail)
    assert_reached(workers, oracle(24, tail, *of_one_worker(overrides)))


# Three workers share 256 words unevenly.
THREE_HEADS = ("model.num_heads=3", "model.hidden_size=48", "model.intermediate_size=96")
LANGUAGE: list[tuple[str, int, tuple[str, ...]]] = [
    ("allreduce", 3, ()),
    ("tensor", 2, ()),
    ("tensor", 4, ("accumulation_steps=2",)),
    ("tensor", 3, THREE_HEADS),
    ("tensor", 2, ("global_batch=30",)),  # the last step has one sequence
    ("tensor", 2, ("optimizer=lars", "optimizer.lr=1")),
    ("tensor", 4, ("strategy.replicas=2", *LAMB)),
]


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "num_workers", "more"), LANGUAGE)
def test_workers_reach_one_workers_language_model(
    strategy: str, num_workers: int, more: tuple[str, ...]
) -> None:
    text, how = text_contract(), (f"strategy={strategy}", "global_batch=24", *more)
    workers = trained(num_workers, *how, contract=text)
    assert_reached(workers, oracle(24, *of_one_worker(more), contract=text))


PIPELINES: dict[str, tuple[int, tuple[str, ...]]] = {
    "gpipe": (2, ()),
    "1f1b": (4, ()),
    "interleaved_1f1b": (2, (*LAMB, "accumulation_steps=2")),
    "interleaved_zero_bubble": (2, ("strategy.cuts=[1,2,3]",)),
    "zbv": (2, ()),
    "dualpipev": (4, ("strategy.replicas=2",)),
}


@pytest.mark.full
@pytest.mark.parametrize("schedule", PIPELINES)
def test_schedules_of_a_pipeline_reach_one_workers_language_model(schedule: str) -> None:
    num_workers, more = PIPELINES[schedule]
    text, how = text_contract(), ("strategy=pipeline", f"strategy.schedule={schedule}", *more)
    workers = trained(num_workers, *how, "global_batch=24", contract=text)
    expected = oracle(24, *of_one_worker(more), contract=text)
    assert_reached(workers, expected)
    start = workers[0]["start"]
    assert start["pieces"] == [piece for stage in start["stages"] for piece in stage]
    assert start["pieces"] == ["embedding", "blocks.0", "blocks.1", "head"]
    assert start["num_blocks"] > 1
    assert start["num_parameters"] == expected["start"]["num_parameters"]
    for epoch in workers[0]["epochs"]:
        assert 0 < epoch["bubble"] < 1
        assert epoch["sent_bytes"] > 0
        for number, load in enumerate(epoch["stage_loads"]):
            seconds = [load[f"{part}_seconds"] for part in ("busy", "idle", "exchange")]
            assert sum(seconds) > 0
            # Other workers may also wait for the first one while it does not train.
            assert number or sum(seconds) < epoch["train_seconds"]
            assert load["peak_activation_bytes"] > 0


@pytest.mark.full
def test_a_resumed_pipeline_goes_on_with_its_stages() -> None:
    how = ("strategy=pipeline", "global_batch=24", "optimizer=adamw", "optimizer.lr=0.01")
    expected, _ = trained(2, *how)
    assert_reached(trained(2, *how, break_off=(3, 5)), expected)


def test_ring_sends_twice_the_vector_less_a_share() -> None:
    for algorithm in ("native", "ring"):
        first, *_ = trained(
            3, "strategy=allreduce", "global_batch=24", f"strategy.algorithm={algorithm}"
        )
        vector_bytes = 8 * len(first["parameters"])
        for epoch in first["epochs"]:
            assert epoch["sent_bytes"] == pytest.approx(4 * 2 * 2 / 3 * vector_bytes, rel=0.01)


MEMORY, CHUNKS = "strategy.sharding=memory", "strategy.sharding=hashed_chunks"


@pytest.mark.parametrize(
    "more", [(MEMORY,), (MEMORY, "strategy.colocated=true"), (CHUNKS, "strategy.chunk_bytes=256")]
)
def test_bytes_of_servers_are_those_that_travel(more: tuple[str, ...]) -> None:
    how = ("strategy=parameter_server", "strategy.num_servers=2", "global_batch=24")
    workers = trained(3, *how, *more)
    assert_reached(workers, oracle(24))
    first = workers[0]
    total, num_beside = 8 * len(first["parameters"]), float("strategy.colocated=true" in more)
    for epoch in first["epochs"]:  # of four steps
        mean = 4 * total * (3 - num_beside) // 3  # each half of it stays with one worker
        assert epoch["sent_bytes"] == epoch["received_bytes"] == mean
        assert sum(server["share"] for server in epoch["servers"]) == pytest.approx(1)
        for server in epoch["servers"]:
            assert server["pushes"] == [4] * 3
            assert server["max_lead"] == 0
            travels = pytest.approx(4 * (3 - num_beside) * server["share"] * total)
            assert server["received_bytes"] == server["sent_bytes"] == travels


def test_a_weight_that_two_blocks_share_is_refused() -> None:
    split = ("strategy=sharded", "num_workers=2", "local_batch=8", "model.blocks=[first,last]")
    config = compose(*CONTRACT, *TIED, *split).with_fingerprints()
    with pytest.raises(ConfigError, match=r"last\.0\.weight.* Use strategy\.wrap=model"):
        models.check_model(config, 10, (3, 8, 8))


@pytest.mark.full
@pytest.mark.parametrize(("reshard", "num_gathers"), [("forward", 2), ("step", 1)])
def test_shards_are_gathered_and_summed_in_each_pass(reshard: str, num_gathers: int) -> None:
    more = (f"strategy.reshard={reshard}", "accumulation_steps=2")
    first, _ = trained(2, "strategy=sharded", "global_batch=24", *more)
    for epoch in first["epochs"]:
        mine, other = epoch["worker_memory"]
        assert mine["parameter_bytes"] == mine["gradient_bytes"] >= other["parameter_bytes"]
        assert mine["optimizer_bytes"] == mine["parameter_bytes"], "the momentum of its parts"
        # Gloo sums by an all-reduce for each worker.
        expected = (num_gathers + 2) * mine["parameter_bytes"]
        assert epoch["sent_bytes"] == 2 * epoch["num_steps"] * expected
    whole = 8 * len(first["parameters"])
    assert whole == mine["parameter_bytes"] + other["parameter_bytes"]


@pytest.mark.full
@pytest.mark.parametrize("reduce", ["fp32", "bf16"])
def test_layers_of_a_run_in_bf16_are_gathered_so(reduce: str) -> None:
    """BatchNorm's 16 of a worker's parameters are gathered in fp32."""
    how = ("strategy=sharded", f"strategy.reduce={reduce}", *LAYERED)
    more = (*how, "global_batch=24", "optimizer.lr=0.05", "epochs=1")
    rounded, whole = (trained(2, *more, f"precision={p}")[0] for p in ("bf16", "fp32"))
    (one,), (other,) = rounded["epochs"], whole["epochs"]
    num_rounded = one["worker_memory"][0]["parameter_bytes"] // 4 - 16
    saved = other["sent_bytes"] - one["sent_bytes"]
    assert saved == one["num_steps"] * 2 * 2 * num_rounded, "twice in a pass"
    assert not torch.equal(rounded["parameters"], whole["parameters"])
    for key in ("train_loss", "test_loss"):
        assert one[key] == pytest.approx(other[key], rel=0.02)
    card = compose("num_workers=2", *CONTRACT, *more, "precision=fp32").strategy
    of_gloo = {"fp32": 0.5, "bf16": 0.25}[reduce]
    for run, precision in ((rounded, "bf16"), (whole, "fp32")):
        in_formula = card.sent_in_pass(2, 1, precision)[0] + of_gloo
        sent = run["epochs"][0]["sent_bytes"] / one["num_steps"]
        assert sent == pytest.approx(in_formula * 4 * run["start"]["num_parameters"], rel=0.03)


def test_local_sgd_drifts_between_averages_and_agrees_where_an_epoch_ends() -> None:
    first, second = trained(2, "strategy=local_sgd", "strategy.sync_every=3", "global_batch=24")
    assert torch.equal(first["parameters"], second["parameters"])
    assert not torch.allclose(first["parameters"], oracle(24)["parameters"], rtol=1e-4)
    vector_bytes = 8 * len(first["parameters"])
    sent = [epoch["sent_bytes"] // vector_bytes for epoch in first["epochs"]]
    assert sent == [2, 2], "in steps 3 and 4, 6 and 8"


def test_buckets_travel_while_the_backward_pass_goes_on() -> None:
    for more in ((), ("accumulation_steps=2",)):
        first, _ = trained(2, "strategy=horovod", "global_batch=24", "strategy.buckets=3", *more)
        assert set(first["sent_early"][:3]) == {3}, (
            "all buckets leave before the backward pass has ended"
        )
    first, _ = trained(2, "strategy=horovod", "global_batch=24")
    assert set(first["sent_early"]) == {0}


@pytest.mark.full(but=1)
@pytest.mark.parametrize("average", ["true", "false"])
def test_batchnorm_statistics_are_averaged_where_asked(average: str) -> None:
    more = ("epochs=1", "data.num_train=24", "global_batch=12", f"average_batchnorm={average}")
    first, second = (worker["buffers"] for worker in trained(2, *LAYERED, *more))
    equal = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert equal == (average == "true")


def test_a_horovod_worker_alone_is_the_single_strategy_bit_for_bit() -> None:
    alone = trained(1, "strategy=horovod", "global_batch=24")[0]
    assert torch.equal(alone["parameters"], oracle(24)["parameters"])


@pytest.mark.parametrize("num_workers", [2, 3])
def test_steps_have_the_same_examples_and_crops_whatever_the_worker_count(num_workers: int) -> None:
    workers = trained(num_workers, "strategy=horovod", "global_batch=24")
    one, many = oracle(24)["seen"], [worker["seen"] for worker in workers]
    assert len(one) == 2 * 4  # 91 examples by 24, two epochs, tails included
    for step, (indices, crops) in enumerate(one):
        together = [(i, c) for seen in many for i, c in zip(*seen[step], strict=True)]
        assert [i for i, _ in together] == indices
        assert all(torch.equal(c, crop) for (_, c), crop in zip(together, crops, strict=True))
    for epoch in (one[:4], one[4:]):
        assert sorted(i for indices, _ in epoch for i in indices) == list(range(NUM_TRAIN))


@pytest.mark.full
@pytest.mark.parametrize("num_passes", [1, 2])
@pytest.mark.parametrize(
    "how", ["horovod", "horovod strategy.buckets=3", "ddp", "parameter_server"]
)
def test_gradients_of_a_model_with_batchnorm_are_exchanged_alike(how: str, num_passes: int) -> None:
    """With BatchNorm, two workers are not the same as one worker with all examples."""
    passes = f"accumulation_steps={num_passes}"
    more = (*LAYERED, "optimizer.lr=0.05", "epochs=1", "global_batch=24", passes)
    found, other = trained(2, *f"strategy={how}".split(), *more)
    expected, _ = trained(2, "strategy=allreduce", *more)
    assert found["moved"] > 1e-5
    assert torch.equal(found["parameters"], other["parameters"])
    torch.testing.assert_close(found["parameters"], expected["parameters"], rtol=1e-9, atol=1e-9)


# Two workers sum alike in whatever order; DDP's buckets are others in its first step where there
# was no warm-up.
WARMED_UP: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(STRATEGIES, ()),
    "tensor": ("strategy=tensor", *DIVIDED),
    "horovod buckets": ("strategy=horovod", "strategy.buckets=3", "accumulation_steps=2"),
    "ddp powersgd": ("strategy=ddp", "strategy.hook=powersgd"),
    "servers in workers": COLOCATED,
    # The time of the layers would cut the two runs at different places.
    "pipeline": ("strategy=pipeline", "strategy.cuts=[1]"),
    "pipedream": ("strategy=pipedream", "strategy.cuts=[1]"),
    "diloco dgc": ("strategy=diloco", "strategy.sync_every=2", "compression=dgc", "precision=fp32"),
    "diloco adamw": ("strategy=diloco", "strategy.sync_every=2", "optimizer=adamw"),
    **{
        codec: ("strategy=allreduce", f"compression={codec}", "precision=fp32")
        for codec in options("compression")
        if codec not in ("none", "own")
    },
}


@pytest.mark.full
@pytest.mark.parametrize("case", WARMED_UP)
def test_a_warm_up_leaves_no_trace(case: str) -> None:
    """The last step is one example: a worker has none."""
    how = WARMED_UP[case] or (f"strategy={case}",)
    overrides = ("global_batch=24", "data.num_train=49", "epochs=1", *how)
    warm, cold = (trained(2, *overrides, warm_up=warm_up) for warm_up in (True, False))
    assert cold[0]["moved"] > 1e-5
    for one, other in zip(warm, cold, strict=True):
        assert torch.equal(one["parameters"], other["parameters"])
    for kind in ("epochs", "steps", "rounds"):  # as the first worker wrote them
        assert [_untimed(record) for record in warm[0][kind]] == [
            _untimed(record) for record in cold[0][kind]
        ]


def _untimed(record: dict[str, Any]) -> dict[str, Any]:
    """Without what no two runs have alike."""
    servers = [_untimed(server) for server in record.get("servers") or ()]
    timed = ["time", "seconds", "per_second", "memory", "_p50", "_p95", "servers"]
    timed += ["stage_loads", "bubble"]
    return {
        key: value for key, value in record.items() if not any(word in key for word in timed)
    } | {"of": servers}


ON_CPUS = (
    ("strategy=horovod", "strategy.buckets=3"),
    ("strategy=ddp",),
    ("strategy=allreduce", "compression=topk"),
    ("strategy=allreduce", "compression=powersgd", "optimizer=lars"),
)
# A graph would not see the overflow.
ON_GPUS = [
    (f"strategy={name}", "device=cuda", "graph=false") for name in ("horovod", "ddp", "allreduce")
]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(how, id=" ".join(how)) for how in ON_CPUS),
        *(on_gpus(how, number=2) for how in ON_GPUS),
    ],
)
def test_gradients_that_overflow_on_one_worker_leave_the_step_out_on_all(
    how: tuple[str, ...],
) -> None:
    # Of four steps.
    point = ("precision=fp16", "optimizer.lr=0.05", "global_batch=24", "epochs=1", *how)
    first, second = trained(2, *point, overflow=(1, 3))
    assert torch.equal(first["parameters"], second["parameters"])
    assert first["parameters"].isfinite().all()
    assert first["epochs"][0]["skipped_steps"] == 1
    assert first["scale"] == second["scale"] == 2**15
    every, *_ = trained(2, *point)
    assert every["epochs"][0]["skipped_steps"] == 0
    assert every["scale"] == 2**16
    assert not torch.allclose(first["parameters"], every["parameters"], rtol=1e-3), (
        "a step was left out"
    )


@pytest.mark.parametrize("strategy", ["local_sgd", "diloco"])
def test_a_worker_that_steps_alone_leaves_its_own_step_out(strategy: str) -> None:
    """One of a round's two: the other worker's counts, so that parameters are equal and scales are
    not.
    """
    point = ("precision=fp16", "optimizer.lr=0.05", "epochs=1", "strategy.sync_every=2")
    first, second = trained(2, f"strategy={strategy}", *point, overflow=(1, 3))
    assert torch.equal(first["parameters"], second["parameters"])
    assert first["parameters"].isfinite().all()
    assert first["epochs"][0]["skipped_steps"] == 0
    assert (first["scale"], second["scale"]) == (2**16, 2**15)


@pytest.mark.full
def test_fp16_stays_close_to_what_it_rounds() -> None:
    more = ("strategy=ddp", "global_batch=24", "optimizer.lr=0.05", "epochs=1")
    half, whole = (trained(2, *more, f"precision={precision}")[0] for precision in ("fp16", "fp32"))
    assert not torch.equal(half["parameters"], whole["parameters"])
    torch.testing.assert_close(half["parameters"], whole["parameters"], rtol=0.05, atol=0.002)
    assert half["moved"] > 0.01


def test_fp16_on_the_wire_stays_close_and_keeps_workers_equal() -> None:
    more = ("compression=fp16", "precision=fp32", "global_batch=24")
    first, second = trained(2, *more)
    assert torch.equal(first["parameters"], second["parameters"])
    expected = oracle(24)["parameters"]
    assert not torch.equal(first["parameters"].double(), expected)
    torch.testing.assert_close(first["parameters"].double(), expected, rtol=0.05, atol=0.01)
