"""Energy where the hardware says it, from counters that stand in for a machine's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import bsweep
from bsweep.analysis.study.derived import with_energy
from bsweep.core import energy
from tests.support.running import TINY, recorded
from tests.support.training import train

CPU = torch.device("cpu")
LARGEST = 262_143_328_850  # microjoules, after which a package begins anew


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two packages, and a part of the first that is counted with it."""
    names = ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0")
    folders = [tmp_path / "powercap" / name for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "max_energy_range_uj").write_text(f"{LARGEST}\n")
        (folder / "energy_uj").write_text("5000000\n")
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path / "powercap")
    return folders


def test_packages_are_summed_also_when_one_begins_anew(packages: list[Path]) -> None:
    meter = energy.EnergyMeter(CPU, counts_host=True)
    other = energy.EnergyMeter(CPU, counts_host=False)
    assert meter.joules() == 0
    assert other.joules() == 0
    (packages[0] / "energy_uj").write_text("7500000")
    (packages[2] / "energy_uj").write_text("7000000")
    assert meter.joules() == pytest.approx(2.5)
    (packages[1] / "energy_uj").write_text("4000000")
    assert meter.joules() == pytest.approx(2.5 + LARGEST / 1e6 - 1)
    assert other.joules() == 0, "its host's first worker counts"


def test_what_the_hardware_does_not_say_is_not_known(
    packages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = energy.EnergyMeter(CPU, counts_host=True)
    (packages[1] / "energy_uj").unlink()
    assert math.isnan(meter.joules())
    monkeypatch.setattr(energy, "_POWERCAP", packages[0] / "none")
    assert math.isnan(energy.EnergyMeter(CPU, counts_host=True).joules())


def test_an_epoch_records_what_its_steps_used_and_nothing_of_evaluations(
    packages: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from bsweep.train import evaluation, step

    def hungry(plain: Any) -> Any:
        def used(*arguments: object) -> Any:
            counter = packages[0] / "energy_uj"
            counter.write_text(str(int(counter.read_text()) + 1_000_000))
            return plain(*arguments)

        return used

    monkeypatch.setattr(step, "train_step", hungry(step.train_step))
    monkeypatch.setattr(evaluation, "evaluate", hungry(evaluation.evaluate))
    point = (*TINY, "model=tiny_cnn", "precision=fp32", "channels_last=false", "local_batch=30")
    (tmp_path / "s").mkdir()
    train(tmp_path / "s/run", *point, "epochs=2", "evaluate_every_examples=30")
    assert len(recorded(tmp_path / "s/run", "evaluation")) > 2
    epochs = recorded(tmp_path / "s/run", "epoch")
    assert [epoch["energy_joules"] for epoch in epochs] == [pytest.approx(3), pytest.approx(3)]
    study = bsweep.load(tmp_path / "s")
    assert study.runs["energy_joules"].tolist() == [pytest.approx(6)]


def test_a_run_of_which_an_epoch_is_not_known_has_no_energy() -> None:
    runs = pd.DataFrame({"run_id": ["a", "b"]})
    joules = [1.0, 2.0, 3.0, math.nan]
    epochs = pd.DataFrame({"run_id": ["a", "a", "b", "b"], "energy_joules": joules})
    found = with_energy(runs, epochs)["energy_joules"]
    assert found[0] == 3
    assert math.isnan(found[1])
    assert "energy_joules" not in with_energy(runs, epochs.assign(energy_joules=math.nan))
