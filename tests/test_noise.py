"""The gradient noise scale: what is measured of a run's gradients, and what is not changed by it."""

from __future__ import annotations

import pytest

from bsweep.config import ConfigError
from tests.running import compose

MEASURED = "measure.noise_scale=true"


def test_asking_for_it_is_another_run_and_not_asking_the_one_it_was() -> None:
    plain = compose("local_batch=8")
    assert compose("local_batch=8", "measure.noise_scale=false").run_id == plain.run_id
    assert compose("local_batch=8", MEASURED).run_id != plain.run_id


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("strategy=local_sgd", "strategy=local_sgd: its workers do not step together"),
        ("strategy=diloco", "strategy=diloco: its workers do not step together"),
        ("strategy=parameter_server strategy.consistency=asynchronous", "Use strategy=horovod, allreduce or ddp"),
        ("strategy=parameter_server", "its servers alone have the sum"),
        ("strategy.op=adasum", "is no sum of gradients. Use strategy.op=average"),
        ("strategy=ddp strategy.hook=fp16", "strategy.hook=fp16 lets through is not the gradient"),
        ("compression=topk", "compression=topk: what a codec lets through is not the gradient. Use compression=none"),
        ("strategy.buckets=2 measure.noise_scale_per_layer=true", "cut into buckets, not layers"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_remedy(overrides: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compose("local_batch=8", "num_workers=2", MEASURED, *overrides.split())


def test_one_example_has_no_halves() -> None:
    with pytest.raises(ConfigError, match="which has no halves: use local_batch=2 or more"):
        compose("local_batch=1", "model=tiny_cnn", MEASURED)
    with pytest.raises(ConfigError, match=r"noise_scale_per_layer=true without measure\.noise_scale=true"):
        compose("local_batch=8", "measure.noise_scale_per_layer=true")
