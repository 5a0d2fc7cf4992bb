"""Every option composes, and what a configuration says of its point."""

from __future__ import annotations

import importlib.util
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from bsweep.config.card import load_object
from bsweep.config.parsing import conf_dir
from bsweep.config.programs import ProgramConfig
from bsweep.config.run import GROUPS, cards_by_name
from bsweep.config.split_strategies import DeepSpeedConfig
from bsweep.config.strategies import HorovodConfig
from tests.support.running import compose, options

EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))


def presets(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def every_option() -> list[tuple[str, str]]:
    return [
        (group, name)
        for group in GROUPS
        if group != "allocation"  # most of which want a strategy with local steps
        for name in (*options(group), *presets(group))
    ]


@pytest.mark.full(but=7)
@pytest.mark.parametrize(("group", "option"), every_option())
def test_every_option_composes(group: str, option: str) -> None:
    language = ["data=text", "data.path=somewhere"]
    extra = {
        "imagefolder": ["data.root=somewhere"],
        "own": [f"{group}.target=somewhere.py:build"],
        "program": ["program=own", "program.command=ls"],  # which brings all four parts with it
        "text": [*language[1:], "model=llama_tiny"],
        "llama_150m": language,
        "llama_tiny": language,
        "tensor": [*language, "model=llama_tiny"],
        "deepspeed": ["precision=fp32"],
        "torchrun": ["strategy=ddp"],
        "srun": ["strategy=ddp"],
        "timm": ["model.architecture=resnet18"],
        "raise_instead_of_decay": ["optimizer.schedule=multistep", "optimizer.milestones=[2]"],
        "torchvision": [{"data": "data.dataset=MNIST"}.get(group, "model.architecture=resnet18")],
    }.get(option, [])
    if (group, option) == ("program", "own"):
        extra = ["program.command=ls"]
    config = compose("local_batch=8", f"{group}={option}", *extra)
    assert option.startswith(getattr(config, group).name)


@pytest.mark.full(but=5)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_begins_with_its_command(experiment: str) -> None:
    text = (conf_dir() / "experiment" / f"{experiment}.yaml").read_text()
    assert f"bsweep run experiment={experiment}" in text.splitlines()[1]
    sweeper = yaml.safe_load(text).get("hydra", {}).get("sweeper", {})
    for local_batch in sweeper.get("params", {}).get("local_batch", "8").split(","):
        config = compose(f"experiment={experiment}", f"local_batch={local_batch}")
        assert config.study in EXPERIMENTS


def test_the_paper_is_as_its_authors_ran_it() -> None:
    config = compose("experiment=paper", "local_batch=8")
    o = config.optimizer
    assert (config.num_workers, config.epochs) == (4, 50)
    assert (config.data.name, config.model.name) == ("cifar10", "resnet18")
    assert (o.name, o.lr, o.lr_rule, o.warmup_epochs) == ("sgd", 0.1, "per_worker", 5)


def test_either_batch_gives_the_other() -> None:
    for given in ("local_batch=16", "global_batch=96"):
        config = compose(given, "num_workers=2", "accumulation_steps=3")
        assert (config.examples_per_step, config.examples_per_pass) == (96, 16)


def test_run_id_tells_apart_what_changes_the_numbers_and_nothing_else() -> None:
    base = compose("local_batch=64", "num_workers=2")
    assert base.run_id.startswith("b64_w2_horovod_s0-")
    same = ["study=other", "results_dir=elsewhere", "launch.stall_timeout_seconds=9"]
    assert compose("local_batch=64", "num_workers=2", *same).run_id == base.run_id
    assert compose("global_batch=128", "num_workers=2", "trackers=[wandb]").run_id == base.run_id
    changes = ("optimizer.lr=0.2", "seed=1", "data.device=cpu", "strategy.buckets=2", "epochs=4")
    for change in changes:
        assert compose("local_batch=64", "num_workers=2", change).run_id != base.run_id


@pytest.mark.parametrize(
    ("words", "padding"),
    [
        ("data.side=32", 4),
        ("data=imagefolder data.root=x data.side=224", 28),
        ("data=torchvision data.dataset=MNIST", 4),
        ("data=synthetic data.shape=[3,64,16]", 2),
        ("data.side=8 data.crop_padding=0", 0),
    ],
)
def test_crop_padding_follows_the_side_of_the_images(words: str, padding: int) -> None:
    config = compose("local_batch=8", *words.split())
    assert config.data.crop_padding == padding  # type: ignore[union-attr]
    given = compose("local_batch=8", *words.split(), f"data.crop_padding={padding}")
    assert given.run_id == config.run_id
    assert [*config.data.warnings(config)] == []


def test_settings_reach_horovod_unrounded() -> None:
    card = HorovodConfig(name="horovod", fusion_threshold_mb=0.3, cache_capacity=1_234_567)
    variables = card.variables()
    expected = {"HOROVOD_FUSION_THRESHOLD": "314572", "HOROVOD_CACHE_CAPACITY": "1234567"}
    assert variables == expected
    card.refuse_started(variables)
    with pytest.raises(ValueError, match=r"HOROVOD_CACHE_CAPACITY=1234567 horovodrun \.\.\."):
        card.refuse_started({**variables, "HOROVOD_CACHE_CAPACITY": "1234568"})


@pytest.mark.parametrize("group", GROUPS)
def test_what_every_card_builds_is_there_and_python_3_10_takes_its_defaults(group: str) -> None:
    for name, card in cards_by_name(group).items():
        assert not [key for key in fields(card) if isinstance(key.default, list | dict | set)], card
        if issubclass(card, ProgramConfig):
            assert importlib.util.find_spec(card.worker.partition(":")[0]), card
            continue
        assert card.builds or name in ("none", "program", "uniform"), card
        if card.builds and not (
            card in (HorovodConfig, DeepSpeedConfig) and importlib.util.find_spec(name) is None
        ):
            assert load_object(card.builds), card


def test_num_workers_follows_horovodrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    assert compose("local_batch=8").num_workers == 3


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ("h1:4,h2:4", "h1:4,h2:4"),
        ("a[1-3,7]:2,b:1", "a1:2,a2:2,a3:2,a7:2,b:1"),
        ("n[008-010,2]-ib:1", "n008-ib:1,n009-ib:1,n010-ib:1,n2-ib:1"),
        ("# ours\n\na slots=2  # fast\nb:3\n", "a:2,b:3"),
        ("a slots = 2 max_slots=4\nb[1-2]:1\n", "a:2,b1:1,b2:1"),
    ],
)
def test_lists_and_files_of_hosts_are_spelled_out(given: str, hosts: str, tmp_path: Path) -> None:
    """A file is as Horovod and MPI have it."""
    (tmp_path / "hosts.txt").write_text(given)
    text = f"@{tmp_path}/hosts.txt" if "\n" in given else given
    config = compose("local_batch=8", f"launch.hosts='{text}'")
    assert config.launch.named_hosts == hosts
    assert config.run_id == compose("local_batch=8", f"launch.hosts='{hosts}'").run_id
