"""What a step costs the host, that it never waits for the device, and that a warm-up and a graph
change no number.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from bsweep.launch import inline
from bsweep.numerics import graphs, optim
from bsweep.numerics.precision import AUTOCAST
from bsweep.numerics.timing import StepClock
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.strategies import horovod
from bsweep.train import graph_capture, peers_check, step, warm_up, worker
from bsweep.train.job import Job
from tests.launch.test_failures import ACCELERATOR_ERROR
from tests.support.gpus import on_gpus
from tests.support.operations import Operations
from tests.support.running import TINY, recorded
from tests.support.training import set_up, train

IMAGES = ("data=synthetic", "data.num_train=64", "data.num_test=8", "data.shape=[3,32,32]")
POINT = ("local_batch=8", "epochs=2")


def prepared(folder: Path, *overrides: str) -> Job:
    return set_up(folder, *POINT, *overrides)


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
    return prepared(folder, "data.device=cuda", *overrides)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("model", ["resnet18", "tiny_cnn"])
def test_images_that_are_rounded_at_once_give_the_gradients_of_autocast(
    tmp_path: Path, model: str, precision: str
) -> None:
    job = prepared(tmp_path, *IMAGES, f"model={model}", f"precision={precision}")
    batch, crops, found = torch.arange(4), job.inputs.crops(1, seed=0), []
    with job.autocast():
        images, _ = job.inputs.training(batch, crops)
    assert images.dtype == AUTOCAST[precision]
    assert images.is_contiguous(memory_format=job.inputs.layout)
    for may_round in (True, False):
        inputs = replace(job.inputs, may_round=may_round)
        with job.restoring():
            step.compute_passes(replace(job, inputs=inputs), batch, batch, crops)
        found.append(job.vector.gradients.nan_to_num(0, 0, 0))
    assert found[0].any()
    assert torch.equal(*found)


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ("model=resnet18",),
        ("model=tiny_cnn", "accumulation_steps=2"),
        ("model=resnet18", "measure.noise_scale=true"),
        ("model=resnet18", "measure.noise_scale=true", "accumulation_steps=2"),
    ],
)
def test_no_step_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    job = on_meta(*IMAGES, "precision=fp32", *words, folder=tmp_path, monkeypatch=monkeypatch)
    num_passes = job.config.accumulation_steps
    batch = torch.arange(8 * num_passes, device="meta")
    with Operations() as operations:
        if job.noise:
            job.noise.begin_step(job.policy.shares(0), len(batch), 0, False)
        step.train_step(job, batch, batch, job.inputs.crops(1, job.config.seed), num_passes)
    assert operations.launched
    assert not operations.waited


SMALL = (
    *TINY,
    "model=tiny_cnn",
    "precision=fp64",
    "local_batch=32",
    "optimizer.schedule=cosine",
    "optimizer.lr=0.5",
)


def trained(folder: Path, *overrides: str) -> Tensor:
    """The parameters after two epochs of two full steps and a tail each."""
    return train(folder, *POINT, *SMALL, *overrides).vector.parameters.clone()


def test_rates_of_steps_count_the_steps_since_the_last_record(tmp_path: Path) -> None:
    folder = train(tmp_path, *POINT, *SMALL, "log_every_steps=2").paths.folder
    *_, two, last = recorded(folder, "step")
    num_tail = round((last["epochs_done"] - two["epochs_done"]) * 90)
    seconds = 64 / two["images_per_second"] + num_tail / last["images_per_second"]
    assert seconds == pytest.approx(recorded(folder, "epoch")[-1]["train_seconds"])


Capture = Callable[[Callable[[], object], object], graphs.Captured]


def calls_again(replays: list[object]) -> Capture:
    """In place of a capture: what computes the work anew calls it again, and counts that, by the
    number of graphs in whose memory it is, of 1000 bytes.
    """

    def capture(work: Callable[[], object], pool: object) -> graphs.Captured:
        work()
        shared = [*pool, work] if isinstance(pool, list) else [work]

        def replay() -> None:
            replays.append(len(shared))
            work()

        return graphs.Captured(replay, 1000 // len(shared), shared)

    return capture


@pytest.fixture
def may_capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[Capture], None]:
    """Graphs on the CPU, by something in place of a capture."""

    def use(capture: Capture) -> None:
        monkeypatch.setattr(graph_capture, "may_capture", lambda _: True)
        monkeypatch.setattr(graph_capture, "_broken", [])
        monkeypatch.setattr(graphs, "capture", capture)

    return use


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("more", "of_run"),
    [
        ((), [1, 1, 2, 1, 1, 2]),
        (("accumulation_steps=2", "optimizer=adamw", "optimizer.lr=0.1"), [1, 2, 1, 2]),
        (("batching=schedule", "batching.every_epochs=1"), [1, 1, 2]),  # the second without graphs
    ],
)
def test_steps_of_a_graph_are_those_without(
    tmp_path: Path,
    may_capture: Callable[[Capture], None],
    more: tuple[str, ...],
    of_run: list[int],
) -> None:
    """The examples, their crops in each epoch, and the rate reach it; the tail's graph is in the
    memory of the other.
    """
    replays: list[object] = []
    plain = trained(tmp_path / "plain", *more)
    may_capture(calls_again(replays))
    replayed = trained(tmp_path / "graph", *more)
    assert torch.equal(plain, replayed)
    assert replays == [1, 2, *of_run], "one each to compare, and those of two epochs"
    losses = [
        [epoch["train_loss"] for epoch in recorded(tmp_path / run, "epoch")]
        for run in ("plain", "graph")
    ]
    assert losses[0] == losses[1]


def breaks(work: Callable[[], object], pool: object) -> graphs.Captured:
    work()
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


def is_full_for_cuda(work: Callable[[], object], pool: object) -> graphs.Captured:
    """As when the graph itself finds no memory: the allocator does not know of it."""
    work()
    raise ACCELERATOR_ERROR("CUDA error: out of memory\nand more")


def is_stale(work: Callable[[], object], pool: object) -> graphs.Captured:
    """As of a model that chose in Python, when it was captured, what to compute."""
    work()
    return graphs.Captured(lambda: None, 0, None)


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("capture", "said", "loses_memory"),
    [
        (breaks, "not permitted when stream is capturing", False),
        (is_stale, "Python", False),
        (is_full_for_cuda, "out of memory", True),
    ],
)
def test_what_cannot_be_captured_is_launched_step_by_step(
    tmp_path: Path,
    may_capture: Callable[[Capture], None],
    capture: Capture,
    said: str,
    loses_memory: bool,
) -> None:
    plain = trained(tmp_path / "plain")
    may_capture(capture)
    assert torch.equal(trained(tmp_path / "graph"), plain)
    (warning,) = (event["message"] for event in recorded(tmp_path / "graph", "event"))
    assert said in warning
    assert "\n" not in warning
    assert "graph=false" in warning
    assert bool(graph_capture.lost_memory()) == loses_memory
    if loses_memory:
        unfit = inline.refusal()  # of the next point of this process
        assert unfit
        assert unfit.status == "interrupted"
        assert "type the same command again" in unfit.message


@pytest.mark.full
def test_a_capture_that_breaks_off_leaves_no_trace_and_is_not_tried_again(
    tmp_path: Path, may_capture: Callable[[Capture], None]
) -> None:
    """Each capture that breaks off would cost memory for good."""
    tried: list[int] = []

    def tries(work: Callable[[], object], pool: object) -> graphs.Captured:
        tried.append(1)
        return breaks(work, pool)

    job = prepared(tmp_path, *TINY, "model=resnet18", "precision=fp32", "local_batch=4")
    kept, batch = [job.vector.parameters, *job.model.buffers()], torch.arange(4)
    random, before = torch.get_rng_state(), [tensor.clone() for tensor in kept]
    step.compute_passes(job, batch, batch, job.inputs.crops(0, seed=0))
    assert not all(map(torch.equal, before, kept)), "passes leave statistics"
    before = [tensor.clone() for tensor in kept]
    may_capture(tries)
    first, second = (graph_capture.capture(job) for _ in range(2))
    assert job.graphs is None
    assert all(map(torch.equal, before, kept))
    assert torch.equal(torch.get_rng_state(), random)
    assert len(tried) == 1
    assert "earlier in this process" not in first[0].message
    assert "earlier in this process" in second[0].message
    assert "not permitted when stream is capturing" in second[0].message
    assert graph_capture.broken_capture(), "the process should train no other point"
    assert not graph_capture.lost_memory()


def test_one_worker_without_a_graph_leaves_all_without(
    tmp_path: Path, may_capture: Callable[[Capture], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = prepared(tmp_path, *SMALL)
    may_capture(calls_again([]))
    for outcome, reason, is_said in (
        (graph_capture._CAPTURED, "", False),
        (graph_capture._FAILED, "there is not enough memory", True),
        (graph_capture._NOT_TRIED, "", False),
    ):
        other = {"outcome": outcome, "reason": reason}
        monkeypatch.setattr(job.strategy, "gather_json", lambda own, other=other: [own, other])
        warnings = graph_capture.capture(job)
        assert bool(job.graphs) == (outcome == graph_capture._CAPTURED)
        assert [f"rank 1: {reason}" in warning.message for warning in warnings] == [True] * is_said


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


@pytest.fixture
def same_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that add in the same order at each call, where there are any."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "more",
    [on_gpus(more) for more in ((), ("precision=bf16",), ("model=vgg16", "accumulation_steps=2"))],
)
def test_a_gpus_graph_computes_what_its_kernels_do(
    tmp_path: Path, same_order: None, more: tuple[str, ...]
) -> None:
    """Three steps and a smaller last one, dropout included; and takes as much memory, the
    optimizer's state included.
    """
    found, peaks = [], []
    for graph in ("true", "false"):
        size = 64 * (2 if "accumulation_steps=2" in more else 1)
        sized = (f"graph={graph}", f"data.num_train={3 * size + 5}")
        job = train(tmp_path / graph, *POINT, *GPU, "precision=fp32", *more, *sized)
        assert (job.graphs is not None) == (graph == "true")
        found.append(
            torch.cat(
                [job.vector.parameters, *(b.reshape(-1).float() for b in job.model.buffers())]
            )
        )
        (epoch,) = recorded(tmp_path / graph, "epoch")
        peaks.append(epoch["peak_memory_bytes"])
    assert torch.equal(*found)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.1)


OF_THE_USER = """
import math
from torch import nn
from torch.nn.functional import dropout

