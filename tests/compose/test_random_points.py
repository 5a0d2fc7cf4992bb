"""Points drawn at random from the schema train to an end that is a result, or a failure in plain
words.
"""

from __future__ import annotations

import functools
import json
import random
import re
import shlex
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import pytest
from hydra import compose as hydra_compose
from omegaconf import OmegaConf
from pydantic.fields import FieldInfo

from bsweep.compose.hydra_grid import initialized
from bsweep.config.groups import AllocationConfig
from bsweep.config.measure import MeasureConfig
from bsweep.config.parsing import parse
from bsweep.config.rules import problems_with_data
from bsweep.config.run import GROUPS, RunConfig, cards_by_name
from bsweep.config.values import ConfigError
from tests.support.running import bsweep, compose, write_text
from tests.train.test_own_parts import PARTS

Point = dict[str, Any]
"""The keys that a command gives, with their values."""

SIZED: Mapping[str, Mapping[str, Any]] = {
    "data=synthetic": {"num_train": 30, "num_test": 10, "shape": [3, 8, 8], "crop_padding": 1},
    "data=digits": {"side": 8, "subset": 30, "crop_padding": 1},
    "data=text": {"path": "text.txt", "sequence_length": 16},
    "data=own": {"target": "parts.py:numbers"},
    "model=tiny_cnn": {},
    "model=llama_tiny": {"hidden_size": 16, "num_heads": 2},
    "model=own": {"target": "parts.py:Net"},
    "model=timm": {"architecture": "test_resnet"},
    "model=torchvision": {"architecture": "mobilenet_v3_small"},
    "optimizer=own": {"target": "torch.optim:RMSprop"},
    "strategy=own": {"target": "parts.py:Sum", "options": {"scale": 0.5}},
    "compression=own": {"target": "parts.py:Clamped", "options": {"limit": 1.0}},
    "batching=own": {"target": "parts.py:Growing"},
}
"""Values without which a variant would be large, or could not run here."""

ALLOCATIONS = [*cards_by_name("allocation")]
CHOSEN: Mapping[str, list[Any]] = {
    "data": ["synthetic"] * 12 + ["digits"] * 2 + ["text"] * 4 + ["own"],
    "model": ["tiny_cnn"] * 5 + ["llama_tiny", "llama_tiny", "own", "own", "timm", "torchvision"],
    "launch": ["horovodrun", "torchrun", "inline"],  # no SLURM is here
    # DeepSpeed is in an environment of its own
    "strategy": [name for name in cards_by_name("strategy") if name != "deepspeed"],
    "program": ["builtin"],
    "allocation": ["uniform"] * 6 + [name for name in ALLOCATIONS if name != "uniform"],
    "num_workers": [1, 2],
    "local_batch": [1, 2, 3, 4, 8],
    "global_batch": [2, 4, 6, 12, 30],
    "accumulation_steps": [1, 2, 3],
    "epochs": [1, 1, 1, 2],
    "device": ["auto", "cpu"],
    "precision": ["auto", "fp32", "bf16", "fp16", "fp64"],  # neither TF32 nor graphs without a GPU
    "graph": [True, False],
    "checkpoint_every": ["auto", None, 1, "0.001s", "60s"],
    "evaluate_every_examples": [None, 1, 7, 10, 29],
    "target_accuracy": [None, 0.0, 0.1, 0.9],
    "target_loss": [None, 0.01, 2.3, 100.0],
    "trackers": [[], [], ["tensorboard"]],
    "data.device": ["auto", "cpu"],
    "data.shape": [[1, 8, 8], [3, 8, 8], [3, 9, 7], [2, 16, 8]],
    "data.num_train": [24, 30, 60],
    "data.num_test": [1, 7, 10],
    "data.num_classes": [2, 3, 10],
    "data.subset": [None, 20, 23],
    "data.side": [8, 11],
    "data.crop_padding": [0, 1, 5, 20],
    "data.sequence_length": [2, 8, 16],
    "model.hidden_size": [8, 16, 32],
    "model.num_layers": [1, 2],
    "model.width": [1, 2, 8],
    "model.intermediate_size": [1, 16, 33],
    "model.vocabulary_size": [None, 256],
    "optimizer.milestones": [[], [0.5], [0.25, 0.5], [1, 2]],
    "strategy.hook": ["none", "fp16", "powersgd"],
    "strategy.op": ["average"],  # adasum needs MPI
    "strategy.num_servers": [None, 1, 2],
    "strategy.weights": [None, [1], [0.5, 0.5], [0.25, 0.75], [0, 1]],
    "strategy.max_seconds": [None, 1e-3, 1e9],
    "strategy.cycle_time_ms": [0.1, 1.0, 20],
    "compression.warmup_densities": [[], [0.25, 0.063]],
    "launch.network_interface": [None, "lo"],
    "launch.start_timeout_seconds": [300],
    "launch.stall_timeout_seconds": [300],
    "launch.environment": [[], ["HOME"]],
    "launch.parallel": [1, 2, "auto"],
    "launch.retries": [0, 1],
    "launch.slowdown": [None, [1], [2], [1, 1.5]],
    "launch.memory_limit_mb": [None, [4096], [4096, 4096]],
    "launch.threads_per_worker": [None, 1, 2, 3],
}
"""The values of keys whose type says too little of what is small, or is there."""

