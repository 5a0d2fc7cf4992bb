"""What numbers are rounded to, and that a step whose gradients overflow in fp16 leaves nothing
behind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from bsweep.numerics import precision
from bsweep.numerics.precision import LossScale
from tests.compression.test_compression import (
    CODECS,
    SimulatedGroup,
    build,
    make_vector,
    on_workers,
    random_gradients,
)
from tests.support.running import TINY, compose
from tests.train.test_steps import prepared

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "adamw": lambda parameters: AdamW(parameters, lr=0.1, fused=True),
    "not fused": lambda parameters: RMSprop(parameters, lr=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_as_without_a_scale_and_as_if_overflows_had_not_been(name: str) -> None:
    gradients = [
        torch.tensor([1.0, value, -3.0])
        for value in (torch.inf, 2.0, torch.nan, 0.5, -torch.inf, 1.0)
    ]
    plain, scaled = (nn.Parameter(torch.tensor([1.0, 2.0, 3.0])) for _ in range(2))
    scaled.grad = torch.zeros(3)
    expected, optimizer = OPTIMIZERS[name]([plain]), OPTIMIZERS[name]([scaled])
    scale = LossScale(scaled.grad)
    scale.guard(optimizer)
    for number, gradient in enumerate(gradients):
        torch.full((1000,), torch.nan)  # what a fresh state may find in memory
        assert float(scale.factor) == 2.0 ** (16 - (number + 1) // 2)
        scaled.grad.copy_(gradient * scale.factor)
        optimizer.step()
        if gradient.isfinite().all():
            plain.grad = gradient
            expected.step()
        torch.testing.assert_close(scaled, plain, rtol=1e-6, atol=0)
    assert scale.count_skipped() == 3
    assert scale.count_skipped() == 0


def test_a_scale_doubles_after_many_good_steps() -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.zeros(1)
    scale, optimizer = LossScale(parameter.grad), SGD([parameter], lr=0.1)
    scale.guard(optimizer)
    for _ in range(1999):
        optimizer.step()
    assert float(scale.factor) == 2**16
    optimizer.step()
    assert float(scale.factor) == 2**17


def test_a_warm_up_leaves_the_scale_as_it_was(tmp_path: Path) -> None:
    job = prepared(tmp_path, *TINY, "model=tiny_cnn", "precision=fp16")
    scale = job.vector.scale
    assert scale
    with job.restoring():
        job.vector.gradients.fill_(torch.inf)
        job.optimizer.step()
        assert float(scale.factor) == 2**15
    assert float(scale.factor) == 2**16
    assert scale.count_skipped() == 0


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_forgets_a_step_that_was_left_out(name: str) -> None:
    """Its memory holds gradients, whatever they were times, and nothing of an overflow on either
    worker.
    """

    def trained(group: SimulatedGroup, *, overflows: bool) -> tuple[list[Tensor], list[Tensor]]:
        vector = make_vector(dtype=torch.float32)
        codec = build(name, vector, group.rank)
        optimizer = SGD([vector.parameters], lr=1)
        vector.parameters.grad = vector.gradients
        scale = LossScale(vector.gradients)
        scale.guard(optimizer)
        received = []
        for number in range(4):
            if number == 1 and not overflows:
                continue
            vector.gradients.copy_(
                random_gradients(vector.gradients, seed=10 * number + group.rank) * scale.factor
            )
            vector.gradients[7] += torch.inf if number == 1 and group.rank == 1 else 0
            with scale.removed(codec.state):
                codec.exchange(vector.gradients, group)
            received.append(vector.gradients.clone())
            optimizer.step()
        assert float(scale.factor) == (2**15 if overflows else 2**16)
        assert all(tensor.isfinite().all() for tensor in codec.state)
        assert vector.parameters.isfinite().all()
        return received, codec.state

    first, second = on_workers(2, lambda group: trained(group, overflows=True))
    sound = on_workers(2, lambda group: trained(group, overflows=False))
    assert not first[0][1].isfinite().all()
    assert not second[0][1].isfinite().all()
    if name == "qsgd":
        return  # which draw, so that one step less is another run
    for (received, state), (expected, expected_state) in zip((first, second), sound, strict=True):
        torch.testing.assert_close([received[0], *received[2:]], expected)
        torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize(
    ("overrides", "capability", "expected"),
    [
        (("precision=auto",), (8, 0), "bf16"),
        (("precision=auto",), (7, 5), "fp16"),
        (("precision=auto", "strategy=parameter_server"), (7, 5), "fp32"),
        (("precision=auto", "strategy=ddp", "strategy.hook=powersgd"), (7, 5), "fp32"),
        (("precision=fp32",), (7, 5), "fp32"),
        (("precision=tf32",), (8, 0), "tf32"),
        (("precision=tf32",), (7, 5), "Tesla T4 has no TF32"),
        (("precision=tf32",), None, "there is no GPU: use precision=fp32"),
        (("precision=auto",), None, "fp32"),
    ],
)
def test_a_gpus_precision_is_what_its_matrix_units_compute_in(
    monkeypatch: pytest.MonkeyPatch,
    overrides: tuple[str, ...],
    capability: tuple[int, int] | None,
    expected: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: capability == (8, 0)
    )
    config = compose("local_batch=8", "num_workers=2", *overrides)
    with pytest.raises(ValueError, match=expected) if " " in expected else nullcontext():
        assert precision.choose(config, GPU if capability else CPU) == expected


def test_products_and_convolutions_are_rounded_alike(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    try:
        precision.round_products("tf32")
        assert precision.are_rounded(GPU) == ["convolutions", "products"]
        if hasattr(torch.backends.cudnn, "conv"):  # not in torch 2.8
            assert torch.backends.cudnn.conv.fp32_precision == "tf32"
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.get_float32_matmul_precision() == "high"  # which torch.compile asks
    finally:
        precision.round_products("fp32")
    assert precision.are_rounded(GPU) == []
    assert torch.get_float32_matmul_precision() == "highest"
    assert not recwarn.list


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_fp32_is_exact_on_a_gpu_and_tf32_is_not() -> None:
    a, b = torch.randn(2, 64, 64, device=GPU)
    images, kernels = torch.randn(4, 16, 16, 16, device=GPU), torch.randn(16, 16, 3, 3, device=GPU)

    def errors() -> list[float]:
        exact = a.double() @ b.double(), torch.conv2d(images.double(), kernels.double())
        found = a @ b, torch.conv2d(images, kernels)
        return [
            float((f - e).abs().max() / e.abs().max()) for f, e in zip(found, exact, strict=True)
        ]

    try:
        precision.round_products("tf32")
        assert min(errors()) > 3e-5
    finally:
        precision.round_products("fp32")
    assert max(errors()) < 3e-6
