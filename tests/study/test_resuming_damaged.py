"""`bsweep resume` on a study in which one file is damaged, in every way that one can think of.

It ends with the numbers of a study without damage, or says what is wrong: never a traceback.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.mutations import damaged, fuzz
from tests.support.running import TINY, bsweep, ran_ok, struck

GRID = (
    "-m", "seed=0,1", "local_batch=8", "epochs=4", "checkpoint_every=1", "launch=inline",
    "strategy=single", "launch.threads_per_worker=1", *TINY, "model=tiny_cnn", "study=s",
)  # fmt: skip
COMPLETED, KILLED = "b8_w1_single_s0-*/", "b8_w1_single_s1-*/"
LATEST = f"{KILLED}checkpoint/epoch00003.000000000000/"
FILES = (
    "commands.jsonl",
    *(f"{COMPLETED}{name}" for name in ("metrics.jsonl", "summary.json", "meta.json")),
    *(f"{KILLED}{name}" for name in ("metrics.jsonl", "meta.json", "config.yaml")),
    *(f"{LATEST}{name}" for name in ("complete.json", "shared.pt", "rank.0.pt")),
)


def losses(study: Path) -> list[float]:
    """The test loss that each run ends with, and that tells whether it trained the same."""
    found = (json.loads(path.read_text()) for path in sorted(study.glob("*/summary.json")))
    return [one["test_loss"] for one in found if one["status"] == "completed"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A study with a completed run and a killed one that has checkpoints, and what it ends with."""
    cwd = tmp_path_factory.mktemp("killed")
    env = {**struck(cwd, (0,), "train.step", "train_step", 48 + 30), "RANK": "0"}
    assert bsweep("run", *GRID, cwd=cwd, env=env).returncode == -9
    study = cwd / "results/s"
    shutil.copytree(study, cwd / "kept")
    ran_ok("resume", "results/s", cwd=cwd)
    return cwd, losses(study)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("num_mutations", [1, 50])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_changes_no_number_or_is_named(
    name: str, num_mutations: int, killed: tuple[Path, list[float]]
) -> None:
    cwd, expected = killed
    study = cwd / "results/s"
    (kept,) = (cwd / "kept").glob(name)
    whole, is_json = kept.read_bytes(), name.endswith(("json", "jsonl"))
    if name.endswith(".json"):
        whole = json.dumps(json.loads(whole)).encode()  # in one line

    def read(content: bytes) -> bool:
        shutil.rmtree(study)
        shutil.copytree(cwd / "kept", study)
        (study / kept.relative_to(cwd / "kept")).write_bytes(content)
        result = bsweep("resume", "results/s", cwd=cwd)
        assert "Traceback" not in result.stderr, (content, result.stderr)
        if result.returncode:
            assert "bsweep: " in result.stderr, (content, result.stderr)
            return False
        assert losses(study) == expected, (content, result.stderr)
        return True

    fuzz(f"resume with {Path(name).name}", read, num_mutations, damaged(whole, is_json))
