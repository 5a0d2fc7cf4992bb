"""What a step costs the host, that it never waits for the device, and that a warm-up and a graph
change no number.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from bsweep.config import own
from bsweep.config.values import ConfigError
from bsweep.core import memory
from bsweep.core.ranks import Place
from bsweep.numerics import graphs, optim
from bsweep.numerics.clock import StepClock
from bsweep.numerics.half_weights import HalfWeights
from bsweep.numerics.vector import Vector
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.strategies import horovod
from bsweep.strategies.base import Meter
from bsweep.strategies.horovod import Horovod, HostCopies
from bsweep.train import graph_capture, peers_check, step, warm_up, worker
from bsweep.train.job import Job
from tests.support.gpus import on_gpus
from tests.support.operations import Operations
from tests.support.running import TINY, compose

IMAGES = ("data=synthetic", "data.num_train=64", "data.num_test=8", "data.shape=[3,32,32]")
POINT = ("launch=inline", "strategy=single", "local_batch=8", "epochs=2")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def prepared(folder: Path, *overrides: str) -> Job:
    folder.mkdir(exist_ok=True)
    return worker.set_up(compose(*POINT, *overrides), RunPaths(folder), Place())


@pytest.mark.parametrize(("precision", "most"), [("fp32", 170), ("bf16", 175), ("fp16", 182)])
def test_a_step_is_few_operations(tmp_path: Path, precision: str, most: int) -> None:
    """To launch one takes the host some 10 us, in which a fast GPU computes it for a small
    batch.
    """
    job = prepared(tmp_path, *IMAGES, "model=resnet18", f"precision={precision}")
    batch = torch.arange(4)
    step.train_step(job, batch, batch, 1)
    with Operations() as operations:
        step.train_step(job, batch, batch, 1)
    assert len(operations.launched) <= most, operations.launched


def on_meta(*overrides: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A worker on a device that computes nothing, so that nothing can be read from it."""
    monkeypatch.setattr(worker, "choose_device", lambda *_: torch.device("meta"))
    monkeypatch.setattr(
        peers_check, "data_facts", lambda _: {"num_classes": 0, "num_train": 0, "labels": ""}
    )
    monkeypatch.setattr(peers_check, "are_rounded", lambda _: [])
    monkeypatch.setattr(
        optim, "sgd", lambda config, vector: SGD(vector.tensors, lr=0.1, foreach=True)
    )
    return prepared(folder, *overrides)


