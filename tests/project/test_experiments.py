"""Every experiment that is shipped runs, shrunk to seconds; and all of it runs from an installed
wheel.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from bsweep.config.data import SyntheticConfig
from bsweep.config.models import TinyCNNConfig
from bsweep.config.parsing import conf_dir
from tests.support.running import ROOT, TINY, captured, ran_ok, tool, write_text

pytestmark = pytest.mark.full

SHRUNK = ("num_workers=2", "epochs=1", "optimizer.warmup_epochs=0", "log_every_steps=5")
SHRUNK_AXES = ("local_batch", "num_workers")
ALIKE = {"paper_linear", "parameter_sharding_ring", "quickstart"}
"""Experiments that make no report here: `paper`, `parameter_sharding` and the wheel's quickstart
have the same kinds of records.
"""


def written(experiment: str) -> dict[str, Any]:
    """Return what the file of an experiment has."""
    return dict(yaml.safe_load((conf_dir() / "experiment" / f"{experiment}.yaml").read_text()))


def shrunk(experiment: str) -> tuple[str, ...]:
    """Overrides for tiny data and a tiny model, without the keys that only the experiment's own
    have.
    """
    text = written(experiment)
    foreign = [
        f"~{group}.{key}"
        for group, card in (("data", SyntheticConfig), ("model", TinyCNNConfig))
        for key in text.get(group, {}).keys() - {field.name for field in fields(card)}
    ]
    return (f"experiment={experiment}", *TINY, "model=tiny_cnn", *foreign, "local_batch=8", *SHRUNK)


@pytest.mark.parametrize(
    "experiment", sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
)
def test_every_experiment_runs_shrunk_and_reports(experiment: str, tmp_path: Path) -> None:
    axes = written(experiment).get("hydra", {}).get("sweeper", {}).get("params", {})
    first = [
        f"{axis}={values.split(',')[0]}"
        for axis, values in axes.items()
        if values and axis not in SHRUNK_AXES
    ]
    report = ["--report"] * (experiment not in ALIKE)
    result = ran_ok("run", *report, "-m", *shrunk(experiment), *first, cwd=tmp_path)
    (end,) = tmp_path.glob("results/*/*/summary.json")
    assert json.loads(end.read_text())["status"] == "completed"
    if report:
        page = tmp_path / result.stdout.strip().splitlines()[-1]
        assert page == end.parents[1] / "report/report.html"
        assert page.exists()


def test_a_sweep_over_allocations_prints_the_idle_seconds_of_each_node(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 20_000)
    point = f"experiment=geo_distributed data.path={text} allocation=uniform,steps_by_flops"
    shrunk = "model=llama_tiny local_batch=2 data.sequence_length=16 strategy.sync_every=4"
    words = (*point.split(), *shrunk.split(), "strategy.max_rounds=3")
    result = ran_ok("run", *words, cwd=tmp_path)
    head, uniform, by_flops = result.stdout.splitlines()[-3:]
    assert head.split()[:3] == ["variant", "node", "1"]
    assert head.endswith("tokens/s")
    assert uniform.split()[0] == "uniform"
    assert by_flops.startswith("steps by FLOP/s")
    assert "round 3/3" in result.stderr
    assert "local steps 4, 4, 6, 5" in result.stderr


def test_an_installed_wheel_runs_outside_the_checkout(tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    # uv does in a moment what takes pip seconds.
    uv = (tool("uv"), "--quiet", "--offline", "--no-cache")
    python = ("--python", sys.executable)
    build = ("build", "--wheel", "--no-build-isolation", "--out-dir", str(tmp_path), str(ROOT))
    captured([*uv, *build, *python], 0)
    (built,) = tmp_path.glob("bsweep-*.whl")
    install = ("pip", "install", "--no-deps", "--target", str(site), str(built))
    captured([*uv, *install, *python], 0)
    for extra in ("safetensors", "sklearn", "timm", "tokenizers"):
        (site / f"{extra}.py").write_text("raise ImportError")
    env = {**os.environ, "PYTHONPATH": str(site)}
    script = ["bash", str(site / "bsweep/scripts/build_horovod.sh"), sys.executable, "--key"]
    assert "horovod" in captured(script, 0).stdout
    command = [sys.executable, str(site / "bin/bsweep"), "run", "--report", *shrunk("quickstart")]
    captured(command, 0, cwd=elsewhere, env=env)
    assert (elsewhere / "results/quickstart/report/report.html").exists()
