"""Workers of real DiLoCo runs that die or fall silent: the others go on, or stop so that all go on
later.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bsweep.runlog.checkpoint_files import checkpoints
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from tests.study.test_run import runs, summary
from tests.support.gpus import on_gpus
from tests.support.running import ROOT, TINY, bsweep, compose, imported_first, struck, workers_left

Records = list[dict[str, Any]]
MAX_ROUNDS, SYNC_EVERY = 24, 10
POINT = (
    *TINY,
    "data.num_train=1200",  # ten rounds an epoch
    "model=tiny_cnn",
    "local_batch=4",
    "num_workers=3",
    "strategy=diloco",
    f"strategy.sync_every={SYNC_EVERY}",
    "strategy.loss_timeout_seconds=2",
    "epochs=100",
    "study=s",
)
SHORT = (*POINT, f"strategy.max_rounds={MAX_ROUNDS}")
LONG = (*POINT, "strategy.max_rounds=100")


def of(paths: RunPaths, kind: str) -> Records:
    return [record for record in read_records(paths.metrics)[0] if record["type"] == kind]


def losses(paths: RunPaths) -> list[str]:
    return [record["message"] for record in of(paths, "event") if record["event"] == "worker_lost"]


def check_went_on(paths: RunPaths, left: list[int], num_rounds: int) -> None:
    """Rounds go on to the last one, after the loss with those that are left alone, and all is on
    record.
    """
    rounds = of(paths, "round")
    numbers = [record["round"] for record in rounds]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == num_rounds
    assert len(numbers) >= num_rounds - 1, (
        "that of the loss may have ended with the one who was to write it"
    )
    workers = [record["workers"] for record in rounds]
    later = workers.index(left)
    assert all(those == [0, 1, 2] for those in workers[:later])
    assert all(those == left for those in workers[later:])
    full = [
        record["num_examples"]
        for record in rounds[later + 1 :]
        if min(record["local_steps"]) == SYNC_EVERY
    ]
    assert set(full) == {4 * SYNC_EVERY * len(left)}, "nobody takes the part of the lost"
    end = summary(paths)
    assert end["status"] == "completed", end["message"]
    assert all(
        any(f"rank {rank} was lost" in message for message in losses(paths))
        for rank in {0, 1, 2} - {*left}
    )
    assert len(losses(paths)) == 3 - len(left)
    epochs = of(paths, "epoch")
    assert [epoch["epoch"] for epoch in epochs] == list(range(1, len(epochs) + 1))
    assert epochs[-1]["test_loss"] is not None
    assert epochs[-1]["train_loss"] is not None
    assert epochs[-1]["epoch"] == rounds[-1]["epoch"]


@pytest.mark.parametrize(
    ("device", "killed"),
    [
        ("cpu", (0,)),
        ("cpu", (1, 2)),
        on_gpus("cuda", (0,), number=3),
        on_gpus("cuda", (1,), number=3),
    ],
)
def test_the_others_go_on_without_killed_workers(
    tmp_path: Path, device: str, killed: tuple[int, ...]
) -> None:
    env = struck(tmp_path, killed, "strategies.diloco", "DiLoCo.begin_round", 3)
    more = ["strategy.on_loss=continue", f"device={device}"]
    if device == "cuda":  # NCCL takes seconds to connect
        more.append("strategy.loss_timeout_seconds=20")
    result = bsweep("run", *SHORT, *more, cwd=tmp_path, env=env, timeout=240)
    assert result.returncode == 0, result.stderr
    (paths,) = runs(tmp_path)
    check_went_on(paths, [rank for rank in range(3) if rank not in killed], MAX_ROUNDS)
    assert not workers_left(tmp_path)


def wake_when_lost(folder: Path) -> None:
    end = time.monotonic() + 60
    while not any(losses(paths) for paths in runs(folder)):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(int((folder / "pid1").read_text()), signal.SIGCONT)


def test_a_silent_worker_is_given_up_and_told_so_when_it_wakes(tmp_path: Path) -> None:
    env = struck(tmp_path, (1,), "strategies.diloco", "DiLoCo.begin_round", 3, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(wake_when_lost, tmp_path)
        result = bsweep(
            "run", *LONG, "strategy.on_loss=continue", cwd=tmp_path, env=env, timeout=120
        )
        woken.result()
    assert result.returncode == 0, result.stderr
    (paths,) = runs(tmp_path)
    check_went_on(paths, [0, 2], 100)
    assert (
        "continue without rank 1, which was silent for too long"
        in (paths.rank_logs(1) / "stderr").read_text()
    )


def test_a_worker_that_stays_silent_does_not_hold_up_the_end(tmp_path: Path) -> None:
    env = struck(tmp_path, (2,), "strategies.diloco", "DiLoCo.begin_round", 3, signal.SIGSTOP)
    result = bsweep(
        "run", *SHORT, "strategy.on_loss=continue", cwd=tmp_path, env=env, timeout=60, fresh=True
    )
    assert result.returncode == 0, result.stderr
    (paths,) = runs(tmp_path)
    check_went_on(paths, [0, 1], MAX_ROUNDS)
    assert not workers_left(tmp_path)


@pytest.mark.parametrize(
    ("rank", "module", "function", "call", "left", "more"),
    [
        (
            1,
            "strategies.diloco",
            "DiLoCo.end_round",
            1,
            [0, 2],
            ("compression=dgc", "strategy.algorithm=ring"),
        ),
        (
            2,
            "strategies.allreduce",
            "AllReduce.sum_gradients",
            3,
            [0, 1],
            (),
        ),  # the others are in the sum
        (1, "models.tiny_cnn", "TinyCNN.eval", 1, [0, 2], ()),  # in the evaluation
        (1, "strategies.clocks", "offsets", 2, [0, 2], ()),
    ],
)
def test_whenever_a_worker_dies_the_others_go_on(
    tmp_path: Path,
    rank: int,
    module: str,
    function: str,
    call: int,
    left: list[int],
    more: tuple[str, ...],
) -> None:
    env = struck(tmp_path, (rank,), module, function, call)
    result = bsweep(
        "run", *SHORT, *more, "strategy.on_loss=continue", cwd=tmp_path, env=env, timeout=120
    )
    assert result.returncode == 0, result.stderr
    (paths,) = runs(tmp_path)
    check_went_on(paths, left, MAX_ROUNDS)
    for epoch in of(paths, "epoch"):
        correct = 20 * epoch["test_accuracy"]
        assert correct == pytest.approx(round(correct)), "the whole test set is evaluated"


def test_the_others_find_together_though_one_of_them_fails_at_first(tmp_path: Path) -> None:
    env = struck(tmp_path, (1,), "strategies.diloco", "DiLoCo.end_round", 1)
    with (tmp_path / "sitecustomize.py").open("a") as file:
        file.write(
            "if os.environ.get('RANK') == '2':\n"
            "    import torch.distributed as dist\n"
            "    plain, calls = dist.new_group, []\n"
            "    def failing(*a, **k):\n"
            "        calls.append(1)\n"
            "        group = plain(*a, **k)\n"
            "        if len(calls) == 2:\n"  # the first was at the start
            f"            open({str(tmp_path / 'failed')!r}, 'w').close()\n"
            "            dist.destroy_process_group(group)\n"
            "            raise RuntimeError('connection reset')\n"
            "        return group\n"
            "    dist.new_group = failing\n"
        )
    result = bsweep("run", *SHORT, "strategy.on_loss=continue", cwd=tmp_path, env=env, timeout=120)
    assert result.returncode == 0, result.stderr
    (paths,) = runs(tmp_path)
    check_went_on(paths, [0, 2], MAX_ROUNDS)
    assert (tmp_path / "failed").exists()


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    # Enough to learn.
    point = (
        *SHORT,
        "strategy.sync_every=25",
        "data.num_train=3000",
        "strategy.on_loss=stop",
    )
    # In the second epoch.
    env = struck(tmp_path, (1,), "strategies.diloco", "DiLoCo.begin_round", 14)
    stopped = bsweep("run", *point, cwd=tmp_path, env=env, timeout=120)
    assert stopped.returncode == 1, stopped.stderr
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "interrupted"
    assert "rank 1 was lost" in end["message"]
    assert "to resume" in end["message"]
    assert checkpoints(paths)
    before = of(paths, "round")
    assert 12 < before[-1]["round"] < MAX_ROUNDS
    assert before[-1]["workers"] == [0, 2]

    again = bsweep("run", *point, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert runs(tmp_path) == [paths]
    rounds, epochs = of(paths, "round"), of(paths, "epoch")
    assert rounds[: len(before)] == before
    assert [record["round"] for record in rounds] == list(range(1, MAX_ROUNDS + 1))
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert [record["workers"] for record in rounds[len(before) :]] == [[0, 1, 2]] * (
        MAX_ROUNDS - len(before)
    )
    began = [min(record["began_seconds"]) for record in rounds]
    assert began == sorted(began)
    assert began[len(before)] - began[len(before) - 1] < 10, "the pause is left out"
    first, last, next_ = (
        before[0]["train_loss"],
        before[-1]["train_loss"],
        rounds[len(before)]["train_loss"],
    )
    assert abs(next_ - last) < 0.5 * (first - last), "it goes on with what it has learned"
    numbers = [record["step"] for record in of(paths, "step")]
    assert numbers == sorted(numbers)
    assert epochs[1]["num_steps"] == 250
    end = summary(paths)
    assert end["status"] == "completed"
    assert end["wall_seconds"] > end["train_seconds"] > 0


def test_a_run_that_was_taken_up_again_ends_as_one_that_never_stopped(tmp_path: Path) -> None:
    """Both workers stop after 5 rounds, in the second epoch, though none is lost; their batch goes
    up and down.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('BSWEEP_STOP') and 'RANK' in os.environ:\n"
        "    import bsweep.strategies.diloco as m\n"
        "    plain = m.DiLoCo.end_round\n"
        "    def stopping(self, *a):\n"
        "        plain(self, *a)\n"
        "        if self._round == 5:\n"
        "            self.stop_reason = 'told to'\n"
        "    m.DiLoCo.end_round = stopping\n"
        "if 'RANK' in os.environ:\n"
        "    import sys\n"
        f"    sys.path.append({str(ROOT)!r})\n"
        "    import bsweep.batching\n"
        "    from tests.support.policies import ByRound\n"
        "    bsweep.batching.build = ByRound\n"
    )
    path = imported_first(tmp_path)
    epochs = ("num_workers=2", "data.num_train=280", "epochs=2")  # of three rounds and a tail
    point = (*POINT, *epochs, "strategy.on_loss=stop")
    stopped = bsweep("run", *point, cwd=tmp_path, env={**path, "BSWEEP_STOP": "1"})
    assert stopped.returncode == 1
    assert "told to; start the same sweep again to resume" in stopped.stderr
    for study in ("s", "whole"):
        result = bsweep("run", *point, f"study={study}", cwd=tmp_path, env=path)
        assert result.returncode == 0, result.stderr
    (resumed,), (whole,) = runs(tmp_path), runs(tmp_path, "whole")
    for kind, keys in (
        (
            "round",
            ("round", "epoch", "train_loss", "num_examples", "local_steps", "worker_batches"),
        ),
        (
            "epoch",
            (
                "num_steps",
                "train_loss",
                "train_accuracy",
                "test_loss",
                "test_accuracy",
                "sent_bytes",
            ),
        ),
    ):
        ours, theirs = (
            [[record[key] for key in keys] for record in of(paths, kind)]
            for paths in (resumed, whole)
        )
        assert ours == theirs, "bit for bit"
    assert {tuple(record["worker_batches"]) for record in of(whole, "round")} == {(4, 4), (8, 8)}


