"""Optimizers on the vector against plain torch on the model's tensors; rules and schedules against
their formulas.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from bsweep.config import user_code
from bsweep.config.optimizers import base_learning_rate
from bsweep.config.run import RunConfig
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.numerics import optim
from bsweep.numerics.restoring import restoring
from bsweep.numerics.vector import Vector
from tests.support.running import compose

import_torchvision()  # timm imports it, which takes seconds
_LARS, _LAMB = (importlib.import_module(f"timm.optim.{name}") for name in ("lars", "lamb"))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).double()


def train(model: nn.Module, optimizer: Optimizer, vector: Vector | None = None) -> torch.Tensor:
    torch.manual_seed(1)
    for _ in range(5):
        if vector:
            vector.zero_gradients()
        else:
            optimizer.zero_grad()
        model(torch.randn(16, 4, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def exempt_vectors(model: nn.Module) -> list[dict[str, object]]:
    return [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]


# What is typed, and the same optimizer on a plain model, with its decay for matrices or for all.
EQUAL: dict[str, Callable[[nn.Module], Optimizer]] = {
    "optimizer.nesterov=true optimizer.decay_norm_and_bias=true": lambda plain: SGD(
        plain.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True
    ),
    "optimizer.nesterov=false optimizer.decay_norm_and_bias=false": lambda plain: SGD(
        exempt_vectors(plain), lr=0.01, momentum=0.9
    ),
    "optimizer=adamw optimizer.decay_norm_and_bias=false": lambda plain: AdamW(
        exempt_vectors(plain), lr=0.01
    ),
    "optimizer=lars": lambda plain: _LARS.Lars(exempt_vectors(plain), lr=0.01, momentum=0.9),
    "optimizer=lamb": lambda plain: _LAMB.Lamb(exempt_vectors(plain), lr=0.01),
    "optimizer=own optimizer.target=torch.optim:RMSprop +optimizer.options.alpha=0.9": (
        lambda plain: RMSprop(plain.parameters(), lr=0.01, alpha=0.9, weight_decay=0.1)
    ),
}


@pytest.mark.parametrize("words", EQUAL)
def test_optimizers_on_the_vector_equal_those_on_a_plain_model(words: str) -> None:
    given = ("local_batch=8", "optimizer.lr=0.01", "optimizer.weight_decay=0.1")
    config = user_code.with_fingerprints(compose(*given, *words.split()))
    plain, model = make_model(), make_model()
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    vector = Vector(model)
    result = train(model, optim.build(config.optimizer, vector), vector)
    torch.testing.assert_close(result, train(plain, EQUAL[words](plain)), rtol=1e-9, atol=1e-12)
    assert float((result - start).abs().max()) > 1e-3, "the weights must have moved"


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("num_before", [0, 2])
def test_undone_steps_leave_no_trace(name: str, num_before: int) -> None:
    """Later steps are those of an optimizer that never made them."""
    found = []
    for undoes in (False, True):
        vector = Vector(make_model())
        optimizer = optim.build(compose("local_batch=8", f"optimizer={name}").optimizer, vector)
        torch.manual_seed(1)
        for number in range(5):
            vector.gradients.normal_()
            if undoes and number == num_before:
                with restoring(nn.Module(), torch.device("cpu"), optimizer=optimizer):
                    optimizer.step()
                    optimizer.step()
            optimizer.step()
        found.append(vector.parameters.clone())
    assert torch.equal(*found)


def base_rate(config: RunConfig, rank: int = 0) -> float | None:
    return base_learning_rate(config, config.rate_batch(rank))


def rates(schedule: str, *epochs: float, more: tuple[str, ...] = ()) -> list[float]:
    config = compose(
        "local_batch=8", "epochs=10", "optimizer.lr=1.0", f"optimizer.schedule={schedule}", *more
    )
    return [optim.learning_rate(config, epoch, 8) for epoch in epochs]


def test_schedules() -> None:
    warm = ("optimizer.warmup_epochs=2",)
    assert rates("constant", 0.5, 1, 2, 9.9, more=warm) == pytest.approx([0.25, 0.5, 1, 1])
    assert rates("cosine", 2, 6, 10, more=warm) == pytest.approx([1, 0.5, 0])
    assert rates("multistep", 3.9, 4, 8, more=("optimizer.milestones=[4,8]",)) == pytest.approx(
        [1, 0.1, 0.01]
    )
    assert rates("one_cycle", 0, 3, 10) == pytest.approx([0.04, 1, 0])


def test_rules_go_by_the_batch_or_where_workers_step_alone_by_their_own() -> None:
    words = "num_workers=2 local_batch=4 allocation.local_batches=[4,16] optimizer.lr=0.1"
    uneven = (*words.split(), "optimizer.reference_batch=4")
    alone = compose("strategy=diloco", *uneven, "optimizer.lr_rule=sqrt")
    assert [base_rate(alone, rank) for rank in (0, 1)] == pytest.approx([0.1, 0.2])
    together = compose("strategy=allreduce", *uneven, "optimizer.lr_rule=linear")
    assert [base_rate(together, rank) for rank in (0, 1)] == pytest.approx([0.5, 0.5])
    paper, linear = (
        compose(f"experiment={name}", "local_batch=128") for name in ("paper", "paper_linear")
    )
    assert base_rate(paper) == base_rate(linear) == pytest.approx(0.4)
