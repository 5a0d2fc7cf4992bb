"""Optimizers, policies, strategies and codecs of the user's own, alone and all together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config
from bsweep.config.user_code import UserCode
from bsweep.config.values import ConfigError
from bsweep.numerics import optim
from bsweep.numerics.vector import Vector
from bsweep.study import checks
from bsweep.train import warm_up
from tests.numerics.test_optim import make_model
from tests.support.running import TINY, compose, ran_ok
from tests.support.training import set_up, train

PARTS = """\
import torch
from bsweep.batching import Policy
from bsweep.compression import Codec
from bsweep.strategies import Rounds, Strategy
from bsweep.strategies.allreduce import AllReduce
from bsweep.strategies.single import Single

class Net(torch.nn.Sequential):
    def __init__(self, num_classes, shape):
        last = torch.nn.Linear(shape[0] * shape[1] * shape[2], num_classes)
        super().__init__(torch.nn.Flatten(), last)

def numbers():
    inputs = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    targets = inputs @ torch.ones(5, 2) + 1
    return (inputs[:40], targets[:40]), (inputs[40:], targets[40:])

class Regression(torch.nn.Linear):
    def __init__(self, num_classes, shape):
        super().__init__(*shape, num_classes)

    def loss(self, outputs, targets):
        return torch.nn.functional.mse_loss(outputs, targets, reduction="sum")

class Begun(Strategy):
    def step(self):
        pass

class Sum(AllReduce):
    def __init__(self, config, strategy, place, paths, scale):
        super().__init__(config, strategy, place, paths)
        self.scale = scale

    def exchange(self):
        super().exchange()
        self._vector.gradients.mul_(self.scale)

class Clamped(Codec):
    def __init__(self, config, setting, limit):
        self.limit = limit

    def exchange(self, gradients, group):
        gradients.clamp_(-self.limit, self.limit)
        group.all_reduce(gradients)

class Alone(Single):
    pass

class Meeting(Rounds, Single):
    averages = True

    def end_round(self, epoch, sums, num_examples, ends_epoch):
        pass

class Dropping(Single):
    def step(self):
        super().step()
        self._optimizer.zero_grad()

class Shapes(torch.optim.SGD):
    def __init__(self, parameters, lr, seen=()):
        super().__init__(parameters, lr)
        self.shapes = [tuple(p.shape) for group in self.param_groups for p in group["params"]]

def no_optimizer(parameters, lr):
    return parameters

class NoRate(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"rate": lr})

class Growing(Policy):
    def __init__(self, config, times=2):
        super().__init__(config)
        self.times = times

    def shares(self, epochs_done):
        times = self.times if epochs_done >= 1 else 1
        return self.of_global_batch(self.config.examples_per_step * times)
"""

OWN = "strategy=own strategy.target"
ALONE = f"{OWN}=parts.py:Alone"
BATCHING = "batching=own batching.target"
OPTIMIZER = "optimizer=own optimizer.target"
SGD = f"{OPTIMIZER}=torch.optim:SGD +optimizer.options"
SERVERS = "num_workers=4 strategy=parameter_server strategy.sharding=memory"
ADAPTED = "num_workers=2 strategy=diloco allocation=steps_by_speed allocation.adapt_every=2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to start in, with parts in a file."""
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resolved(*overrides: str) -> RunConfig:
    return user_code.with_fingerprints(
        compose("local_batch=8", "model=tiny_cnn", *TINY, *overrides)
    )


