"""Examples that do not fit on the device: the same bits, fetched ahead of their step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from bsweep import data
from bsweep.data import dataset as datasets
from bsweep.data import plan
from bsweep.data.dataset import Dataset, Part, placed
from tests.data.test_data import SYNTHETIC
from tests.support.gpus import on_gpus
from tests.support.running import TINY, recorded
from tests.support.training import train

CPU, OTHER = torch.device("cpu"), torch.device("cpu", 0)
"""The second is no other device, but not equal to the first: examples are streamed to it as to a
GPU.
"""


class Executor(ThreadPoolExecutor):
    """An executor that counts its calls."""

    made: ClassVar[list[Executor]] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made[:], self.num_submitted = [self], 0

    def submit(self, *arguments: Any) -> Any:  # type: ignore[override]
        self.num_submitted += 1
        return super().submit(*arguments)


def some_part(device: torch.device, count: int = 40) -> tuple[Part, torch.Tensor]:
    images = torch.arange(count * 12).view(count, 3, 2, 2).to(torch.uint8)
    return Part(images, torch.arange(count) % 7, device), images


def check(part: Part, images: torch.Tensor, indices: torch.Tensor) -> None:
    inputs, labels, numbers = (tensor.cpu() for tensor in part.take(indices))
    assert torch.equal(inputs, images[indices])
    assert torch.equal(labels, indices % 7)
    assert torch.equal(numbers, indices)


@pytest.mark.parametrize("device", [OTHER, on_gpus(torch.device("cuda", 0))])
@pytest.mark.parametrize("num_passes", [1, 3])
def test_streamed_steps_are_those_that_were_asked_for(
    device: torch.device, num_passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "ThreadPoolExecutor", Executor)
    part, images = some_part(device)
    (executor,), num_steps = Executor.made, 5
    assert part.streams
    steps = list(plan.epoch_order(40, seed=0, epoch=1).split(9))
    for number, step in enumerate(steps):
        part.expect(steps[number : number + 2])
        for i in (*range(num_passes), 0):
            check(part, images, plan.even_part(step, i, num_passes))
        assert executor.num_submitted == min(number + 2, num_steps), "each step once"


def test_what_was_not_expected_is_fetched_all_the_same() -> None:
    part, images = some_part(OTHER)
    part.expect([torch.arange(4), torch.arange(4, 8)])
    for indices in (
        torch.tensor([9, 9, 1]),
        torch.arange(4),
        torch.arange(4),
        torch.tensor([], dtype=torch.int64),
    ):
        check(part, images, indices)
    part.expect([torch.tensor([], dtype=torch.int64), torch.arange(30)])
    check(part, images, torch.arange(30))
    resident, images = some_part(CPU)
    resident.expect([torch.arange(4)])
    assert not resident.streams
    check(resident, images, torch.arange(4))


def synthetic() -> Dataset:
    config = replace(SYNTHETIC, shape=(3, 4, 4), num_classes=2, num_train=90, num_test=10)
    return data.load(config, CPU)


@pytest.mark.parametrize(
    ("free", "wanted", "streams"),
    [
        (10**6, "auto", (False, False)),
        (10_000, "auto", (True, False)),
        (100, "auto", (True, True)),
        (10**6, "cpu", (True, True)),
        (100, "cuda", (False, False)),
    ],
)
def test_what_fits_is_kept_on_the_device(
    free: int, wanted: str, streams: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 90 x (48 + 8) and 10 x (48 + 8) bytes, half of what is free."""
    monkeypatch.setattr(datasets, "free_bytes", lambda device: free)
    meta = placed(synthetic(), torch.device("meta"), wanted)  # type: ignore[arg-type]
    on_device = tuple(
        tensor.device.type == "meta" for tensor in (meta.train.labels, meta.test.labels)
    )
    assert on_device == tuple(not part for part in streams)
    assert meta.mean is not None
    assert meta.mean.device.type == "meta"
    assert meta.train.inputs.device == meta.train.labels.device


def test_on_a_cpu_all_stays_where_it_is_mapped() -> None:
    dataset = synthetic()
    for wanted in ("auto", "cpu", "cuda"):
        again = placed(dataset, CPU, wanted)
        assert again.train.inputs is dataset.train.inputs
        assert not again.train.streams
        assert not again.test.streams


POINT = (*TINY, "model=tiny_cnn", "local_batch=8", "accumulation_steps=2", "epochs=2")


def on_the_other_device(dataset: Dataset, *_: object) -> Dataset:
    train, test = (Part(part.inputs, part.labels, OTHER) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test)


def test_a_run_on_streamed_examples_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losses(name: str) -> list[float]:
        return [epoch["test_loss"] for epoch in recorded(tmp_path / name, "epoch")]

    resident = train(tmp_path / "resident", *POINT, "data.flip=true")
    monkeypatch.setattr(datasets, "placed", on_the_other_device)
    streamed = train(tmp_path / "streamed", *POINT, "data.flip=true")
    assert not resident.dataset.train.streams
    assert streamed.dataset.train.streams
    assert torch.equal(streamed.vector.parameters, resident.vector.parameters)
    assert losses("resident") == losses("streamed")
    assert len(losses("resident")) == 2


@pytest.mark.parametrize("device", [on_gpus("cuda")])
def test_a_gpu_that_streams_reaches_the_weights_of_one_that_keeps_all(
    tmp_path: Path, device: str
) -> None:
    point = (*POINT, f"device={device}", "precision=fp64")
    cuda, cpu = (train(tmp_path / name, *point, f"data.device={name}") for name in ("cuda", "cpu"))
    assert cpu.dataset.train.streams
    assert cpu.dataset.test.streams
    assert not cuda.dataset.train.streams
    torch.testing.assert_close(cuda.vector.parameters, cpu.vector.parameters, rtol=1e-9, atol=1e-12)
