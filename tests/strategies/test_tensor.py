"""Workers that compute parts of layers (`strategy=tensor`) end with the weights of one worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep import models
from bsweep.config import own
from bsweep.config.models import LlamaConfig
from bsweep.config.values import ConfigError
from bsweep.models import plans
from tests.strategies.test_equivalence import (  # noqa: F401 (the fixture ends the processes)
    DIVIDED,
    TEXT_CONTRACT,
    _end_processes,
    oracle,
    trained,
)
from tests.support.running import ROOT, TINY, bsweep, compose, write_text

DROPPING = ("model=own", f"model.target={ROOT}/tests/support/divided_network.py:dropping")
BATCH = ("local_batch=null", "global_batch=24")
SCORES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
# Three workers share 256 words unevenly.
THREE_HEADS = ("model.num_heads=3", "model.hidden_size=48", "model.intermediate_size=96")
LAMB = ("optimizer=lamb", "optimizer.lr=0.01")
LARS = ("optimizer=lars", "optimizer.lr=1")


def contract(tmp_path: Path) -> tuple[str, ...]:
    # 91 sequences and the byte after them.
    return (*TEXT_CONTRACT, f"data.path={write_text(tmp_path / 'text.txt', 1618)}")


def assert_equal(workers: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert expected["moved"] > 0.005
    for worker in workers:
        torch.testing.assert_close(
            worker["parameters"], expected["parameters"], rtol=1e-9, atol=1e-11
        )
        for key in SCORES:
            one, many = ([epoch[key] for epoch in run["epochs"]] for run in (expected, worker))
            assert many == pytest.approx(one, rel=1e-9)


@pytest.mark.full
@pytest.mark.parametrize(
    ("num_workers", "replicas", "more"),
    [
        (1, 1, ()),
        (2, 1, ()),
        (4, 1, ("accumulation_steps=2",)),
        pytest.param(4, 2, (), marks=pytest.mark.full),
        (3, 1, THREE_HEADS),
        (2, 1, ("global_batch=30",)),  # The last step has one sequence.
        pytest.param(2, 1, LAMB, marks=pytest.mark.full),
        pytest.param(2, 1, LARS, marks=pytest.mark.full),
        (4, 2, LAMB),
    ],
)
def test_workers_reach_one_workers_language_model(
    tmp_path: Path, num_workers: int, replicas: int, more: tuple[str, ...]
) -> None:
    text = contract(tmp_path)
    how = ("strategy=tensor", f"strategy.replicas={replicas}", *BATCH, *more)
    alone = (o for o in more if not o.startswith("accumulation"))
    (expected,) = trained(1, "strategy=single", *BATCH, *alone, contract=text)
    assert_equal(trained(num_workers, *how, contract=text), expected)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", [LAMB, LARS])
def test_norms_are_those_of_whole_layers(optimizer: tuple[str, ...]) -> None:
    workers = trained(4, "strategy=tensor", "strategy.replicas=2", *DIVIDED, *optimizer)
    assert_equal(workers, oracle(16, *DIVIDED, *optimizer))


@pytest.mark.full
def test_biases_of_joined_layers_are_no_matrices() -> None:
    target = f"model.target={ROOT}/tests/support/divided_network.py:Joined"
    words = ("model=own", target, "optimizer.decay_norm_and_bias=false", *LAMB, "global_batch=24")
    assert_equal(trained(2, "strategy=tensor", *words), oracle(24, *words[:-1]))


def test_a_parameter_between_shared_layers_is_refused(tmp_path: Path) -> None:
    target = f"model.target={ROOT}/tests/support/divided_network.py:learning_slope"
    point = (*TINY, "model=own", target, "strategy=tensor", "num_workers=2", "local_batch=8")
    result = bsweep("run", *point, cwd=tmp_path)
    assert result.returncode == 2
    assert "3.weight of the model lies between layers" in result.stderr, result.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "words",
    [
        DROPPING,
        ("model=own", f"model.target={ROOT}/tests/support/divided_network.py:Joined"),
        ("model=llama_tiny", "data=text", "data.path=x"),
    ],
)
def test_no_parameter_of_a_sound_plan_lies_between(words: tuple[str, ...]) -> None:
    is_text = "data=text" in words
    card = own.resolve(compose("data=synthetic", *words, "local_batch=8")).model
    shape = (16,) if is_text else (3, 8, 8)
    inputs = torch.zeros(2, *shape, dtype=torch.long) if is_text else torch.randn(2, *shape)
    model = models.build(card, num_classes=256, shape=shape)
    plans.refuse_between(card, model, inputs)
    assert model(inputs).requires_grad, "the hooks are gone"


def test_values_are_dropped_as_on_one_worker() -> None:
    more = DROPPING
    assert_equal(trained(2, "strategy=tensor", "global_batch=24", *more), oracle(24, *more))


@pytest.mark.full
def test_replicas_drop_other_values_and_agree() -> None:
    how = ("strategy=tensor", "strategy.replicas=2", "global_batch=24")
    first, *others = trained(4, *how, *DROPPING)
    for worker in others:
        assert torch.equal(worker["parameters"], first["parameters"])
    assert not torch.allclose(first["parameters"], oracle(24, *DROPPING)["parameters"], rtol=1e-4)


def test_layers_that_no_plan_names_stay_equal_bit_for_bit() -> None:
    first, *others = trained(4, "strategy=tensor", "global_batch=24", *DIVIDED)
    for worker in others:
        assert torch.equal(worker["parameters"], first["parameters"])


@pytest.mark.full
def test_gradients_that_travel_in_bf16_stay_close() -> None:
    more = (*DIVIDED, "precision=fp32", "optimizer.lr=0.05", "epochs=1")
    how = ("strategy=tensor", "strategy.replicas=2", "global_batch=24")
    rounded, whole = (trained(2, *how, f"strategy.reduce={r}", *more) for r in ("bf16", "fp32"))
    assert torch.equal(rounded[0]["parameters"], rounded[1]["parameters"])
    assert not torch.equal(rounded[0]["parameters"], whole[0]["parameters"])
    torch.testing.assert_close(
        rounded[0]["parameters"], whole[0]["parameters"], rtol=0.05, atol=1e-3
    )
    sent = [run[0]["epochs"][0]["sent_bytes"] for run in (rounded, whole)]
    assert sent[0] * 2 == sent[1] == 4 * 4 * len(whole[0]["parameters"])  # a vector in each step


@pytest.mark.full
def test_sent_bytes_are_those_of_activations(tmp_path: Path) -> None:
    """Two layers sum twice in either direction, the embedding once forward and the head once
    backward. The loss sums three numbers for each token, whose likeliest words are gathered.
    """
    first, *_ = trained(2, "strategy=tensor", *BATCH, contract=contract(tmp_path))
    tokens = 91 * 16
    hidden_states = 8 * 64 * tokens
    for epoch in first["epochs"]:
        sums = (2 * 2 * 2 + 2) * hidden_states  # two workers send a whole vector in an all-reduce
        assert sums < epoch["sent_bytes"] < sums + 10 * 8 * tokens


def test_sent_bytes_count_replicas_gradients_too() -> None:
    more = ("strategy=tensor", "global_batch=24", "optimizer.lr=0.1", *DIVIDED)
    of_pass = trained(2, *more)[0]["epochs"][0]["sent_bytes"]
    first, *_ = trained(4, *more, "strategy.replicas=2")
    in_passes = 8 * 91 * (4 * 4 * 4 + 16)  # the inputs of layer 2, backward, the outputs of layer 5
    assert of_pass == in_passes
    num_divided = 64 * 24 + 24 + 24 * 16
    own_part = len(first["parameters"]) - num_divided // 2
    assert first["epochs"][0]["sent_bytes"] == pytest.approx(in_passes / 2 + 4 * 8 * own_part, 0.05)


def test_vgg16_divides_its_large_layers_evenly() -> None:
    point = ("model=vgg16", "data=synthetic", "strategy=tensor", "local_batch=8")
    config = compose(*point, "num_workers=4")
    models.check_model(config, 10, (3, 32, 32))
    with pytest.raises(ConfigError, match=r"0, classifier.3: the 4096 values .* 3 workers"):
        models.check_model(replace(config, num_workers=3), 10, (3, 32, 32))
    with pytest.raises(ConfigError, match=r"model=vgg16 .*: the 4096 values .* 3 workers"):
        compose(*point, "num_workers=3")


def test_heads_that_workers_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.num_heads=4 .* 3 workers for each replica"):
        compose(
            "model=llama_tiny",
            "data=text",
            "data.path=x",
            "strategy=tensor",
            "num_workers=3",
            "local_batch=8",
        )


def test_hidden_values_that_workers_cannot_share_are_refused() -> None:
    point = ("model=llama_tiny", "data=text", "data.path=x", "strategy=tensor", "local_batch=8")
    config = compose(*point, "num_workers=4", "model.intermediate_size=172")
    models.check_model(config, 256, (64,))
    assert isinstance(config.model, LlamaConfig)
    uneven = replace(config, model=replace(config.model, intermediate_size=174))
    with pytest.raises(ConfigError, match=r"mlp.down: the 174 values .* 4 workers"):
        models.check_model(uneven, 256, (64,))
    with pytest.raises(ConfigError, match=r"model=llama_tiny .*: the 174 values .* 4 workers"):
        compose(*point, "num_workers=4", "model.intermediate_size=174")


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="model=tiny_cnn: the model has no plan"):
        compose("model=tiny_cnn", "data=synthetic", "strategy=tensor", "num_workers=2")


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("tests/support/noisy_network.py:build", "give your module a method tensor_plan"),
        ("tests/support/divided_network.py:misnamed", "names fc, but no module"),
        ("tests/support/divided_network.py:hasty", "Conv2d is no layer that ColwiseParallel can"),
        ("tests/support/divided_network.py:tied", "whose parameters another module"),
        ("tests/support/divided_network.py:build", "24 values cannot be divided among the 5 "),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(builder: str, said: str) -> None:
    words = ("model=own", f"model.target={ROOT}/{builder}", "data=synthetic", "data.shape=[3,8,8]")
    config = compose(*words, "strategy=tensor", "num_workers=5", "local_batch=8").resolved()
    with pytest.raises(ConfigError, match=said):
        models.check_model(config, 10, (3, 8, 8))
