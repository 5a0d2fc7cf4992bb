"""Steps whose model torch compiled: the same numbers, and no compilation in a timed step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bsweep.numerics.compiled import Compiled
from tests.support.running import recorded
from tests.train.test_steps import trained


@pytest.mark.full
def test_compiled_steps_train_the_same_model(tmp_path: Path) -> None:
    """Two epochs of full steps and a smaller last one, all compiled before the first."""
    words = ("channels_last=false", "accumulation_steps=2")
    plain = trained(tmp_path / "plain", *words)
    compiled = trained(tmp_path / "compiled", *words, "compile=true")
    (before,) = recorded(tmp_path / "plain", "start")
    (start,) = recorded(tmp_path / "compiled", "start")
    assert (before["compile"], before["compile_seconds"]) == (False, None)
    assert start["compile"] is True
    assert start["compile_seconds"] > 0
    assert before["run_id"] != start["run_id"]
    torch.testing.assert_close(compiled, plain, rtol=1e-9, atol=1e-12)


def test_other_batches_than_those_of_the_warm_up_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def told(name: str) -> Callable[[Tensor], None]:
        return lambda inputs: calls.append(f"{name} {len(inputs)}")

    monkeypatch.setattr(torch, "compile", lambda model, dynamic: told("compiled"))
    model: Any = told("plain")
    found = Compiled(model)
    found(torch.zeros(2))
    with found.compiling():
        found(torch.zeros(2))
    for size in (3, 2):
        found(torch.zeros(size))
    assert calls == ["plain 2", "compiled 2", "plain 3", "compiled 2"]


@pytest.mark.full
def test_what_cannot_be_compiled_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backend(*_: object) -> Any:
        raise OSError("no g++ here\nand more")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    with pytest.raises(ValueError, match=r"no g\+\+ here and more\. .* use compile=false\.$"):
        trained(tmp_path / "run", "compile=true")
