"""The estimates of memory by `bsweep plan --memory`, held to what workers measure."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bsweep.config.splitting import PipelineConfig
from bsweep.study.memory import estimates
from tests.support.running import TINY, bsweep, compose

TEXT = ("data=text", f"data.path={Path(__file__)}", "data.sequence_length=64")
LLAMA = (
    "data=text", "data.path=text", "data.sequence_length=128", "data.subset=32",
    "model=llama_tiny", "model.hidden_size=256", "model.intermediate_size=688",
    "model.num_layers=4", "local_batch=4,16", "study=s", "epochs=1", "precision=fp32",
    "launch.threads_per_worker=1",
)  # fmt: skip


def of_points(cwd: Path, *words: str) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Run the points of a grid, and return the estimated and the recorded memory of each."""
    (cwd / "text").write_text("All happy families are alike.\n" * 200)
    # Forks of a process that has imported more would take more memory.
    planned = bsweep("plan", "--memory", "--json", *words, cwd=cwd, fresh=True, timeout=900)
    assert planned.returncode == 0, planned.stderr
    ran = bsweep("run", *words, cwd=cwd, fresh=True, timeout=900)
    assert ran.returncode == 0, ran.stderr
    points = json.loads(planned.stdout)["points"]
    recorded = []
    for point in points:
        lines = (cwd / "results/s" / point["run_id"] / "metrics.jsonl").read_text().splitlines()
        (epoch,) = [one for line in lines if (one := json.loads(line))["type"] == "epoch"]
        recorded.append(epoch["worker_memory"])
    return [point["memory"] for point in points], recorded


