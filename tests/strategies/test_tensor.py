"""Workers that hold parts of a model: those that compute parts of layers (`strategy=tensor`) end
with the weights of one worker, stages are balanced, and a worker that is lost or without memory is
a result that names it.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bsweep import data, models
from bsweep.config.values import ConfigError
from bsweep.numerics import timing
from bsweep.strategies.splitting import Split
from bsweep.strategies.stages import Activations, Times, balanced
from tests.strategies.test_equivalence import DIVIDED, DROPPING, _end_processes, oracle, trained  # noqa: F401 (the fixture ends the processes)
from tests.support.running import (
    ROOT,
    TINY,
    bsweep,
    compose,
    exits,
    imported_first,
    struck,
    summaries,
    workers_left,
    write_text,
)


@pytest.mark.full
def test_replicas_drop_other_values_and_agree() -> None:
    how = ("strategy=tensor", "strategy.replicas=2", "global_batch=24")
    first, *others = trained(4, *how, *DROPPING)
    for worker in others:
        assert torch.equal(worker["parameters"], first["parameters"])
    assert not torch.allclose(first["parameters"], oracle(24, *DROPPING)["parameters"], rtol=1e-4)


def test_layers_that_no_plan_names_stay_equal_bit_for_bit() -> None:
    first, *others = trained(4, "strategy=tensor", "global_batch=24", *DIVIDED)
    for worker in others:
        assert torch.equal(worker["parameters"], first["parameters"])


@pytest.mark.full
def test_gradients_that_travel_in_bf16_stay_close() -> None:
    more = (*DIVIDED, "precision=fp32", "optimizer.lr=0.05", "epochs=1")
    how = ("strategy=tensor", "strategy.replicas=2", "global_batch=24")
    rounded, whole = (trained(2, *how, f"strategy.reduce={r}", *more) for r in ("bf16", "fp32"))
    assert torch.equal(rounded[0]["parameters"], rounded[1]["parameters"])
    assert not torch.equal(rounded[0]["parameters"], whole[0]["parameters"])
    torch.testing.assert_close(
        rounded[0]["parameters"], whole[0]["parameters"], rtol=0.05, atol=1e-3
    )
    sent = [run[0]["epochs"][0]["sent_bytes"] for run in (rounded, whole)]
    assert sent[0] * 2 == sent[1] == 4 * 4 * len(whole[0]["parameters"])  # a vector in each step


def test_sent_bytes_count_replicas_gradients_too() -> None:
    more = ("strategy=tensor", "global_batch=24", "optimizer.lr=0.1", *DIVIDED)
    of_pass = trained(2, *more)[0]["epochs"][0]["sent_bytes"]
    first, *_ = trained(4, *more, "strategy.replicas=2")
    in_passes = 8 * 91 * (4 * 4 * 4 + 16)  # the inputs of layer 2, backward, the outputs of layer 5
    assert of_pass == in_passes
    num_divided = 64 * 24 + 24 + 24 * 16
    own_part = len(first["parameters"]) - num_divided // 2
    # Of the last 19 examples one replica has 10: the mean counts, which is the same everywhere.
    assert first["epochs"][0]["sent_bytes"] == in_passes / 2 + 4 * 8 * own_part


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model=vgg16 num_workers=4", ""),
        ("model=vgg16 num_workers=3", r"model=vgg16 .* 3 workers .* divide 4096"),
        ("model=llama_tiny num_workers=3", r"model=llama_tiny .* 3 workers .* divide 176 and 4"),
        ("model=tiny_cnn num_workers=2", "model=tiny_cnn: the model has no plan"),
    ],
)
def test_layers_that_workers_cannot_share_are_refused(words: str, said: str) -> None:
    is_text = "llama" in words
    examples = ("data=text", "data.path=x") if is_text else ("data=synthetic",)
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        config = compose(*words.split(), *examples, "strategy=tensor", "local_batch=8")
        models.check_model(config, 256, (64,) if is_text else (3, 32, 32))


@pytest.mark.parametrize(
    ("builder", "said"),
    [
        ("noisy_network.py:build", "give your module a method tensor_plan"),
        ("divided_network.py:misnamed", "names fc, but no module"),
        ("divided_network.py:hasty", "Conv2d is no layer that ColwiseParallel can"),
        ("divided_network.py:tied", "whose parameters another module"),
        ("divided_network.py:build", "24 values cannot be divided among the 5 "),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(builder: str, said: str) -> None:
    words = ("model=own", f"model.target={ROOT}/tests/support/{builder}", "data=synthetic")
    config = compose(
        *words, "strategy=tensor", "num_workers=5", "local_batch=8"
    ).with_fingerprints()
    with pytest.raises(ConfigError, match=said):
        models.check_model(config, 10, (3, 8, 8))


@pytest.mark.parametrize(
    ("builder", "said"),
    [("learning_slope", r"3\.weight .* lies between layers"), ("dropping", ""), ("Joined", "")],
)
def test_a_parameter_between_shared_layers_is_refused(builder: str, said: str) -> None:
    target = f"model.target={ROOT}/tests/support/divided_network.py:{builder}"
    words = (*TINY, "model=own", target, "strategy=tensor", "num_workers=2", "local_batch=8")
    config = compose(*words).with_fingerprints()
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        models.try_model(config, data.prepare(config.data))


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_balanced_cuts_make_the_slowest_stage_as_fast_as_any_do(num_stages: int) -> None:
    seconds = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]

    def slowest(cuts: tuple[int, ...]) -> float:
        borders = [0, *cuts, len(seconds)]
        return max(sum(seconds[i:j]) for i, j in itertools.pairwise(borders))

    every = itertools.combinations(range(1, len(seconds)), num_stages - 1)
    assert slowest(tuple(balanced(seconds, num_stages))) == min(map(slowest, every))


def test_a_message_counts_for_the_end_of_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker computes 2 s, waits 5 s for a message that takes 1 s, computes 3 s, waits 0.5 s
    for another, computes 1 s, and ends 4 s later.
    """
    clock = iter([0.0, 0.0, 2.0, 7.0, 10.0, 10.5, 11.5, 15.5])
    monkeypatch.setattr(timing, "mark", lambda device: next(clock))
    times = Times(torch.device("cpu"))
    with times.step():
        for message_seconds in (0.0, 1.0, 1.0):
            with times.computing(message_seconds):
                pass
    assert times.read() == [6.0, 8.0, 1.5]


