"""Workers that hold parts of a model die or run out of memory in real runs: the run ends with that
result, and names the worker. No worker has the whole model beside its part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep.config.values import ConfigError
from bsweep.strategies.splitting import Split
from tests.strategies.test_equivalence import DIVIDED
from tests.study.test_run import runs, summary
from tests.support.running import TINY, bsweep, imported_first, struck, workers_left, write_text

POINT = (*TINY, "precision=fp32", "num_workers=2", "epochs=20", "study=s")
SPLIT = {
    "sharded": ("strategy=sharded", "model=tiny_cnn"),
    "tensor": ("strategy=tensor", *DIVIDED),
    "pipeline": ("strategy=pipeline", "model=tiny_cnn"),
}
STEP = ("train.step", "compute_passes", 5)
EVALUATION = ("train.evaluation", "_scores_of_own_examples", 2)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("strategy", SPLIT)
@pytest.mark.parametrize(("rank", "struck_in"), [(1, STEP), (0, EVALUATION), (1, EVALUATION)])
def test_a_lost_worker_is_named(
    tmp_path: Path, strategy: str, rank: int, struck_in: tuple[str, str, int]
) -> None:
    if strategy == "sharded" and not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this torch shards on GPUs only")
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


# Each worker writes down by how much its memory grew at most while it set up, and ends.
_GROWTH = """
import os
rank = os.environ.get("RANK")
if rank is not None:
    from pathlib import Path
    from bsweep import models
    from bsweep.train import warm_up
    def bytes_of(key):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))
    def initial(*given):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before.append(bytes_of("VmRSS"))
        return plain(*given)
    def make_steps(job):
        grown = bytes_of("VmHWM") - before[0]
        vector = job.vector
        text = f"{grown} {4 * vector.num_parameters} {vector.num_bytes}"
        Path(FOLDER, "grown" + rank).write_text(text)
        job.strategy.gather_json({})  # all have written
        os._exit(1)
    plain, before = models.initial, []
    models.initial, warm_up.make_steps = initial, make_steps
"""


@pytest.mark.full
@pytest.mark.parametrize("strategy", SPLIT)
def test_no_worker_has_memory_for_the_whole_model_and_its_part(
    tmp_path: Path, strategy: str
) -> None:
    """A Llama of 101 M parameters."""
    env = imported_first(tmp_path, f"FOLDER = {str(tmp_path)!r}{_GROWTH}")
    text = ("data=text", f"data.path={write_text(tmp_path / 'text.txt', 2000)}")
    sizes = ("model.hidden_size=1024", "model.intermediate_size=2752", "model.num_layers=8")
    how = (f"strategy={strategy}", "num_workers=2", "local_batch=4", "data.sequence_length=16")
    limit = "launch.memory_limit_mb=[4000,4000]"  # with which freed memory goes to the system
    words = (*text, *how, "model=llama_tiny", *sizes, "precision=fp32", limit, "study=s")
    bsweep("run", *words, cwd=tmp_path, env=env, timeout=120)
    for rank in range(2):
        grown, whole, part = map(int, (tmp_path / f"grown{rank}").read_text().split())
        assert whole > 400e6
        assert grown < whole + part, f"worker {rank}: {grown / 1e6:.0f} MB, {whole / 1e6:.0f} MB"


def test_tensors_that_workers_do_not_receive_are_named() -> None:
    layer: Any = torch.nn.Identity()
    nobody: Any = None
    layer.factors = [torch.ones(1, device="meta")]
    with pytest.raises(ConfigError, match=r"Identity\.factors .* holds tensors in a list"):
        Split.receive(nobody, [layer])
