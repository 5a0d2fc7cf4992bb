"""Steps whose model torch compiled: the same numbers, and no compilation in a timed step."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bsweep.config.values import ConfigError
from bsweep.core.ranks import Place
from bsweep.numerics import precision
from bsweep.numerics.compiled import CannotCompile, Compiled
from bsweep.runlog import calibration_file
from bsweep.runlog.calibration_file import Calibration, Numerics, Timed
from bsweep.runlog.files import RunPaths
from bsweep.runlog.reading import read_records
from bsweep.train import choose_numerics, worker
from tests.support.running import TINY, compose

SMALL = (
    *(*TINY, "model=tiny_cnn", "precision=fp64", "channels_last=false", "local_batch=32"),
    *("launch=inline", "strategy=single", "epochs=2", "optimizer.lr=0.5"),
)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracing of torch.compile without the minutes of its C++ compiler."""
    traced = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", traced)


def trained(folder: Path, *words: str) -> tuple[Tensor, list[dict[str, Any]]]:
    folder.mkdir()
    job = worker.train(compose(*SMALL, *words), RunPaths(folder), Place())
    return job.vector.parameters.clone(), list(read_records(RunPaths(folder).metrics)[0])


def same_training(folder: Path, *words: str) -> None:
    """Two epochs of full steps and a smaller last one, all compiled before the first."""
    plain, (before, *_) = trained(folder / "plain", *words)
    compiled, (start, *_) = trained(folder / "compiled", *words, "compile=true")
    assert (before["compile"], before["compile_seconds"]) == (False, None)
    assert start["compile"] is True
    assert start["compile_seconds"] > 0
    assert before["run_id"] != start["run_id"]
    torch.testing.assert_close(compiled, plain, rtol=1e-9, atol=1e-12)


def test_compiled_steps_train_the_same_model(tmp_path: Path, quickly: None) -> None:
    same_training(tmp_path, "accumulation_steps=2")


@pytest.mark.slow
def test_steps_of_the_cpp_compiler_train_the_same_model(tmp_path: Path) -> None:
    same_training(tmp_path)


def test_other_batches_than_those_of_the_warm_up_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def told(name: str) -> Callable[[Tensor], None]:
        return lambda inputs: calls.append(f"{name} {len(inputs)}")

    monkeypatch.setattr(torch, "compile", lambda model, dynamic: told("compiled"))
    model: Any = told("plain")
    found = Compiled(model)
    found(torch.zeros(2))
    with found.compiling():
        found(torch.zeros(2))
    for size in (3, 2):
        found(torch.zeros(size))
    assert calls == ["plain 2", "compiled 2", "plain 3", "compiled 2"]


def test_what_cannot_be_compiled_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backend(*_: object) -> Any:
        raise OSError("no g++ here\nand more")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    with pytest.raises(CannotCompile, match=r"no g\+\+ here and more\. .* use compile=false\.$"):
        trained(tmp_path / "run", "compile=true")


def answered(folder: Path, **wanted: Any) -> Calibration:
    """By a worker's set-up."""
    request = Calibration(1, wanted_batches=(4, 8), precision="fp64", channels_last=False, **wanted)
    folder.mkdir()
    calibration_file.write_calibration(folder / "calibration.json", request)
    job = worker.set_up(compose(*SMALL, "compile=auto"), RunPaths(folder), Place())
    found = calibration_file.read_calibration(folder / "calibration.json")
    assert found
    assert (job.compiled is not None) == found.ranked(job.config)[0][0].compiled
    return found


