"""`scripts/recompute_published.py`: the published numbers, computed anew from their records."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from bsweep.analysis import load
from bsweep.config.target import target_of
from tests.support.running import ROOT
from tests.support.synthetic_targets import TARGET, Truth, write_target_run

sys.path.insert(0, str(ROOT / "scripts"))
import measured_grid
import recompute_published


def test_the_published_tables_follow_from_their_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert recompute_published.main() == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "0 entries differ." in said
    assert "predictions:" in said, "what it leaves out"


def test_a_number_that_was_changed_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path in recompute_published.MEASURED.iterdir():
        if path.is_dir():
            (tmp_path / path.name).symlink_to(path)
    page = (recompute_published.MEASURED / "README.md").read_text(encoding="utf-8")
    assert page.count("12.2 ± 0.6 | 0.255") == 1
    (tmp_path / "README.md").write_text(page.replace("12.2 ± 0.6 | 0.255", "12.3 ± 0.6 | 0.255"))
    monkeypatch.setattr(recompute_published, "MEASURED", tmp_path)
    monkeypatch.setattr(recompute_published, "PARTS", [recompute_published.of_stragglers])
    recompute_published.rows.cache_clear()
    assert recompute_published.main() == 1
    assert "stragglers, `allreduce`: 12.3 ± 0.6; anew: 12.24" in capsys.readouterr().out


@pytest.mark.parametrize("has_records", [True, False])
def test_a_grid_that_was_trained_whole_is_computed_anew(
    has_records: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs, folder = tmp_path / "runs", tmp_path / "measured" / "mine"
    (folder / "records").mkdir(parents=True)
    for batch in (32, 128):
        for seed in (1, 2):
            write_target_run(runs, Truth(), batch=batch, seed=seed, every_examples=2000)
    study = load(runs)
    grid = measured_grid.grid_of(study, target_of(TARGET))
    study.runs.to_csv(folder / "runs.csv", index=False)
    study.evaluations.to_csv(folder / "evaluations.csv", index=False)
    if has_records:
        (folder / "evaluations.csv").unlink()
        for run_id in study.runs["run_id"]:
            text = (runs / run_id / "metrics.jsonl").read_text()
            assert json.loads(text.splitlines()[-1])["type"] == "evaluation"
            with gzip.open(folder / "records" / f"{run_id}.jsonl.gz", "wt") as file:
                file.write(text)
    told = [(*cell[:2], seconds, "test_accuracy", TARGET) for cell, seconds in grid.seconds.items()]
    names = ["global_batch", "num_workers", "seconds", "metric", "target"]
    pd.DataFrame(told, columns=names).to_csv(
        folder / "seconds.csv", index=False, float_format="%.6g"
    )
    rules = pd.DataFrame({"rule": ["mine"], "global_batch": [32.0], "num_workers": [1.0]})
    rules["regret"] = grid.regret((32, 1, 1, ""))
    rules.to_csv(folder / "rules.csv", index=False)
    monkeypatch.setattr(recompute_published, "MEASURED", tmp_path / "measured")
    recompute_published.rows.cache_clear()
    found = [*recompute_published.of_grids("")]
    recompute_published.rows.cache_clear()
    assert len(found) == 3
    for where, values, text in found:
        assert recompute_published.agrees(values, text), (where, values, text)
