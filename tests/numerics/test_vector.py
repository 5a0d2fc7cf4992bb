"""Parameters and gradients as one vector: views with their strides, and nothing changes for the
model.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bsweep.numerics.vector import Vector


def make_model(memory_format: torch.memory_format = torch.channels_last) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 2, 3),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    return model.to(memory_format=memory_format)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_tensors_keep_values_and_strides(memory_format: torch.memory_format) -> None:
    before = {
        n: (p.detach().clone(), p.stride()) for n, p in make_model(memory_format).named_parameters()
    }
    model = make_model(memory_format)
    vector = Vector(model)
    for name, parameter in model.named_parameters():
        value, stride = before[name]
        assert torch.equal(parameter, value)
        assert parameter.stride() == stride
        assert parameter.grad is not None
        assert parameter.grad.stride() == stride
    assert vector.parameters.is_contiguous()
    assert vector.gradients.is_contiguous()


def test_backward_writes_the_gradients_of_a_plain_model_into_the_vector() -> None:
    images = torch.randn(6, 3, 8, 8)
    plain, model = make_model(), make_model()
    vector = Vector(model)
    for _ in range(2):  # the second step must replace the gradients of the first
        vector.zero_gradients()
        plain.zero_grad()
        for _ in range(2):  # the second backward pass must add to those of the first
            plain(images).square().sum().backward()
            model(images).square().sum().backward()
    gradients = dict(plain.named_parameters())
    for part, tensor in zip(vector.slices, vector.tensors, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad, gradients[part.name].grad)
        assert tensor.grad.data_ptr() == vector.gradients[part.start :].data_ptr()
    vector.zero_gradients()
    next(model.children())(images).sum().backward()
    reached = [part for part in vector.slices if part.name.startswith("0.")]
    assert all(vector.gradients[part.start : part.stop].any() for part in reached)
    # The rest has none.
    assert int(vector.gradients.count_nonzero()) <= sum(part.num_elements for part in reached)


def test_slices_cover_the_vector_with_matrices_first() -> None:
    vector = Vector(make_model())
    assert vector.slices[0].start == 0
    assert vector.slices[-1].stop == vector.parameters.numel()
    assert all(a.stop == b.start for a, b in zip(vector.slices, vector.slices[1:], strict=False))
    kinds = [part.is_matrix for part in vector.slices]
    assert kinds == sorted(kinds, reverse=True)
