"""Workers that hold parts of a model die or run out of memory in real runs: the run ends with that
result, and names the worker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strategies.test_equivalence import DIVIDED
from tests.study.test_run import runs, summary
from tests.support.running import TINY, bsweep, struck, workers_left

POINT = (*TINY, "precision=fp32", "num_workers=2", "epochs=20", "study=s")
SPLIT = {
    "sharded": ("strategy=sharded", "model=tiny_cnn"),
    "tensor": ("strategy=tensor", *DIVIDED),
    "pipeline": ("strategy=pipeline", "model=tiny_cnn"),
}
STEP, EVALUATION = ("train.step", "compute_passes", 5), ("train.evaluation", "_outputs", 2)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("strategy", SPLIT)
@pytest.mark.parametrize(("rank", "struck_in"), [(1, STEP), (0, EVALUATION), (1, EVALUATION)])
def test_a_lost_worker_is_named(
    tmp_path: Path, strategy: str, rank: int, struck_in: tuple[str, str, int]
) -> None:
    env = struck(tmp_path, (rank,), *struck_in)
    point = (*POINT, *SPLIT[strategy], "local_batch=8")
    result = bsweep("run", *point, cwd=tmp_path, env=env, timeout=60)
    assert (tmp_path / f"struck{rank}").exists()
    assert result.returncode == 1, result.stderr
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "failed"
    assert end["message"].startswith(f"rank {rank} was ended by SIGKILL"), end["message"]
    assert not workers_left(tmp_path)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("strategy", SPLIT)
def test_too_little_memory_is_a_result(tmp_path: Path, strategy: str) -> None:
    more = ("data.num_train=20000", "local_batch=10000", "launch.memory_limit_mb=[10,10]")
    result = bsweep("run", *POINT, *SPLIT[strategy], *more, cwd=tmp_path, timeout=120)
    assert result.returncode == 1, result.stderr
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "out_of_memory", end["message"]