LEFT_OUT = re.compile(
    r"study|results_dir|resume_from|allocation\.(devices|local_.*)|model\.weights(_sha256)?"
    r"|.*\.(name|blocks|fingerprint|options|root|download|dataset|path"
    r"|tokenizer|probe|architecture|target|hosts|ssh_(port|identity_file|options))|program\..*"
)
"""Keys that lead to something outside a point, and those that `SIZED` gives."""


class Composer:
    """Draws valid points."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def point(self) -> Point:
        given = self._groups()
        for _ in range(self._draw.randint(3, 12)):
            keys = self._keys(given)
            some = self._draw.sample(sorted(keys), self._draw.choice([1, 1, 1, 2, 3]))
            more = {**given, **{key: self._value(keys, key) for key in some}}
            given = more if is_valid(more) else given
        return given

    def _groups(self) -> Point:
        """Values that are valid together of all groups, and of the keys without which they are not.

        A strategy and a policy are drawn first: of all that is valid, most has those that fit to
        most.
        """
        while True:
            first = {group: self._value({}, group) for group in ("strategy", "batching")}
            for _ in range(50):
                if is_valid(given := self._sized({**self._some_groups(), **first})):
                    return given

    def _some_groups(self) -> Point:
        batch = self._draw.choice(["local_batch"] * 3 + ["global_batch"])
        return {
            "seed": self._draw.randrange(2**31),
            "epochs": 1,
            "local_batch": None,
            "num_workers": self._draw.choice([1, 2, 2]),
            batch: self._draw.choice(CHOSEN[batch]),
            **{group: self._value({}, group) for group in GROUPS},
        }

    def _sized(self, given: Point) -> Point:
        of_groups = {
            f"{group}.{key}": value
            for group in GROUPS
            for key, value in SIZED.get(f"{group}={given[group]}", {}).items()
        }
        num_workers, name = given["num_workers"], given["allocation"]
        card = cards_by_name("allocation")[name]
        assert issubclass(card, AllocationConfig)
        lists: Point = {"devices": ["A30", "V100"][:num_workers] if card.takes_devices else None}
        for key, is_needed in (
            ("local_batches", card.shares_batches and not card.takes_devices),
            ("local_steps", card.shares_steps and not card.takes_devices),
        ):  # nobody has probed the workers
            if is_needed or self._draw.random() < 0.2:
                lists[key] = [self._draw.randint(1, 5) for _ in range(num_workers)]
        return given | of_groups | {f"allocation.{key}": value for key, value in lists.items()}

    def _keys(self, given: Point) -> dict[str, Any]:
        """The type of each key that may be drawn for what is given."""
        hints = dict(hints_of(RunConfig, ""))
        for group in GROUPS:
            card = cards_by_name(group)[given[group]]
            hints |= hints_of(card, f"{group}.")  # type: ignore[arg-type]
        hints |= hints_of(MeasureConfig, "measure.")
        return {key: hint for key, hint in hints.items() if not LEFT_OUT.fullmatch(key)}

    def _value(self, hints: Mapping[str, Any], key: str) -> Any:
        if key in CHOSEN:
            return self._draw.choice(CHOSEN[key])
        if key in GROUPS:
            return self._draw.choice([name for name in cards_by_name(key) if name != "program"])
        return self._of(hints[key], {})

    def _of(self, hint: Any, bounds: dict[str, float]) -> Any:
        """A value of a type, mostly a small one, sometimes at the bounds."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            for info in hint.__metadata__:
                for one in info.metadata if isinstance(info, FieldInfo) else ():
                    found = {key: getattr(one, key, None) for key in ("ge", "gt", "le", "lt")}
                    given = {key: bound for key, bound in found.items() if bound is not None}
                    bounds = {**bounds, **given}
            return self._of(inner[0], bounds)
        if origin is Literal:
            return self._draw.choice(inner)
        if origin in (typing.Union, types.UnionType):
            return self._of(self._draw.choice(inner), bounds)
        if origin is tuple:
            length = self._draw.choice([1, 2]) if inner[-1] is ... else len(inner)
            return [self._of(inner[0], bounds) for _ in range(length)]
        if hint is bool:
            return self._draw.random() < 0.5
        if hint in (int, float):
            return self._number(hint, bounds)
        assert hint is type(None), hint
        return None

    def _number(self, kind: type, bounds: Mapping[str, float]) -> float:
        least, most = bounds.get("ge", bounds.get("gt", 0)), bounds.get("le", bounds.get("lt"))
        if kind is int:
            largest = self._draw.choice([3, 10, 100] if self._draw.random() < 0.95 else [2**20])
            return self._draw.randint(int(least), int(min(largest, most or largest)))
        if self._draw.random() < 0.05:
            return self._draw.choice([1e-30, 1e-3, 0.999] if most and most <= 1 else [1e-30, 1e30])
        if most is not None and most <= 1:
            return round(self._draw.uniform(max(least, 0.001), 0.999), 3)
        return float(f"{max(least, 1) * 10 ** self._draw.uniform(-3, 1):.3g}")