class Waits(nn.Linear):
    def forward(self, images):
        return dropout(super().forward(images.flatten(1))) / images.square().mean().item()

def build(num_classes, shape):
    return Waits(math.prod(shape), num_classes)
"""


@pytest.mark.parametrize("device", ["cpu", on_gpus("cuda")])
def test_a_model_that_waits_for_the_device_trains_without_a_graph(
    tmp_path: Path, device: str
) -> None:
    (tmp_path / "mine.py").write_text(OF_THE_USER)
    words = ("model=own", f"model.target={tmp_path / 'mine.py'}:build", f"device={device}")
    train(tmp_path, *POINT, *TINY, *words, "precision=fp32")
    start, *others = read_records(RunPaths(tmp_path).metrics)[0]
    assert others[-1]["status"] == "completed"
    assert start["graph"] is (False if device == "cuda" else None)
    assert ["cannot be captured" in one["message"] for one in others if one["type"] == "event"] == (
        [True] if device == "cuda" else []
    )


SHIFTED_LOSS = """
import math
from torch import nn, zeros
from torch.nn import functional as F

class Shifted(nn.Sequential):
    def __init__(self, size, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(size, num_classes))
        self.shift = nn.Parameter(zeros(1))

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum") + self.shift.squeeze()

def build(num_classes, shape):
    return Shifted(math.prod(shape), num_classes)