def test_a_calibration_times_the_compiled_model_without_compiling(
    tmp_path: Path, quickly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the best other, for the least and the largest batch, in steps after the first."""
    timed: list[tuple[bool, int]] = []
    plain = choose_numerics._step_seconds

    def seconds(job: Any, batch: int) -> float:
        plain(job, batch)
        is_timed = not (job.compiled and job.compiled._is_open)
        timed.extend([(bool(job.compiled), batch)] * is_timed)
        return 0.5 if job.compiled else 1.0

    monkeypatch.setattr(choose_numerics, "_step_seconds", seconds)
    found = answered(tmp_path / "auto", compile="auto")
    assert [one.numerics for one in found.timed] == [
        Numerics("fp64", False),
        Numerics("fp64", False, True),
    ]
    assert [one.step_seconds for one in found.timed] == [(1.0, 1.0), (0.5, 0.5)]
    assert found.compile_seconds
    assert {(True, 4), (True, 8)} <= {*timed}
    said = found.says(compose(*SMALL, "compile=auto"))
    assert "Using fp64, contiguous, compiled: the fastest" in said
    assert f"compiling took {found.compile_seconds:.0f} s" in said


def test_each_candidate_of_a_compiled_calibration_is_compiled(
    tmp_path: Path,
    quickly: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """For two of the four batches only: `fullgraph` makes torch raise an error where it would
    otherwise run without compilation, because it has compiled the same code too often.
    """
    monkeypatch.setattr(precision, "choose", lambda *_: "bf16")
    request = Calibration(1, wanted_batches=(2, 4, 6, 8), compile=True)
    calibration_file.write_calibration(tmp_path / "calibration.json", request)
    words = (*SMALL, "compile=true", "precision=auto", "channels_last=auto")
    worker.set_up(compose(*words), RunPaths(tmp_path), Place())
    found = calibration_file.read_calibration(tmp_path / "calibration.json")
    assert found
    assert "cannot compile" not in capfd.readouterr().out
    assert found.measured_batches == (2, 8)
    assert {one.numerics for one in found.timed} == {
        Numerics(name, last, True) for name in ("fp32", "bf16") for last in (False, True)
    }


def test_a_calibration_goes_on_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> Any:
        raise CannotCompile("no g++ here")

    monkeypatch.setattr(Compiled, "__call__", lambda *_: broken(None))
    found = answered(tmp_path / "auto", compile="auto")
    assert [one.numerics.compiled for one in found.timed] == [False]
    assert found.compile_seconds is None


def test_gpus_compare_their_half_precision_fp16_and_the_compiled_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Numerics, ...]] = []

    def timed(candidates: Any, wanted: Calibration, batches: Any, *_: object) -> Calibration:
        asked.append(candidates)
        seconds = [Timed(one, (0.1 * len(one.precision),)) for one in candidates]
        return replace(wanted, measured_batches=tuple(batches), timed=tuple(seconds))

    monkeypatch.setattr(choose_numerics, "_timed", timed)
    monkeypatch.setattr(precision, "choose", lambda *_: "bfloat16")
    gpu: Any = SimpleNamespace(type="cuda")
    data: Any = SimpleNamespace(train_labels=torch.zeros(90), train_inputs=torch.zeros(90, 3, 8, 8))
    strategy: Any = SimpleNamespace(gather_json=lambda own: [json.loads(json.dumps(own))])
    none: Any = None
    wanted = Calibration(1, (8,), compile="auto")
    config = compose("local_batch=8", "compile=auto")
    choose_numerics._measure(config, wanted, data, gpu, none, strategy)
    each = tuple(Numerics(name, last) for name in ("bfloat16", "fp16") for last in (True, False))
    assert asked == [each, (each[2], replace(each[2], compiled=True))]


def test_a_compiled_model_is_chosen_only_beyond_the_scatter() -> None:
    plain, other = Numerics("fp32", False), Numerics("fp32", True)
    answer = Calibration(
        1,
        (8, 16, 64),
        compile="auto",
        measured_batches=(8, 16, 64),
        timed=(Timed(other, (0.2, 0.3, 0.9)), Timed(plain, (0.1, 0.2, 0.8))),
    )
    best = replace(plain, compiled=True)
    pair = Calibration(
        1,
        (8, 16, 64),
        measured_batches=(8, 64),
        timed=(Timed(plain, (0.2, 1.6)), Timed(best, (0.18, 1.2))),
        noise=0.05,
        compile_seconds=80.0,
    )
    both = choose_numerics._with_compiled(answer, pair)
    assert both.timed[:2] == answer.timed
    assert both.timed[2].step_seconds == pytest.approx((0.09, 0.18, 0.6))
    config = compose("local_batch=8", "compile=auto")
    assert both.ranked(config)[0][0] == best
    assert replace(both, noise=0.2).ranked(config)[0][0] == plain
    assert not calibration_file.numerics_for(compose("local_batch=8"), both, plain).compiled
    ddp = compose("local_batch=8", "compile=auto", "strategy=ddp", "launch=torchrun")
    assert not calibration_file.numerics_for(ddp, both, plain).compiled


def test_what_cannot_be_compiled_is_refused_before_the_start() -> None:
    for words in (("strategy=ddp", "launch=torchrun"), ("launch.memory_limit_mb=[500]",)):
        with pytest.raises(ConfigError, match="compile=true with"):
            compose("local_batch=8", "compile=true", *words)
    ids = {
        compose("local_batch=8", *words).run_id
        for words in ((), ("compile=false",), ("compile=true",), ("compile=auto",))
    }
    assert len(ids) == 3