@functools.cache
def hints_of(schema: type, prefix: str) -> Mapping[str, Any]:
    hints = typing.get_type_hints(schema, include_extras=True)
    return {
        f"{prefix}{one.name}": hints[one.name]
        for one in fields(schema)
        if one.name not in (*GROUPS, "measure")
    }


LEAST_TRAIN = 20  # examples that every training set has


def is_valid(given: Point) -> bool:
    """Whether Hydra would compose a point of it that is valid and small."""
    point: dict[str, Any] = {**defaults(), "study": "s"}
    point |= {group: {**every_default()[group][given[group]]} for group in GROUPS}
    point["measure"] = {**point["measure"]}
    for key, value in given.items():
        part, _, name = key.rpartition(".")
        if key not in GROUPS:
            (point[part] if part else point)[name] = value
    try:
        config = parse(point)
    except ConfigError:
        return False
    is_whole = not any("???" in asdict(config)[group].values() for group in GROUPS)
    return is_whole and not any(problems_with_data(config, LEAST_TRAIN))


@functools.cache
def defaults() -> dict[str, Any]:
    return asdict(compose("local_batch=8"))


@functools.cache
def every_default() -> dict[str, dict[str, Any]]:
    """The keys of each variant of each group, from few compositions of Hydra's."""
    choices = {group: [*cards_by_name(group)] for group in GROUPS}
    found: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    with initialized():
        for number in range(max(map(len, choices.values()))):
            one = {group: every[number % len(every)] for group, every in choices.items()}
            composed = hydra_compose("config", [f"{group}={name}" for group, name in one.items()])
            for group, name in one.items():
                found[group][name] = OmegaConf.to_container(composed[group], resolve=True)
    return found


def typed(given: Point) -> Iterator[str]:
    """The overrides of a command; groups come first, and a strategy before what it brings."""
    for key in sorted(given, key=lambda key: (key not in GROUPS, key != "strategy")):
        yield f"{key}={as_typed(given[key])}"


def as_typed(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}: {as_typed(each)}' for key, each in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)


def ran(given: Point, cwd: Path) -> str:
    """How a point ended, in plain words."""
    before = {*(cwd / "results/s").glob("b*")}
    command = ("run", "study=s", *typed(given))
    result = bsweep(*command, cwd=cwd, timeout=300)
    said = f"{shlex.join(command)}\n{result.stdout}{result.stderr}"
    if result.returncode == 2:
        assert result.stderr.startswith("bsweep: "), said
        return "refused"
    (folder,) = {*(cwd / "results/s").glob("b*")} - before
    summary = json.loads((folder / "summary.json").read_text())
    status = str(summary["status"])
    assert "Traceback" not in said, said
    if status not in ("completed", "diverged", "out_of_memory"):  # what the user can mend
        assert re.match(r"rank \d.* failed: ValueError: ", summary["message"]), said
    assert (result.returncode == 0) == (status == "completed"), said
    return status


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(3))
def test_a_valid_point_completes_or_fails_in_plain_words(part: int, tmp_path: Path) -> None:
    composer, ends = Composer(part), Counter[str]()
    write_text(tmp_path / "text.txt", 1200)
    (tmp_path / "parts.py").write_text(PARTS)
    while ends.total() - ends["refused"] < 12:
        ends[ran(composer.point(), tmp_path)] += 1
    print(dict(ends))
    for command in ("status", "report", "predict"):
        result = bsweep(command, "results/s", cwd=tmp_path)
        assert result.returncode <= 2, result.stderr
        assert "Traceback" not in result.stderr
