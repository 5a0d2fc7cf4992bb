"""The steps that a probe times: those of a run, compiled where the run compiles its model."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep.config.run import RunConfig
from bsweep.config.strategies import SingleConfig
from bsweep.core.ranks import Place
from bsweep.measure import probe_worker, timed_steps
from bsweep.numerics import precision
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_json
from bsweep.train import step, worker
from bsweep.train.job import Job
from tests.support.running import TINY, compose

POINT = (*TINY, "model=tiny_cnn", "local_batch=8", "launch=inline", "strategy=single", "study=s")


@pytest.mark.full
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_probe_times_steps_compiled_as_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    """Without compiling in them, also for more batches than torch compiles the same code for."""
    timed: list[tuple[int, bool]] = []  # the batch of each timed step, and True if it is compiled
    plain = step.train_step

    def seen(job: Job, batch: Any, part: Any, *more: Any) -> Any:
        compiled = job.compiled
        is_open = not compiled or compiled._is_open
        if not (compiled and is_open):
            timed.append((len(part), compiled is not None and len(part) in compiled._sizes))
        with torch.compiler.set_stance("default" if is_open else "fail_on_recompile"):
            return plain(job, batch, part, *more)

    monkeypatch.setattr(step, "train_step", seen)
    traced = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(timed_steps, "NUM_STEPS", 2)
    monkeypatch.setattr(probe_worker, "_next", lambda batch, _: batch + 1)
    monkeypatch.setitem(probe_worker._MATRIX_SIDE, "cpu", 8)
    words = (*POINT, "precision=fp32", "channels_last=false", f"results_dir={tmp_path}")
    config = compose(*words, "data.num_train=10", f"compile={str(is_compiled).lower()}")
    paths = RunPaths(tmp_path / "probe")
    paths.folder.mkdir()
    probe_worker.measure(config, paths, Place())
    (found,) = (read_json(paths.folder / "probe.json") or {})["workers"]
    assert found["largest_batch"] == 10
    assert {*timed} == {(batch, is_compiled) for batch in range(1, 11)}


def test_another_strategy_in_its_place_leaves_the_runs_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(*POINT, "launch=torchrun", "strategy=ddp", "strategy.hook=powersgd")
    chosen: list[RunConfig] = []

    def choose(of_run: RunConfig, device: object) -> str:
        chosen.append(of_run)
        return "fp32"

    monkeypatch.setattr(precision, "choose", choose)
    in_place = SingleConfig(name="single")
    job = worker.set_up(config, RunPaths(tmp_path), Place(), in_place=in_place)
    assert chosen == [config]
    assert job.config.strategy == in_place


@pytest.mark.parametrize(
    ("words", "graph"),
    [
        (("strategy=ddp",), False),
        (("strategy=horovod", "strategy.buckets=2", "launch=horovodrun"), False),
        (("strategy=allreduce",), True),
    ],
)
def test_a_probe_has_graphs_where_the_run_has_them(
    tmp_path: Path, words: tuple[str, ...], graph: bool
) -> None:
    """DDP has no graph of its passes."""
    of_run = compose(*POINT, "launch=torchrun", *words)
    job = worker.set_up(compose(*POINT), RunPaths(tmp_path), Place())
    in_probe: Any = of_run.strategy.in_probe
    job = replace(job, config=replace(of_run, strategy=in_probe))
    found = timed_steps.alone(probe_worker._with_passes_of(of_run, job))
    assert found.config.graph == graph
