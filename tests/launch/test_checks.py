"""What this machine lacks for a point is named with a remedy before the point is launched."""

from __future__ import annotations

import importlib.util

import pytest

from bsweep import launch
from bsweep.config.run import RunConfig
from bsweep.launch import hosts_check
from tests.launch.test_slurm import ALLOCATION
from tests.support.running import compose

HOROVODRUN = {
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
}
SRUN = "num_workers=2 strategy=ddp launch=srun"
LIMITS = "launch.memory_limit_mb=[64,64]"


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        ("num_workers=3", HOROVODRUN, "num_workers=3, but horovodrun started 2 processes"),
        ("strategy.cycle_time_ms=2", HOROVODRUN, "HOROVOD_CYCLE_TIME=2 horovodrun"),
        ("strategy=diloco", HOROVODRUN, "strategy.algorithm other than horovod inside horovodrun"),
        ("program=own program.command=ls launch=horovodrun", HOROVODRUN, "program=own .*=2"),
        (LIMITS, HOROVODRUN, "memory_limit_mb inside horovodrun.*Leave horovodrun out"),
        ("num_workers=2 launch.parallel=2", HOROVODRUN, r"launch\.parallel inside horovodrun"),
        (f"{SRUN} {LIMITS}", ALLOCATION, "not the memory of GPUs: set device=cpu, or leave"),
        (f"{SRUN} num_workers=6", ALLOCATION, "num_workers=6, but .* 5 slots .n01:2,n02:2,gpu7:1"),
        ("launch.environment=[NOT_SET_HERE]", {}, "launch.environment: NOT_SET_HERE not set"),
    ],
)
def test_where_a_point_cannot_be_launched_it_is_refused(
    words: str, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=said):
        launch.check_machine(compose("local_batch=8", *words.split()))


def test_what_horovodrun_was_started_for_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOROVODRUN.items():
        monkeypatch.setenv(name, value)
    diloco = ("strategy=diloco", "strategy.algorithm=horovod", "launch=horovodrun")
    launch.check_machine(compose("local_batch=8", *diloco))
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    launch.check_machine(compose("local_batch=8", "strategy.cycle_time_ms=2"))


@pytest.mark.parametrize(
    ("words", "able", "said"),
    [
        ("strategy=horovod", "launch.checks._has_horovod", "setup-horovod.*strategy=ddp, allr"),
        ("launch.memory_limit_mb=[64]", "core.memory.can_limit", "needs Linux: leave it out"),
    ],
)
def test_a_machine_that_is_not_able_to_is_told_what_to_do(
    words: str, able: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"bsweep.{able}", lambda: False)
    with pytest.raises(ValueError, match=said):
        launch.check_machine(compose("local_batch=8", words))


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("model=timm model.architecture=resnet18", "timm"),
        ("optimizer=lars", "timm"),
        ("data=cifar10 data.root=x", "safetensors"),
        ("data=text data.path=x data.tokenizer=x model=llama_tiny", "tokenizers"),
    ],
)
def test_a_missing_extra_is_named_where_it_is_needed(
    words: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = compose("local_batch=8", "strategy=single", "launch=inline", *words.split())
    launch.check_machine(point)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else real(name)
    )
    part = words.split()[0]
    with pytest.raises(ValueError, match=rf"^{part}: .*pip install 'bsweep\[{package}\]'"):
        launch.check_machine(point)


def test_hosts_are_asked_for_the_packages_of_all_points(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask_all(config: RunConfig, hosts: object) -> dict[str, object]:
        asked.append(config.optimizer.name)
        return {}

    monkeypatch.setattr(hosts_check, "ask_all", ask_all)
    monkeypatch.setattr(hosts_check, "host_problems", lambda *_: [])
    monkeypatch.setattr(hosts_check, "_ready", {})
    hosts = ("num_workers=2", "launch.hosts='localhost:1,h2:1'")
    points = [
        compose("local_batch=8", *hosts, f"optimizer={name}") for name in ("lars", "sgd", "adamw")
    ]
    assert hosts_check.problems(points) == []
    assert asked == ["lars", "adamw"], "the last two need the same"
    assert hosts_check.problems(points) == []
    assert len(asked) == 2
