"""Workers that compute parts of layers (`strategy=tensor`) end with the weights of one worker."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from bsweep import data, models
from bsweep.config.values import ConfigError
from tests.strategies.test_equivalence import (  # noqa: F401 (the fixture ends the processes)
    DIVIDED,
    DROPPING,
    _end_processes,
    oracle,
    text_contract,
    trained,
)
from tests.support.running import ROOT, TINY, compose


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


def test_sent_bytes_count_replicas_gradients_too() -> None:
    more = ("strategy=tensor", "global_batch=24", "optimizer.lr=0.1", *DIVIDED)
    of_pass = trained(2, *more)[0]["epochs"][0]["sent_bytes"]
    first, *_ = trained(4, *more, "strategy.replicas=2")
    in_passes = 8 * 91 * (4 * 4 * 4 + 16)  # the inputs of layer 2, backward, the outputs of layer 5
    assert of_pass == in_passes
    num_divided = 64 * 24 + 24 + 24 * 16
    own_part = len(first["parameters"]) - num_divided // 2
    # Of the last 19 examples one replica has 10: the mean counts, which is the same everywhere.
    assert first["epochs"][0]["sent_bytes"] == in_passes / 2 + 4 * 8 * own_part


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model=vgg16 num_workers=4", ""),
        ("model=vgg16 num_workers=3", r"model=vgg16 .* 3 workers .* divide 4096"),
        (
            "model=llama_tiny num_workers=3",
            r"model=llama_tiny .* 3 workers .* divide 176 and 4",
        ),
        ("model=tiny_cnn num_workers=2", "model=tiny_cnn: the model has no plan"),
    ],
)
def test_layers_that_workers_cannot_share_are_refused(words: str, said: str) -> None:
    is_text = "llama" in words
    examples = ("data=text", "data.path=x") if is_text else ("data=synthetic",)
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        config = compose(*words.split(), *examples, "strategy=tensor", "local_batch=8")
        models.check_model(config, 256, (64,) if is_text else (3, 32, 32))


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("noisy_network.py:build", "give your module a method tensor_plan"),
        ("divided_network.py:misnamed", "names fc, but no module"),
        ("divided_network.py:hasty", "Conv2d is no layer that ColwiseParallel can"),
        ("divided_network.py:tied", "whose parameters another module"),
        ("divided_network.py:build", "24 values cannot be divided among the 5 "),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(builder: str, said: str) -> None:
    words = ("model=own", f"model.target={ROOT}/tests/support/{builder}", "data=synthetic")
    config = compose(
        *words, "strategy=tensor", "num_workers=5", "local_batch=8"
    ).with_fingerprints()
    with pytest.raises(ConfigError, match=said):
        models.check_model(config, 10, (3, 8, 8))


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("learning_slope", r"3\.weight of the model lies between layers"),
        ("dropping", ""),
        ("Joined", ""),
    ],
)
def test_a_parameter_between_shared_layers_is_refused(builder: str, said: str) -> None:
    target = f"model.target={ROOT}/tests/support/divided_network.py:{builder}"
    words = (*TINY, "model=own", target, "strategy=tensor", "num_workers=2", "local_batch=8")
    config = compose(*words).with_fingerprints()
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        models.try_model(config, data.prepare(config.data))