def test_a_run_that_stops_in_its_last_round_only_has_to_be_evaluated(tmp_path: Path) -> None:
    env = struck(tmp_path, (0,), "strategies.diloco", "DiLoCo.end_round", 10)
    point = (*POINT, "strategy.max_rounds=10", "strategy.on_loss=stop")
    stopped, again = (bsweep("run", *point, cwd=tmp_path, env=env) for _ in range(2))
    assert stopped.returncode == 1, stopped.stderr
    assert "rank 0 was lost" in stopped.stderr, stopped.stderr
    assert again.returncode == 0, again.stderr
    (paths,) = runs(tmp_path)
    assert [record["round"] for record in of(paths, "round")] == list(range(1, 11))
    (epoch,) = of(paths, "epoch")
    assert epoch["num_steps"] == 10 * SYNC_EVERY
    assert epoch["test_accuracy"] is not None


def test_where_no_worker_may_be_lost_the_run_fails_and_names_it(tmp_path: Path) -> None:
    env = struck(tmp_path, (1,), "strategies.diloco", "DiLoCo.begin_round", 3)
    result = bsweep("run", *LONG, "strategy.on_loss=fail", cwd=tmp_path, env=env, timeout=60)
    assert result.returncode == 1, result.stderr
    (paths,) = runs(tmp_path)
    end = summary(paths)
    assert end["status"] == "failed"
    assert end["message"].startswith("rank 1 was ended by SIGKILL")
    assert compose(*LONG).run_id == paths.folder.name