"""


@pytest.mark.parametrize("num_passes", [1, 2, 4])
def test_a_loss_that_is_a_view_of_a_parameter_scales_no_step(
    tmp_path: Path, num_passes: int
) -> None:
    """The gradient of such a parameter is a view of the factor from which a pass goes back."""
    (tmp_path / "mine.py").write_text(SHIFTED_LOSS)
    words = ("model=own", f"model.target={tmp_path / 'mine.py'}:build", "precision=fp32")
    job = prepared(tmp_path, *TINY, *words)
    batch = torch.arange(8)
    found = []
    for _ in range(3):
        step.compute_passes(job, batch, batch, job.inputs.crops(0, 0), num_passes)
        found.append(job.vector.gradients.clone())
    assert all(torch.equal(found[0], one) for one in found[1:])


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "words", [on_gpus(words) for words in ((), ("graph=false",), ("precision=fp16",))]
)
def test_a_gpus_step_never_waits_and_the_first_is_no_outlier(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    job = prepared(tmp_path, *GPU, *words)
    warm_up.make_steps(job)
    graph_capture.capture(job)
    batch = torch.arange(64, device="cuda")
    clock = StepClock(job.device, [])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            with clock.step():
                step.train_step(job, batch, batch, job.inputs.crops(1, job.config.seed))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    seconds = clock.seconds()
    assert seconds[0] < 2 * statistics.median(seconds)


@pytest.mark.parametrize(("policy", "stays"), [("schedule", False), ("goodput", True)])
def test_graphs_go_when_a_policy_leaves_their_batch_for_good(
    tmp_path: Path, may_capture: Callable[[Capture], None], policy: str, stays: bool
) -> None:
    may_capture(calls_again([]))
    job = prepared(tmp_path, *SMALL, f"batching={policy}")
    graph_capture.capture(job)
    assert job.graphs
    configured = job.policy.shares(0.0)
    graph_capture.drop_left(job, configured)
    assert job.graphs.replay_bytes == 1000
    graph_capture.drop_left(job, job.policy.of_batches([16]))
    assert bool(job.graphs) == stays
    assert job.graphs.replay_bytes == 1000 * stays