def test_passes_add_few_operations_to_those_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ResNet-18 itself, with a stem for small images, is 136 of them: 67 forward, 69 backward."""
    words = (*IMAGES, "model=resnet18", "model.stem=cifar", "precision=fp32")
    job = on_meta(*words, folder=tmp_path, monkeypatch=monkeypatch)
    batch = torch.arange(8, device="meta")
    for _ in range(2):  # The first step makes constants.
        with Operations() as operations:
            step.compute_passes(job, batch, batch, job.inputs.crops(1, seed=0))
    assert len(operations.launched) <= 155, operations.launched


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("num_passes", [1, 2])
def test_weights_cast_at_once_give_the_gradients_of_autocast(
    tmp_path: Path, precision: str, num_passes: int
) -> None:
    """Also of kernels that are trimmed, of biases, and of passes that add up."""
    job = prepared(tmp_path, *IMAGES, "model=resnet18", f"precision={precision}")
    batch, crops, found = torch.arange(4), job.inputs.crops(1, seed=0), []
    for each in (job, replace(job, half_weights=None)):
        with step.forgotten(job):
            step.compute_passes(each, batch, batch, crops, num_passes)
        # Some overflow in fp16.
        found.append(job.vector.gradients.nan_to_num(0, 0, 0))
    assert found[0].any()
    assert torch.equal(*found)
    assert all("weight" not in vars(module) for module in job.model.modules())


def test_weights_that_layers_share_are_left_to_autocast() -> None:
    layers: list[Any] = [nn.Embedding(8, 3), nn.Linear(3, 8), nn.Linear(8, 1), nn.PReLU()]
    layers[1].weight = layers[0].weight
    model = nn.Sequential(*layers)
    half = HalfWeights(model, Vector(model))
    with half.cast(torch.bfloat16):
        kinds = [layer.weight.dtype for layer in layers]
        biases = [layer.bias.dtype for layer in layers[1:3]]
    assert kinds == [torch.float32, torch.float32, torch.bfloat16, torch.float32]
    assert biases == [torch.bfloat16, torch.bfloat16], "the vector has them at 32 and 40"
    assert layers[2].weight.dtype == torch.float32


@pytest.mark.parametrize("model", ["model=resnet18", "model=tiny_cnn"])
def test_no_step_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    job = on_meta(*IMAGES, model, "precision=fp32", folder=tmp_path, monkeypatch=monkeypatch)
    batch = torch.arange(8, device="meta")
    with Operations() as operations:
        for num_passes in (1, 2):
            step.train_step(job, batch, batch, 1, num_passes)
    assert operations.launched
    assert not operations.waited


def test_a_copy_to_the_device_is_seen() -> None:
    with Operations() as operations:
        torch.ones(2).to("meta")
    assert operations.waited


SMALL = (
    *TINY,
    "model=tiny_cnn",
    "precision=fp64",
    "local_batch=32",
    "optimizer.schedule=cosine",
    "optimizer.lr=0.5",
)


def trained(folder: Path, *overrides: str) -> tuple[Tensor, list[dict[str, Any]]]:
    """The parameters after two epochs of two full steps and a tail each, and the records."""
    folder.mkdir(exist_ok=True)
    job = worker.train(compose(*POINT, *SMALL, *overrides), RunPaths(folder), Place())
    return job.vector.parameters.clone(), list(read_records(RunPaths(folder).metrics)[0])


Capture = Callable[[Callable[[], Tensor]], tuple[Tensor, Callable[[], None], int]]


def calls_again(replays: list[int]) -> Capture:
    """In place of a capture: what computes the work anew calls it again, and counts that."""

    def capture(work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None], int]:
        result = work().clone()

        def replay() -> None:
            replays.append(1)
            result.copy_(work())

        return result, replay, 1000

    return capture


@pytest.fixture
def may_capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[Capture], None]:
    """Graphs on the CPU, by something in place of a capture."""

    def use(capture: Capture) -> None:
        monkeypatch.setattr(graph_capture, "no_graph", lambda _: "")
        monkeypatch.setattr(graphs, "capture", capture)

    return use


@pytest.mark.parametrize(
    "more", [(), ("accumulation_steps=2", "optimizer=adamw", "optimizer.lr=0.1")]
)
def test_steps_of_a_graph_are_those_without(
    tmp_path: Path, may_capture: Callable[[Capture], None], more: tuple[str, ...]
) -> None:
    """The examples, their crops in each epoch, and the rate reach it; the tail goes without."""
    replays: list[int] = []
    plain, plain_records = trained(tmp_path / "plain", *more)
    may_capture(calls_again(replays))
    replayed, records = trained(tmp_path / "graph", *more)
    assert torch.equal(plain, replayed)
    assert len(replays) == 1 + 2 * (1 if more else 2), (
        "one to compare, and the full steps of two epochs"
    )
    losses = [
        [record["train_loss"] for record in run if record["type"] == "epoch"]
        for run in (plain_records, records)
    ]
    assert losses[0] == losses[1]


def test_a_graphs_memory_is_measured_and_added_later(
    tmp_path: Path, may_capture: Callable[[Capture], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU on which 100 bytes are allocated, and 700 at most in a capture; later 300, with an
    optimizer's state.
    """
    gauge = SimpleNamespace(now=100, most=900)
    stream = SimpleNamespace(device=torch.device("cuda"), wait_stream=lambda _: None)
    cuda = SimpleNamespace(
        CUDAGraph=lambda: SimpleNamespace(replay=None),
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _: nullcontext(),
        graph=lambda *_, **__: nullcontext(),
        synchronize=lambda: None,
    )

    def work() -> Tensor:
        gauge.most = max(gauge.most, 700)
        return torch.zeros(3)

    with monkeypatch.context() as patch:
        patch.setattr(graphs, "torch", SimpleNamespace(cuda=cuda))
        patch.setattr(memory, "reset_peak", lambda _: setattr(gauge, "most", gauge.now))
        patch.setattr(memory, "peak_bytes", lambda _: gauge.most)
        patch.setattr(memory, "allocated_bytes", lambda _: gauge.now)
        assert graphs.capture(work)[2] == 600
    may_capture(calls_again([]))
    monkeypatch.setattr(memory, "peak_bytes", lambda _: 310)
    monkeypatch.setattr(memory, "allocated_bytes", lambda _: 300)
    _, records = trained(tmp_path, "epochs=1")
    assert [record["peak_memory_bytes"] for record in records if record["type"] == "epoch"] == [
        1300
    ]


def breaks(work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None], int]:
    work()
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


def is_stale(work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None], int]:
    """As of a model that chose in Python, when it was captured, what to compute."""
    return work().clone(), lambda: None, 0


