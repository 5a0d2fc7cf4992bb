"""A script as people write them, with a few lines for bsweep, which end in `# bsweep`: the records
say what the script prints.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.external.test_examples import DIGITS
from tests.support.running import ran_ok

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
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if record["type"] == "evaluation"]
    printed_evaluations = re.findall(r"step (\d+) examples (\d+) accuracy (\S+)", printed)
    assert len(evaluations) >= 2
    for record, (steps, examples, accuracy) in zip(evaluations, printed_evaluations, strict=True):
        assert (record["num_steps"], f"{record['test_accuracy']:.4f}") == (int(steps), accuracy)
        # Another rank may be in its last step, or count as rank 0, whose share may be one smaller.
        assert abs(record["num_examples"] - int(examples)) < workers * record["epoch"]
    (total,) = re.findall(r"total steps (\d+) examples (\d+) seconds (\S+)", printed)
    epochs = [record for record in records if record["type"] == "epoch"]
    seconds = sum(epoch["train_seconds"] for epoch in epochs)
    num_examples = sum(epoch["images_per_second"] * epoch["train_seconds"] for epoch in epochs)
    assert len(epochs) == 6
    assert sum(epoch["num_steps"] for epoch in epochs) == int(total[0])
    assert abs(num_examples - int(total[1])) < 6 * workers
    # 3 % alone; beside other tests, the script waits longer between its epochs.
    assert seconds == pytest.approx(float(total[2]), rel=0.15)
    start = next(record for record in records if record["type"] == "start")
    assert (start["num_train"], start["software"]["interpreter"]) == (1437, sys.executable)
    ended = json.loads((folder / "summary.json").read_text())
    assert (ended["status"], f"{ended['test_accuracy']:.4f}") == ("completed", accuracy)
