"""What a person who mistypes a command is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bsweep.core.terminal import BAD_CONFIG
from tests.support.running import exit_code
from tests.support.synthetic_study import write_run

POINT = "local_batch=8 model=tiny_cnn"
WRITTEN = "program=own program.command=ls program.metrics=csv:a launch=inline data.num_train=10"
GRID = "recommend local_batch=8,16 model=tiny_cnn --target-accuracy 0.9"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("rn local_batch=8", "unknown command 'rn'. Did you mean 'run'?"),
        ("local_batch=8 seed=0,1", "type `bsweep run local_batch=8 seed=0,1`"),
        ("-m local_batch=8,16", "type `bsweep run -m local_batch=8,16`"),
        ("report nowhere", "nowhere"),
        ("bake", "unknown command 'bake'. `bsweep --help` lists the commands"),
        ("probe local_batch=8 lokal=3", "lokal: unknown key"),
        ("probe local_batch=8 device=cuda launch.memory_limit_mb=[9]", "device=cuda"),
        ("probe local_batch=8 allocation=steps_by_speed", "strategy=diloco"),
        ("profile local_batch=8 num_workers=0", "num_workers"),
        (f"profile {POINT} allocation=by_speed strategy=diloco num_workers=2", "bsweep probe"),
        (f"run {POINT} trackers=[tensorbord]", "trackers.0=tensorbord: unknown. Did you mean"),
        (f"run {POINT} trackers=mlflow", "give a list, such as trackers=[mlflow]"),
        ("export results/s --to mlfow", "mlfow: unknown. Did you mean 'mlflow'?"),
        ("export nowhere --to mlflow", "nowhere holds no runs"),
        ("status results/mein", "Did you mean 'results/mine'?"),
        ("resume results/empty", "no run and no command"),
        ("stop results/mine", "nothing to stop"),
        ("retry results/mine --status failed", "nothing to retry"),
        ("retry results/mine --status faild", "Did you mean 'failed'?"),
        ("status", "usage: bsweep status"),
        ("plan lokal_batch=8", "Did you mean 'local_batch'?"),
        (f"{GRID} local_batch=32", "the grid has only one cell"),
        (f"{GRID} optimizer.momentum=0.8,0.9", "Choose one: optimizer.momentum=0.8"),
        (f"{GRID} strategy=ddp strategy.bucket_mb=1,25", "strategy=ddp has several"),
        (f"{GRID} strategy=local_sgd num_workers=2", "every step together"),
        (f"{GRID} --budget soon", "is not a time"),
        (f"{GRID} num_workers=2 --objective workers<=1", "Allow more workers"),
        (f"recommend local_batch=8,16 --target-accuracy 0.9 {WRITTEN}", "type bsweep predict"),
        (f"{GRID} --objective cheap", "Did you mean 'cheapest'"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_meant(
    typed: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/empty").mkdir(parents=True)
    write_run(tmp_path / "results/mine", local_batch=8, epochs=1)
    before = sorted(tmp_path.rglob("*"))
    assert exit_code(*typed.split()) == BAD_CONFIG
    answer = capsys.readouterr().err
    assert said in answer
    assert answer.count("bsweep: ") + answer.count(": error: ") == 1, "it is said once"
    assert sorted(tmp_path.rglob("*")) == before, "nothing was started"
