"""Training gives the numbers of the pinned torch, whatever torch is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsweep.analysis import load
from tests.support.running import ran_ok

POINT = ("local_batch=16", "data.subset=64", "epochs=2", "optimizer.lr=0.001", "launch=inline")


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "losses", "rounding"),
    [
        # ResNet-18: its BatchNorm of small batches makes fp32's rounding grow with every step.
        (("precision=fp64",), [2.597006665080919, 2.392048464166897], 1e-9),
        (("precision=fp32", "epochs=1"), [2.597007930278778], 2e-3),
        (("precision=fp32", "model=tiny_cnn"), [2.310296654701233, 2.3107574582099915], 1e-6),
    ],
    ids=["resnet18_fp64", "resnet18_fp32", "tiny_cnn_fp32"],
)
def test_losses_are_those_of_torch_2_13(
    settings: tuple[str, ...], losses: list[float], rounding: float, tmp_path: Path
) -> None:
    """The losses were seen with torch 2.13.0 on CPUs of AMD, with one and with two threads."""
    ran_ok("run", *POINT, "channels_last=false", "study=s", *settings, cwd=tmp_path)
    study = load(tmp_path / "results/s")
    assert study.epochs["train_loss"].tolist() == pytest.approx(losses, rel=rounding)
    assert study.runs["torch"].notna().all()
