"""What tests say of GPUs: marks for those that need some, and the devices that a test runs on."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def needs_gpus(number: int = 1) -> list[pytest.MarkDecorator]:
    """Marks of what runs where there are so many CUDA GPUs, and is skipped elsewhere."""
    there = torch.cuda.device_count()
    reason = (
        f"needs {number} CUDA GPU{'s' * (number > 1)}, and there {'is' if there == 1 else 'are'} "
        f"{there or 'none'}"
    )
    return [pytest.mark.gpu, pytest.mark.skipif(there < number, reason=reason)]


def on_gpus(*values: Any, number: int = 1) -> Any:
    """Such a case of a parametrized test."""
    return pytest.param(*values, marks=needs_gpus(number))