def test_activations_are_what_backward_passes_need() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        flat = torch.cat([p.reshape(-1) for p in model.parameters()])
        for parameter, part in zip(
            model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True
        ):
            parameter.data = part.view_as(parameter)
    count = Activations(flat)
    for _ in range(2):
        with count.counted():
            first, second = (model(torch.randn(3, 4)) for _ in range(2))
            (first.sum() + second.sum()).backward()
            del first, second
    assert count.peak_bytes == 2 * 3 * (4 + 8) * 4, "inputs of both layers, twice, in fp32"


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
    exits(1, "run", *point, cwd=tmp_path, env=env, timeout=60)
    assert (tmp_path / f"struck{rank}").exists()
    (end,) = summaries(tmp_path).values()
    assert end["status"] == "failed"
    assert end["message"].startswith(f"rank {rank} was ended by SIGKILL"), end["message"]
    assert not workers_left(tmp_path)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("strategy", SPLIT)
def test_too_little_memory_is_a_result(tmp_path: Path, strategy: str) -> None:
    more = ("data.num_train=20000", "local_batch=10000", "launch.memory_limit_mb=[10,10]")
    exits(1, "run", *POINT, *SPLIT[strategy], *more, cwd=tmp_path, timeout=120)
    (end,) = summaries(tmp_path).values()
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
