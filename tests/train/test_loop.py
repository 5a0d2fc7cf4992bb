"""What the loop and the step tell of gradients, and what of a run's place a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bsweep.core.ranks import Place
from bsweep.runlog.files import RunPaths
from bsweep.train import loop, worker
from bsweep.train.cursor import Cursor
from bsweep.train.noise_meter import NoiseMeter
from tests.support.running import TINY, compose


class Told(NoiseMeter):
    """Writes down what it is told of."""

    def __init__(self) -> None:
        self.words: list[object] = []

    @property
    def needs_passes(self) -> bool:
        return False

    def begin_step(self, *of_step: Any, **more: Any) -> None:
        self.words.append("begin")

    def before_passes(self, pass_on_halves: Callable[[], None]) -> None:
        self.words.append("passes")

    def after_pass(self, num_examples: int) -> None:
        self.words.append(num_examples)

    def before_exchange(self) -> None:
        self.words.append("exchange")

    def after_step(self) -> None:
        self.words.append("end")

    def record(self, gather: object) -> None:
        return None

    def estimate(self) -> None:
        return None


def test_a_meter_is_told_of_each_step_in_order_and_changes_no_number(tmp_path: Path) -> None:
    """Of 90 examples: two steps of three passes, and a tail."""
    words = ("launch=inline", "strategy=single", "model=tiny_cnn", "precision=fp32", "epochs=1")
    config = compose(*words, *TINY, "local_batch=14", "accumulation_steps=3")
    told, parameters = Told(), []
    for number, meter in enumerate((told, None)):
        paths = RunPaths(tmp_path / str(number))
        paths.folder.mkdir()
        job = replace(worker.set_up(config, paths, Place()), noise=meter)
        with job.log:
            loop.train(job, None)
        parameters.append(job.vector.parameters.clone())
    passes = ([14] * 3, [14] * 3, [2] * 3)
    assert told.words == [
        word for own in passes for word in ("begin", "passes", *own, "exchange", "end")
    ]
    assert torch.equal(*parameters)


def test_a_cursor_goes_on_from_what_it_shared() -> None:
    cursor = Cursor.of(torch.device("cpu"), 90)
    cursor.begin_epoch()
    cursor.position, cursor.step_seconds = 45, [0.5, 1.5]
    cursor.add_evaluation((None, 0.5), "reached")
    again = Cursor.of(torch.device("cpu"), 90, **cursor.shared())
    assert again.shared() == cursor.shared()
    assert (again.epochs_done(), again.num_examples, again.ends_epoch) == (1.5, 135, False)
    assert again.evaluated_examples == 135
    assert again.epochs_done(45) == 2
    again.begin_epoch()
    assert (again.epoch, again.position, again.train_seconds) == (3, 0, 2.0)
