"""The private names of torch, and what is different between its versions."""

from __future__ import annotations

import re

import pytest
import torch

from bsweep.core.torch_private import NAMES, private


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_each_private_name(name: str) -> None:
    assert callable(private(name))


def test_a_private_name_that_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "gone", "torch:_gone.too")
    said = re.escape(f"torch._gone.too, which torch {torch.__version__}")
    with pytest.raises(ValueError, match=said):
        private("gone")