def test_an_optimizer_sees_one_long_parameter_or_the_layers() -> None:
    for by_layer, shapes in (
        ("false", [(74,)]),
        ("true", [(8, 4), (2, 8), (8,), (8,), (8,), (2,)]),
    ):
        config = resolved(
            "optimizer=own", "optimizer.target=parts.py:Shapes", f"optimizer.by_layer={by_layer}"
        )
        optimizer = optim.build(config.optimizer, Vector(make_model()))
        assert vars(optimizer)["shapes"] == shapes
        optim.set_learning_rate(optimizer, 0.5)
        assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{OPTIMIZER}=parts.py:no_optimizer", "returned list, not a torch.optim"),
        (f"{OPTIMIZER}=parts.py:NoRate", "param_groups have no 'lr'"),
        (f"{SGD}.nesterov=1", "error(.|\n)*ValueError"),
        (f"{SGD}.weight_decay=1", "give optimizer.weight_decay="),
        (f"{OPTIMIZER}=parts.py:Shapes optimizer.by_layer=true {SERVERS}", "it needs whole layers"),
        (f"{BATCHING}=parts.py:Growing {ADAPTED}", "both would set the local steps"),
        (f"{OWN}=parts.py:Begun", "Begun lacks gather, prepare: write"),
        (f"{OWN}=parts.py:Sum +strategy.options.scale=1 launch=inline", "that torchrun starts"),
        (f"{ALONE} compression=topk", "Alone takes no codec"),
        (f"{ALONE} launch=horovodrun", "Use launch=torchrun"),
    ],
)
def test_what_is_none_is_said_before_anything_starts(words: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        checks.check_point(resolved(*words.split()))


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])  # of one long parameter, and of tensors
def test_a_step_that_drops_gradients_is_refused(
    folder: Path, tmp_path: Path, optimizer: str
) -> None:
    words = ("strategy=own", "strategy.target=parts.py:Dropping", f"optimizer={optimizer}")
    job = set_up(tmp_path / "run", "local_batch=8", "model=tiny_cnn", *TINY, *words)
    with pytest.raises(ValueError, match="leave zero_grad"):
        warm_up.make_steps(job)


def test_steps_within_a_round_are_as_large_as_steps_that_each_synchronise(
    folder: Path, tmp_path: Path
) -> None:
    """The same steps, of 32, 32 and 26 examples, in rounds of one and of up to two."""
    point = ("local_batch=32", "model=tiny_cnn", "precision=fp64", "epochs=2", *TINY)
    meeting = ("strategy=own", "strategy.target=parts.py:Meeting", "strategy.sync_every=2")
    alone = train(tmp_path / "alone", *point).vector.parameters.clone()
    in_rounds = train(tmp_path / "rounds", *point, *meeting).vector.parameters
    torch.testing.assert_close(in_rounds, alone, rtol=1e-12, atol=0)


@pytest.mark.full
def test_two_workers_train_with_parts_of_ones_own_alone(folder: Path) -> None:
    """Gradients twice as large at half the rate come to the same as with the shipped ones, but for
    what is clamped.
    """
    words = "num_workers=2 local_batch=8 epochs=1 model=own model.target=parts.py:Net study=s"
    point = (*TINY, *words.split())
    shipped = "strategy=allreduce optimizer.lr=0.1 optimizer.momentum=0"
    own = (
        f"{OPTIMIZER}=parts.py:Shapes optimizer.lr=0.05 "
        f"{BATCHING}=parts.py:Growing batching.options.times=1 "
        "strategy=own strategy.target=parts.py:Sum strategy.options.scale=2 "
        "compression=own compression.target=parts.py:Clamped compression.options.limit=9.0,0.001"
    )
    for typed in (shipped, own):
        ran_ok("run", "-m", *point, *typed.split(), cwd=folder)
    losses = {}
    for path in (folder / "results/s").glob("*/summary.json"):
        codec = read_config(path.with_name("config.yaml")).compression
        limit = codec.options["limit"] if isinstance(codec, UserCode) else None
        losses[limit] = json.loads(path.read_text())["train_loss"]
    assert losses[9.0] == pytest.approx(losses[None], rel=1e-5)
    assert abs(losses[0.001] - losses[9.0]) > 0.01


@pytest.mark.full
def test_a_regression_is_reported_by_its_loss_alone(folder: Path) -> None:
    """Two numbers an example, of which nobody says whether they are correct: every accuracy is
    null.
    """
    parts = "data=own data.target=parts.py:numbers model=own model.target=parts.py:Regression"
    point = "local_batch=8 strategy=single launch=inline epochs=3 optimizer.lr=0.05 study=s"
    ran_ok("run", "--report", "-m", *parts.split(), *point.split(), "seed=0,1", cwd=folder)
    for path in (folder / "results/s").glob("*/summary.json"):
        end = json.loads(path.read_text())
        assert end["train_accuracy"] is None
        assert end["test_accuracy"] is None
        assert 0 < end["test_loss"] < 2 < end["images_per_second"]
        assert end["num_steps"] == 15
    figures = {path.stem for path in (folder / "results/s/report").rglob("*.svg")}
    assert {"loss_by_epoch", "accuracy_and_loss_by_batch"} <= figures
    assert not {"accuracy_by_epoch", "accuracy_by_time"} & figures