@pytest.mark.parametrize(
    "words",
    [
        ("strategy=single", "num_workers=1", "launch.memory_limit_mb=[4000]"),
        pytest.param(
            ("strategy=sharded", "num_workers=2", "launch.memory_limit_mb=[4000,4000]"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_estimates_are_near_what_workers_measure(tmp_path: Path, words: tuple[str, ...]) -> None:
    estimated, recorded = of_points(tmp_path, *LLAMA, *words)
    for told, workers in zip(estimated, recorded, strict=True):
        for part in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
            assert told[part] == workers[0][part]
        assert told["total_bytes"] == pytest.approx(workers[0]["peak_bytes"], rel=0.2)
    # What Python and torch take is in both peaks.
    small, large = (workers[0]["peak_bytes"] for workers in recorded)
    of_batch = estimated[1]["activation_bytes"] - estimated[0]["activation_bytes"]
    assert large - small == pytest.approx(of_batch, rel=0.2)
    assert of_batch > estimated[0]["parameter_bytes"], "the batch decides"


def test_a_sweep_of_one_model_counts_two_batches() -> None:
    from bsweep.models.activations import bytes_of_passes

    points = [
        compose(*TINY, "model=tiny_cnn", "strategy=single", f"local_batch={batch}", f"seed={seed}")
        for batch in range(2, 42)
        for seed in range(4)
    ]
    before = bytes_of_passes.cache_info().misses
    told = estimates(points)
    assert bytes_of_passes.cache_info().misses == before + 2
    totals = [one.fullest.total_bytes for one in told[::4] if one.fullest]
    assert len(totals) == 40
    assert totals == sorted(set(totals))
    (alone,) = estimates([points[80]])
    assert alone.fullest
    assert told[80].fullest
    between = told[80].fullest.activation_bytes
    assert between == pytest.approx(alone.fullest.activation_bytes, rel=0.02)


def activations(*words: str) -> int:
    (one,) = estimates([compose(*TINY, "model=tiny_cnn", "local_batch=512", *words)])
    assert one.fullest, one.why_not
    return one.fullest.activation_bytes


def test_half_precision_takes_less_and_a_second_pass_more() -> None:
    plain = activations("precision=fp32", "strategy=single")
    assert 0.4 * plain < activations("precision=bf16", "strategy=single") < 0.7 * plain
    assert activations("precision=fp64", "strategy=single") == pytest.approx(2 * plain, rel=0.01)
    assert activations("precision=fp32", "strategy=single", "accumulation_steps=3") > plain


@pytest.mark.parametrize(
    ("words", "num_vectors"),
    [
        (("strategy=allreduce",), 0),
        (("strategy=ddp",), 1),
        (("strategy=diloco", "strategy.overlap=false"), 2),
        (("strategy=allreduce", "compression=dgc"), 2),
        (("strategy=sharded", "strategy.wrap=model"), 3),
    ],
)
def test_strategies_and_codecs_hold_vectors(words: tuple[str, ...], num_vectors: float) -> None:
    (one,) = estimates([compose(*TINY, "model=tiny_cnn", "num_workers=2", "local_batch=8", *words)])
    assert one.fullest, one.why_not
    split = 2 if "strategy=sharded" in words else 1
    whole = one.fullest.parameter_bytes * split
    assert one.fullest.strategy_bytes == pytest.approx(num_vectors * whole, rel=0.05)


@pytest.mark.parametrize(("stage", "parts"), [(1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))])
def test_each_stage_of_deepspeed_divides_more(stage: int, parts: tuple[int, ...]) -> None:
    how = ("model=tiny_cnn", "optimizer=adamw", "local_batch=8", "precision=fp32", "num_workers=4")
    points = (("strategy=allreduce",), ("strategy=deepspeed", f"strategy.stage={stage}"))
    whole, own = (one.fullest for one in estimates([compose(*TINY, *how, *p) for p in points]))
    assert whole
    assert own
    for part, number in zip(("parameter", "gradient", "optimizer"), parts, strict=True):
        expected = getattr(whole, f"{part}_bytes") / number
        assert getattr(own, f"{part}_bytes") == pytest.approx(expected, rel=0.05)
    passes = (3 if stage == 3 else 2) * whole.parameter_bytes
    assert own.strategy_bytes == pytest.approx(passes + whole.parameter_bytes / 2, rel=0.05)


def test_points_that_cannot_fit_are_named_with_a_remedy() -> None:
    few = ("model=tiny_cnn", "strategy=single")
    limited, vast, fits = estimates(
        [
            compose(*TINY, *few, "local_batch=4096", "launch.memory_limit_mb=[8]"),
            compose(*TINY, *few, "local_batch=1000000000"),
            compose(*TINY, *few, "local_batch=16"),
        ]
    )
    assert "more than launch.memory_limit_mb=8: use a smaller local_batch" in limited.warning
    assert "that this machine has free for each worker: use a smaller" in vast.warning
    assert fits.warning == ""


def test_a_model_that_needs_values_is_not_estimated(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(
        "from torch import nn\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, num_classes, shape):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(shape[0] * shape[1] * shape[2], num_classes)\n\n"
        "    def forward(self, images):\n"
        "        if images.sum().item() == 1:\n"
        "            images = 2 * images\n"
        "        return self.head(images.flatten(1))\n"
    )
    words = (*TINY, "strategy=single", "model=own", "model.target=mymodel.py:Net", "local_batch=8")
    planned = bsweep("plan", "--memory", *words, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "not estimated" in planned.stdout
    assert "memory is not estimated: the model does not run without values" in planned.stdout


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("strategy=tensor",), marks=pytest.mark.nightly),
        pytest.param(("strategy=pipeline", "strategy.schedule=gpipe"), marks=pytest.mark.nightly),
        ("strategy=pipeline", "strategy.schedule=1f1b"),
        ("strategy=pipedream",),
    ],
)
def test_estimates_of_parts_are_near_what_workers_measure(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    limits = ("num_workers=2", "launch.memory_limit_mb=[4000,4000]")
    estimated, recorded = of_points(tmp_path, *LLAMA, *limits, *words)
    for told, workers in zip(estimated, recorded, strict=True):
        assert told["parameter_bytes"] in [worker["parameter_bytes"] for worker in workers]
        assert told["optimizer_bytes"] in [worker["optimizer_bytes"] for worker in workers]
        peak = max(worker["peak_bytes"] for worker in workers)
        assert told["total_bytes"] == pytest.approx(peak, rel=0.2)
    small, large = (max(worker["peak_bytes"] for worker in workers) for workers in recorded)
    of_batch = estimated[1]["activation_bytes"] - estimated[0]["activation_bytes"]
    assert large - small == pytest.approx(of_batch, rel=0.2)


def test_schedules_keep_more_or_fewer_micro_batches() -> None:
    def kept(*words: str) -> int:
        few = ("num_workers=2", "local_batch=64", "strategy.microbatches=8", "strategy.cuts=[2]")
        words = ("strategy=pipeline", "model=llama_tiny", *TEXT, *few, *words)
        (one,) = estimates([compose(*words)])
        assert one.fullest, one.why_not
        return one.fullest.activation_bytes

    assert kept("strategy.schedule=1f1b") < 0.5 * kept("strategy.schedule=gpipe")


SCHEDULES = {
    "interleaved_1f1b": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("workers", "number"), [(2, 4), (2, 8), (4, 8), (4, 16)])
def test_the_micro_batches_in_flight_are_those_of_torchs_schedules(
    schedule: Any, workers: int, number: int
) -> None:
    from torch.distributed.pipelining.schedules import get_schedule_class

    card = PipelineConfig(
        name="pipeline", replicas=1, reduce="fp32", schedule=schedule, microbatches=number,
        cuts=None,
    )  # fmt: skip
    rounds = max(1, number // workers)
    stub = SimpleNamespace(
        n_local_stages=2, _n_microbatches=number, pp_group_size=workers, num_stages=2 * workers,
        _num_stages=2 * workers, number_of_rounds=rounds, microbatches_per_round=number // rounds,
    )  # fmt: skip
    kind: Any = get_schedule_class(SCHEDULES[schedule])
    for part in range(workers):
        orders = kind._calculate_single_rank_operations(stub, part)
        assert card.in_flight(part, workers, 1) == _most_kept(orders)


def _most_kept(orders: list[Any]) -> tuple[int, ...]:
    """Return of how many micro-batches a worker keeps activations when it keeps most, for each of
    its stages.
    """
    kept: set[tuple[int, int]] = set()
    most: set[tuple[int, int]] = set()
    for action in filter(None, orders):
        for one in action.sub_actions or (action,):
            pair, kind = (one.stage_index, one.microbatch_index), one.computation_type.name
            if kind == "FORWARD":
                kept.add(pair)
            elif kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"):
                kept.discard(pair)
            if len(kept) > len(most):
                most = set(kept)
    return tuple(number for _, number in sorted(Counter(stage for stage, _ in most).items()))
