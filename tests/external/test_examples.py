"""The example scripts of program=own, each run by bsweep on two workers as a user would, and a
script as people write them, with a few lines for bsweep, which end in `# bsweep`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import ROOT, ran_ok, recorded, summaries

EXAMPLES = ROOT / "examples/programs"
DIGITS = ROOT / "src/bsweep/data/digits.csv.gz"
PYTHONS = ("BSWEEP_PROGRAMS_PYTHON", "BSWEEP_TENSORFLOW_PYTHON")
"""The variables with the interpreters that have the libraries; see scripts/programs.sh."""

NEEDS = {
    "lightning_callback.py": "lightning",
    "transformers_trainer.py": "transformers",
    "accelerate_loop.py": "accelerate",
    "keras_callback.py": "keras",
    "deepspeed_engine.py": "deepspeed",
    "jax_loop.py": "jax",
    "tensorflow_strategy.py": "tf_keras",
}


def records_of(folder: Path, *words: str, timeout: float = 240) -> dict[str, list[dict[str, Any]]]:
    """Run a point of two epochs, and return its records by type."""
    point = ("program=own", "local_batch=32", "epochs=2", "study=s", *words)
    ran_ok("run", *point, cwd=folder, timeout=timeout)
    (run,) = folder.glob("results/s/b*")
    return {kind: recorded(run, kind) for kind in ("start", "epoch", "end")}


def command(example: str, *more: str) -> str:
    """The option that starts an example."""
    words = ["python", f'"{EXAMPLES / example}"', *more]
    return f"program.command='{' '.join(words)}'"


def python_with(module: str) -> str:
    """Return the interpreter that has a module; skip the test if there is none."""
    looks = f"import importlib.util as u; assert u.find_spec({module!r})"
    for python in filter(None, map(os.environ.get, PYTHONS)):
        if subprocess.run([python, "-c", looks], check=False).returncode == 0:
            return python
    pytest.skip(f"{' and '.join(PYTHONS)} have no {module}: scripts/programs.sh installs it")


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("launch", "workers", "example"),
    [
        ("torchrun", 2, "torch_ddp.py --batch {local_batch} --lr {lr}"),
        ("inline", 1, "torch_ddp.py --batch {local_batch} --lr {lr}"),
        ("horovodrun", 2, "horovod_torch.py"),
    ],
)
def test_plain_script_runs(tmp_path: Path, launch: str, workers: int, example: str) -> None:
    words = (f"launch={launch}", f"num_workers={workers}", "optimizer.lr=0.05")
    records = records_of(tmp_path, *words, command(*example.split()))
    (start,) = records["start"]
    assert start["num_train"] == 1437
    assert start["learning_rate"] == 0.05
    epochs = records["epoch"]
    assert [epoch["num_steps"] for epoch in epochs] == [1437 // (32 * workers)] * 2
    assert epochs[-1]["test_accuracy"] > 0.7
    assert records["end"][0]["status"] == "completed"


@pytest.mark.full
@pytest.mark.parametrize("example", NEEDS)
def test_adapter_reports_and_stops_at_the_target(tmp_path: Path, example: str) -> None:
    """The interpreter has no bsweep, so `program.python` is tested too."""
    python = python_with(NEEDS[example])
    lr = "0.005" if example == "transformers_trainer.py" else "0.1"
    records = records_of(
        tmp_path,
        *("launch=torchrun", "num_workers=2", f"optimizer.lr={lr}", f"program.python={python}"),
        *("epochs=20", "target_accuracy=0.7", "launch.stall_timeout_seconds=400"),
        command(example),
        timeout=550,
    )
    (end,) = records["end"]
    assert end["status"] == "completed"
    assert "reached" in end["message"]
    assert 2 <= end["epochs"] < 20
    epochs = records["epoch"]
    assert epochs[0]["num_steps"] in (22, 23)  # Trainer alone takes the uneven last step
    assert epochs[-1]["test_accuracy"] >= 0.7
    (start,) = records["start"]
    assert start["num_train"] == 1437


SCRIPT = Path(__file__).parent / "scripts/ddp_plain.py"


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2])
def test_records_say_what_a_script_prints(tmp_path: Path, workers: int) -> None:
    command = f'python "{SCRIPT}" --batch-size={{local_batch}}'
    ran_ok(
        *("run", "program=own", f"program.command='{command}'", "epochs=6"),
        *("local_batch=16", f"num_workers={workers}", "launch=torchrun", "study=s"),
        *(f"program.python={sys.executable}", f"program.environment.DIGITS={DIGITS}"),
        cwd=tmp_path,
        timeout=550,
    )
    (folder,) = tmp_path.glob("results/s/*-*")
    printed = (folder / "logs/rank.0/stdout").read_text()
    evaluations = recorded(folder, "evaluation")
    printed_evaluations = re.findall(r"step (\d+) examples (\d+) accuracy (\S+)", printed)
    assert len(evaluations) >= 2
    for record, (steps, examples, accuracy) in zip(evaluations, printed_evaluations, strict=True):
        assert (record["num_steps"], f"{record['test_accuracy']:.4f}") == (int(steps), accuracy)
        # Another rank may be in its last step, or count as rank 0, whose share may be one smaller.
        assert abs(record["num_examples"] - int(examples)) < workers * record["epoch"]
    (total,) = re.findall(r"total steps (\d+) examples (\d+) seconds (\S+)", printed)
    epochs = recorded(folder, "epoch")
    seconds = sum(epoch["train_seconds"] for epoch in epochs)
    num_examples = sum(epoch["images_per_second"] * epoch["train_seconds"] for epoch in epochs)
    assert len(epochs) == 6
    assert sum(epoch["num_steps"] for epoch in epochs) == int(total[0])
    assert abs(num_examples - int(total[1])) < 6 * workers
    # 3 % alone; beside other tests, the script waits longer between its epochs.
    assert seconds == pytest.approx(float(total[2]), rel=0.15)
    (start,) = recorded(folder, "start")
    assert (start["num_train"], start["software"]["interpreter"]) == (1437, sys.executable)
    (ended,) = summaries(tmp_path).values()
    assert (ended["status"], f"{ended['test_accuracy']:.4f}") == ("completed", accuracy)