@pytest.mark.parametrize(
    ("capture", "said"), [(breaks, "not permitted when stream is capturing"), (is_stale, "Python")]
)
def test_what_cannot_be_captured_is_launched_step_by_step(
    tmp_path: Path, may_capture: Callable[[Capture], None], capture: Capture, said: str
) -> None:
    plain, _ = trained(tmp_path / "plain")
    may_capture(capture)
    parameters, records = trained(tmp_path / "auto")
    assert torch.equal(parameters, plain)
    (warning,) = (record["message"] for record in records if record["type"] == "event")
    assert said in warning
    assert "\n" not in warning
    assert "graph=false" in warning
    with pytest.raises(ValueError, match=f"graph=true, but .*{said}"):
        trained(tmp_path / "true", "graph=true")


def test_a_capture_that_breaks_off_leaves_no_trace(
    tmp_path: Path, may_capture: Callable[[Capture], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one example, at which BatchNorm is told to go by its running statistics, too."""
    job = prepared(tmp_path, *TINY, "model=resnet18", "precision=fp32", "local_batch=4")
    kept, batch, random = (
        [job.vector.parameters, *job.model.buffers()],
        torch.arange(4),
        torch.get_rng_state(),
    )
    before = [tensor.clone() for tensor in kept]
    step.compute_passes(job, batch, batch, job.inputs.crops(0, seed=0))
    assert not all(map(torch.equal, before, kept)), "passes leave statistics"
    before = [tensor.clone() for tensor in kept]
    may_capture(breaks)
    told: list[str] = []
    assert graph_capture.captured(job, told.append)[0].graph is None
    assert told == [
        "the passes cannot be captured: operation not permitted when stream is capturing"
    ]
    assert all(map(torch.equal, before, kept))
    assert torch.equal(torch.get_rng_state(), random)
    monkeypatch.setattr(type(job.objective), "loss", lambda *_: breaks(lambda: torch.zeros(0)))
    with pytest.raises(RuntimeError):
        step.compute_passes(job, batch[:1], batch[:1], job.inputs.crops(0, seed=0))
    assert all(module.training for module in job.model.modules())


def test_one_worker_without_a_graph_leaves_all_without(
    tmp_path: Path, may_capture: Callable[[Capture], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = prepared(tmp_path, *SMALL)
    monkeypatch.setattr(job.strategy, "members", (0, 2))
    may_capture(calls_again([]))
    for reason, broke_off in (
        ("", False),
        ("there is not enough memory", True),
        ("it is slow", False),
    ):
        other = {"reason": reason, "broke_off": broke_off}
        monkeypatch.setattr(job.strategy, "gather_json", lambda own, other=other: [own, other])
        of_all, warnings = graph_capture.captured(job)
        assert bool(of_all.graph) == (not reason)
        assert [f"rank 2: {reason}" in warning.message for warning in warnings] == [
            True
        ] * broke_off


def test_an_impossible_graph_is_refused_and_an_optional_one_is_not(
    tmp_path: Path,
) -> None:
    for more in ("device=cpu", "launch.slowdown=[2]", "data.device=cpu"):
        with pytest.raises(ConfigError, match="graph=true with"):
            compose(*POINT, *SMALL, "graph=true", more)
    for strategy in (
        ("strategy=ddp", "launch=torchrun"),
        ("strategy=horovod", "strategy.buckets=2"),
    ):
        with pytest.raises(ConfigError, match="within the backward pass"):
            compose("local_batch=8", "graph=true", *strategy)
    job = prepared(tmp_path, *SMALL)
    assert graph_capture.captured(job) == (job, [])
    assert graph_capture.no_graph(job) == "there is no GPU"
    with pytest.raises(ValueError, match="there is no GPU"):
        graph_capture.captured(prepared(tmp_path, *SMALL, "graph=true"))
    ids = {
        compose(*POINT, *SMALL, *more).run_id for more in ((), ("graph=auto",), ("graph=false",))
    }
    assert len(ids) == 2


def test_without_nccl_gradients_travel_from_the_same_memory_at_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Horovod that doubles what it is given, and a vector on the CPU that is taken for a
    GPU's.
    """
    sent: list[int] = []

    def double(wire: Tensor, op: object, name: str) -> int:
        sent.append(wire.mul_(2).data_ptr())
        return 0

    strategy = Horovod.__new__(Horovod)
    monkeypatch.setattr(
        strategy, "_hvd", SimpleNamespace(allreduce_async_=double, synchronize=int), raising=False
    )
    monkeypatch.setattr(strategy, "meter", Meter(), raising=False)
    monkeypatch.setattr(strategy, "num_workers", 2, raising=False)
    for name, value in (("_operation", None), ("_through_host", True), ("_host", HostCopies())):
        monkeypatch.setattr(strategy, name, value, raising=False)
    for size in (5, 3, 5):
        gradients = torch.arange(size).float()
        strategy.all_reduce(gradients)
        assert gradients.tolist() == [2 * number for number in range(size)]
    assert sent[0] == sent[2] != sent[1]


@pytest.mark.parametrize(
    ("on_gpu", "num_cores", "asked", "expected"),
    [
        (True, 8, None, "0.1"),
        (True, 7, None, None),  # its thread would take the core of another worker
        (True, 8, "2", "2"),
        (False, 8, None, None),
    ],
)
def test_horovods_cycle_is_short_on_gpus_with_spare_cores(
    monkeypatch: pytest.MonkeyPatch,
    on_gpu: bool,
    num_cores: int,
    asked: str | None,
    expected: str | None,
) -> None:
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    if asked:
        monkeypatch.setenv("HOROVOD_CYCLE_TIME", asked)
    monkeypatch.setattr(horovod, "num_cores", lambda: num_cores)
    started: list[str | None] = []
    hvd = SimpleNamespace(init=lambda: started.append(os.environ.get("HOROVOD_CYCLE_TIME")))
    horovod._begin(hvd, on_gpu=on_gpu, local_workers=4)
    assert started == [expected]
    assert os.environ.get("HOROVOD_CYCLE_TIME") == asked, "Horovod may restart"


GPU = (
    "device=cuda",
    *IMAGES,
    "data.num_train=1000",
    "model=resnet18",
    "local_batch=64",
    "epochs=1",
)
MORE: tuple[tuple[str, ...], ...] = (
    (),
    ("precision=bf16",),
    ("model=vgg16", "accumulation_steps=2"),
)


@pytest.fixture
def same_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that add in the same order at each call, where there are any."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("more", [on_gpus(more) for more in MORE])
def test_a_gpus_graph_computes_what_its_kernels_do(
    tmp_path: Path, same_order: None, more: tuple[str, ...]
) -> None:
    """Three steps, dropout included; and takes as much memory, the optimizer's state included."""
    found, peaks = [], []
    for graph in ("true", "false"):
        folder = tmp_path / graph
        folder.mkdir()
        size = 64 * (2 if "accumulation_steps=2" in more else 1)
        config = compose(
            *POINT, *GPU, "precision=fp32", *more, f"graph={graph}", f"data.num_train={3 * size}"
        )
        job = worker.train(config, RunPaths(folder), Place())
        assert (job.graph is not None) == (graph == "true")
        found.append(
            torch.cat(
                [job.vector.parameters, *(b.reshape(-1).float() for b in job.model.buffers())]
            )
        )
        (epoch,) = (
            record
            for record in read_records(RunPaths(folder).metrics)[0]
            if record["type"] == "epoch"
        )
        peaks.append(epoch["peak_memory_bytes"])
    assert torch.equal(*found)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.1)


OF_THE_USER = """
import math
from torch import nn

class Waits(nn.Linear):
    def forward(self, images):
        return super().forward(images.flatten(1)) / images.square().mean().item()

def build(num_classes, shape):
    return Waits(math.prod(shape), num_classes)
"""


@pytest.mark.parametrize("device", ["cpu", on_gpus("cuda")])
def test_a_model_that_waits_for_the_device_trains_without_a_graph(
    tmp_path: Path, device: str
) -> None:
    (tmp_path / "mine.py").write_text(OF_THE_USER)
    words = (
        *TINY,
        "model=own",
        f"model.target={tmp_path / 'mine.py'}:build",
        f"device={device}",
        "precision=fp32",
    )
    worker.train(own.resolve(compose(*POINT, *words)), RunPaths(tmp_path), Place())
    start, *others = read_records(RunPaths(tmp_path).metrics)[0]
    assert others[-1]["status"] == "completed"
    assert start["graph"] is (False if device == "cuda" else None)
    assert ["cannot be captured" in one["message"] for one in others if one["type"] == "event"] == (
        [True] if device == "cuda" else []
    )


@pytest.mark.parametrize("graph", [on_gpus("true"), on_gpus("false")])
def test_a_gpus_step_never_waits_and_the_first_is_no_outlier(tmp_path: Path, graph: str) -> None:
    job = prepared(tmp_path, *GPU, f"graph={graph}")
    warm_up.make_steps(job)
    job, _ = graph_capture.captured(job)
    batch = torch.arange(64, device="cuda")
    clock = StepClock(job.device, [])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            with clock.step():
                step.train_step(job, batch, batch, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    seconds = clock.seconds()
    assert seconds[0] < 2 * statistics.median(seconds)
