"""Every YAML composes, and what a person gets wrong is named with its value and a remedy."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest
import yaml

from bsweep.config.card import resolve
from bsweep.config.parsing import conf_dir
from bsweep.config.programs import ProgramConfig
from bsweep.config.run import GROUPS, RunConfig, names, variants
from bsweep.config.saved import read_config, save_config
from bsweep.config.splitting import DeepSpeedConfig
from bsweep.config.strategies import PLAIN_HOROVOD, HorovodConfig
from bsweep.config.values import ConfigError
from tests.support.running import compose

SERVERS = ("strategy=parameter_server",)
SHARDED = ("local_batch=8", "num_workers=4", "strategy=sharded")
DEEPSPEED = ("strategy=deepspeed", "num_workers=2", "local_batch=8")
PIPELINE = ("strategy=pipeline", "num_workers=2", "local_batch=8", "model=tiny_cnn")
DILOCO = ("local_batch=8", "num_workers=2", "strategy=diloco")
EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))


def options() -> list[tuple[str, str]]:
    return [
        (group, path.stem)
        for group in GROUPS
        if group != "allocation"  # most of which want a strategy with local steps
        for path in sorted((conf_dir() / group).glob("*.yaml"))
    ]


@pytest.mark.full(but=7)
@pytest.mark.parametrize(("group", "option"), options())
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
    for local_batch in (
        yaml.safe_load(text)
        .get("hydra", {})
        .get("sweeper", {})
        .get("params", {})
        .get("local_batch", "8")
        .split(",")
    ):
        assert (
            compose(f"experiment={experiment}", f"local_batch={local_batch}").study in EXPERIMENTS
        )


def test_the_paper_is_as_its_authors_ran_it() -> None:
    config = compose("experiment=paper", "local_batch=8")
    o = config.optimizer
    assert (config.num_workers, config.epochs, config.data.name, config.model.name) == (
        4,
        50,
        "cifar10",
        "resnet18",
    )
    assert (o.name, o.lr, o.lr_rule, o.warmup_epochs) == ("sgd", 0.1, "per_worker", 5)


@pytest.mark.full(but=24)
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), ["local_batch=null", "global_batch=null", "exactly one"]),
        (("local_batch=8", "global_batch=8"), ["local_batch=8", "global_batch=8", "exactly one"]),
        (("local_batch=0",), ["local_batch=0", "greater than or equal to 1"]),
        (("local_batch=8", "epochs=2.5"), ["epochs=2.5", "valid integer"]),
        (("local_batch=8", "channels_last=3"), ["channels_last=3", "'auto', True or False"]),
        (("local_batch=8", "+epoch=3"), ["epoch", "unknown key", "Did you mean 'epochs'?"]),
        (
            ("local_batch=8", "+strategy.bucket=3"),
            ["strategy.bucket", "Did you mean 'strategy.buckets'?"],
        ),
        (
            ("local_batch=8", "strategy=parameter_server", "strategy.staleness=2"),
            ["strategy.staleness=2", "Leave"],
        ),
        (
            (
                "local_batch=8",
                "strategy=parameter_server",
                "strategy.consistency=stale_synchronous",
            ),
            ["strategy.consistency=stale_synchronous", "strategy.staleness"],
        ),
        (
            (
                "local_batch=8",
                "strategy=parameter_server",
                "strategy.num_servers=2",
                "strategy.colocated=true",
            ),
            ["strategy.num_servers=2", "num_workers=1"],
        ),
        (
            (
                "local_batch=8",
                "num_workers=4",
                "strategy=parameter_server",
                "optimizer=lamb",
                "strategy.sharding=layer",
            ),
            ["optimizer=lamb", "2 servers"],
        ),
        (
            ("local_batch=8", "strategy=parameter_server", "optimizer=lamb"),
            ["optimizer=lamb", "strategy.sharding"],
        ),
        (("local_batch=8", "compression=topk", "compression.density=0"), ["compression.density=0"]),
        (
            ("local_batch=8", "strategy=ddp", "compression=topk"),
            ["compression=topk", "strategy=ddp", "strategy.hook"],
        ),
        (("local_batch=8", "strategy.op=adasum", "compression=topk"), ["strategy.op=adasum"]),
        (("local_batch=8", "strategy.buckets=2", "compression=topk"), ["strategy.buckets=2"]),
        (("local_batch=8", "strategy=ddp", "launch=horovodrun"), ["strategy=ddp", "torchrun"]),
        (
            ("local_batch=8", "num_workers=2", "launch.slowdown=[1]"),
            ["launch.slowdown=[1.0]", "num_workers=2"],
        ),
        (("local_batch=8", "launch.slowdown=[0.5]"), ["launch.slowdown.0=0.5"]),
        (
            ("local_batch=8", "+strategy.num_servers=2"),
            ["only strategy=parameter_server has this key"],
        ),
        (("global_batch=7", "num_workers=2"), ["global_batch=7", "num_workers=2", "multiple of 2"]),
        (("global_batch=1", "num_workers=2", "batching=schedule"), ["global_batch=1 cannot be"]),
        (
            ("local_batch=8", "strategy=single", "num_workers=2"),
            ["strategy=single", "num_workers=2"],
        ),
        (("local_batch=8", "launch=inline", "num_workers=2"), ["launch=inline", "num_workers=2"]),
        (
            ("local_batch=8", "num_workers=3", "launch.hosts='a:1,b:1'"),
            ["num_workers=3", "2 slots"],
        ),
        (
            ("local_batch=8", "launch.hosts='a:1,b:1,a:1'"),
            ["launch.hosts=a:1,b:1,a:1 names a host twice"],
        ),
        (("local_batch=8", "launch.hosts=a"), ["launch.hosts=a", "h1:4,h2:4"]),
        (("local_batch=8", "launch.hosts='h[1-2:4'"), ["launch.hosts=h[1-2:4: not of the form"]),
        (
            ("local_batch=8", "launch.hosts='h[4-1]:4'"),
            ["launch.hosts=h[4-1]:4: [4-1] counts down"],
        ),
        (
            ("local_batch=8", "launch.hosts='h[1-999999999]:4'"),
            ["more than 10,000 hosts: name fewer hosts"],
        ),
        (("local_batch=8", "launch.hosts='h[1-3]:1,h2:1'"), ["names a host twice"]),
        (
            ("local_batch=8", "launch.hosts=@no/such"),
            ["launch.hosts=@no/such", "cannot be read (No such file"],
        ),
        (
            ("local_batch=8", "strategy=allreduce", "strategy.algorithm=zip"),
            ["strategy.algorithm=zip", "'ring'"],
        ),
        (("local_batch=8", "strategy.name=horvod"), ["strategy=horvod", "'single', 'horovod'"]),
        (("local_batch=8", "optimizer.schedule=multistep"), ["optimizer.milestones"]),
        (
            ("local_batch=8", "optimizer.nesterov=true", "optimizer.momentum=0"),
            ["optimizer.nesterov=true"],
        ),
        (("local_batch=8", "optimizer.warmup_epochs=9"), ["optimizer.warmup_epochs=9", "epochs=5"]),
        (("local_batch=8", "precision=fp64", "compression=fp16"), ["precision=fp64"]),
        (
            ("local_batch=8", "precision=fp16", "strategy=parameter_server"),
            ["precision=fp16 with strategy=parameter_server", "strategy=allreduce"],
        ),
        (
            ("local_batch=8", "precision=fp16", "strategy=ddp", "strategy.hook=powersgd"),
            ["strategy.hook=powersgd", "compression=powersgd"],
        ),
        (("local_batch=1",), ["local_batch=1", "BatchNorm", "local_batch=2"]),
        (("local_batch=8", "study='../other'"), ["study=../other", "the first a letter or digit"]),
        (
            ("local_batch=8", "launch.environment=[MY-KEY]"),
            ["launch.environment.0=MY-KEY", "Use names such as WANDB_API_KEY"],
        ),
        (
            ("local_batch=8", "launch.network_interface='-x'"),
            ["launch.network_interface=-x", "Use a name such as eth0"],
        ),
        (
            ("local_batch=8", "data=torchvision", "data.dataset=FashonMNIST"),
            ["data.dataset=FashonMNIST: unknown", "Did you mean 'FashionMNIST'?", "'SVHN'"],
        ),
        ((*DILOCO, "strategy.outer_momentum=1"), ["strategy.outer_momentum=1", "less than 1"]),
        ((*DILOCO, "strategy.weighting=examples_"), ["strategy.weighting=examples_", "'fednova'"]),
        (
            (*DILOCO, "strategy.weights=[0.5,0.4]"),
            ["strategy.weights=[0.5, 0.4]", "sum to 0.9", "sum to 1"],
        ),
        (
            (*DILOCO, "strategy.weights=[0.2,0.3,0.5]"),
            ["3 weights", "num_workers=2", "one for each worker"],
        ),
        (
            ("local_batch=8", "target_accuracy=90"),
            ["target_accuracy=90", "not a fraction", "Is 0.9 meant?"],
        ),
        (
            ("local_batch=8", "target_accuracy=0.9", "target_loss=0.5"),
            ["target_accuracy=0.9 and target_loss=0.5", "give one target"],
        ),
        (
            ("local_batch=8", "stop_at_target=false"),
            ["stop_at_target=false", "target_accuracy=0.9"],
        ),
        (
            (
                "local_batch=8",
                "evaluate_every_examples=9",
                *SERVERS,
                "strategy.consistency=asynchronous",
            ),
            [
                "evaluate_every_examples=9",
                "strategy.consistency=synchronous",
                "evaluate_every_examples=null",
            ],
        ),
        ((*SHARDED, "strategy.replicas=3"), ["replicas=3 with num_workers=4", "a divisor"]),
        ((*SHARDED, "launch.slowdown=[1,1,2,1]"), ["launch.slowdown", "strategy=allreduce"]),
        ((*SHARDED, "precision=fp16"), ["precision=fp16", "precision=bf16"]),
        ((*SHARDED, "precision=fp64", "strategy.reduce=bf16"), ["strategy.reduce=bf16"]),
        ((*SHARDED, "compression=topk"), ["compression=topk", "strategy=sharded"]),
        ((*SHARDED, "compile=true"), ["compile=true with strategy=sharded"]),
        ((*SHARDED, "strategy.wrap=layer"), ["strategy.wrap=layer", "'blocks'"]),
        (DEEPSPEED, ["precision=auto with strategy=deepspeed", "Use precision=fp32"]),
        (
            (*DEEPSPEED, "optimizer=lamb"),
            ["optimizer=lamb with strategy=deepspeed", "sgd or"],
        ),
        ((*DEEPSPEED, "strategy.stage=4"), ["strategy.stage=4", "1, 2 or 3"]),
        ((*DEEPSPEED, "compression=topk"), ["compression=topk with strategy=deepspeed"]),
        ((*DEEPSPEED, "measure.noise_scale=true"), ["DeepSpeed sums gradients within the passes"]),
        ((*DEEPSPEED, "launch.slowdown=[1,2]"), ["launch.slowdown with strategy=deepspeed"]),
        ((*DEEPSPEED, "channels_last=true"), ["channels_last=true with strategy=deepspeed"]),
        ((*DILOCO, "strategy.algorithm=horovod"), ["launch=torchrun", "Use launch=horovodrun"]),
        ((*DILOCO, "launch=horovodrun"), ["strategy.algorithm=native", "Use launch=torchrun"]),
        ((*DILOCO, "launch=inline"), ["launch=inline"]),
        ((*DILOCO, "allocation.local_steps=[1,0]"), ["allocation.local_steps.1=0"]),
        ((*DILOCO, "allocation.local_steps=[1,2,3]"), ["3 numbers", "num_workers=2"]),
        ((*PIPELINE, "strategy.microbatches=3"), ["microbatches=3", "the local batch 8"]),
        *(
            (
                (
                    *PIPELINE,
                    "model=resnet18",
                    "strategy.microbatches=1",
                    f"strategy.schedule={name}",
                ),
                [f"schedule={name}: this schedule needs as many", "Use strategy.microbatches=2 or"],
            )
            for name in ("zbv", "interleaved_1f1b", "interleaved_zero_bubble")
        ),
        (
            (*PIPELINE, "num_workers=4", "strategy.microbatches=2"),
            ["microbatches=2", "schedule=1f1b", "Use strategy.microbatches=4"],
        ),
        (
            (*PIPELINE, "strategy.microbatches=2", "strategy.schedule=dualpipev"),
            ["microbatches=2", "schedule=dualpipev", "Use strategy.microbatches=4"],
        ),
        (
            (
                *PIPELINE,
                "local_batch=10",
                "strategy.microbatches=5",
                "strategy.schedule=interleaved_1f1b",
            ),
            ["microbatches=5", "in rounds of at least 2", "such as 4"],
        ),
        ((*PIPELINE, "strategy.cuts=[3,2,1]"), ["cuts=[3, 2, 1]", "ascending", "give 1 cut,"]),
        (
            (*PIPELINE, "strategy.schedule=zbv", "strategy.cuts=[1]"),
            ["cuts=[1]", "schedule=zbv needs 2", "give 3 cuts"],
        ),
        ((*PIPELINE, "strategy.replicas=3"), ["replicas=3", "num_workers=2", "divisor"]),
        ((*PIPELINE, "precision=fp64", "strategy.reduce=bf16"), ["fp64", "reduce=bf16"]),
        ((*PIPELINE, "precision=fp16"), ["precision=fp16", "precision=bf16"]),
        (
            (*PIPELINE, "model=resnet18", "strategy.microbatches=8"),
            ["local_batch=8 in strategy.microbatches=8", "BatchNorm", "local_batch=16"],
        ),
    ],
)
def test_bad_values_are_named_with_a_remedy(
    overrides: tuple[str, ...], expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(*overrides)
    for words in expected:
        assert words in str(caught.value)


def test_all_bad_values_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compose("local_batch=-5", "epochs=0", "strategy.buckets=none")
    assert len(caught.value.problems) == 3


def test_either_batch_gives_the_other() -> None:
    local = compose("local_batch=16", "num_workers=2", "accumulation_steps=3")
    assert (local.examples_per_step, local.examples_per_pass) == (96, 16)
    assert (
        compose("global_batch=96", "num_workers=2", "accumulation_steps=3").examples_per_pass == 16
    )


def test_run_id_tells_apart_what_changes_the_numbers_and_nothing_else() -> None:
    base = compose("local_batch=64", "num_workers=2")
    assert base.run_id.startswith("b64_w2_horovod_s0-")
    same = ["study=other", "results_dir=elsewhere", "launch.stall_timeout_seconds=9"]
    assert compose("local_batch=64", "num_workers=2", *same).run_id == base.run_id
    assert compose("global_batch=128", "num_workers=2").run_id == base.run_id
    for change in (
        "optimizer.lr=0.2",
        "seed=1",
        "data.subset=100",
        "strategy.buckets=2",
        "epochs=4",
    ):
        assert compose("local_batch=64", "num_workers=2", change).run_id != base.run_id


@pytest.mark.parametrize(
    ("words", "padding"),
    [
        ("data.side=32", 4),
        ("data.side=8", 1),
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


def test_a_crop_padding_that_cuts_much_of_an_image_is_warned_of() -> None:
    config = compose("local_batch=8", "data.side=8", "data.crop_padding=4")
    (warning,) = config.data.warnings(config)
    assert "data.crop_padding=4 is more than a quarter of the images' shorter side of 8" in warning
    assert "data.crop_padding=1" in warning
    tiny = compose("local_batch=8", "data=synthetic", "data.shape=[3,2,2]")
    (warning,) = tiny.data.warnings(tiny)
    assert "use data.crop_padding=0" in warning, "an eighth, rounded up to 1, is too much"


def test_settings_reach_horovod_unrounded() -> None:
    card = dataclasses.replace(PLAIN_HOROVOD, fusion_threshold_mb=0.3, cache_capacity=1_234_567)
    variables = card.variables()
    assert variables == {
        "HOROVOD_FUSION_THRESHOLD": "314572",
        "HOROVOD_CACHE_CAPACITY": "1234567",
    }
    card.refuse_started(variables)
    with pytest.raises(ValueError, match=r"HOROVOD_CACHE_CAPACITY=1234567 horovodrun \.\.\."):
        card.refuse_started({**variables, "HOROVOD_CACHE_CAPACITY": "1234568"})


def test_saved_configuration_reads_back(tmp_path: Path) -> None:
    config = compose("local_batch=64", "num_workers=2", "optimizer=adamw", "data=synthetic")
    save_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize("group", GROUPS)
def test_what_every_card_builds_is_there(group: str) -> None:
    for card in variants(group):
        if issubclass(card, ProgramConfig):
            assert importlib.util.find_spec(card.worker), card
            continue
        assert card.builds or names(card) in {("none",), ("program",)}, card
        if card.builds and not (
            card in (HorovodConfig, DeepSpeedConfig)
            and importlib.util.find_spec(names(card)[0]) is None
        ):
            assert resolve(card.builds), card


def test_num_workers_follows_horovodrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    assert compose("local_batch=8").num_workers == 3


def test_the_schema_is_frozen() -> None:
    config = compose("local_batch=8")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 5  # type: ignore[misc]
    assert isinstance(config, RunConfig)
    assert isinstance(config.strategy, HorovodConfig)


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ("h1:4,h2:4", "h1:4,h2:4"),
        ("a[1-3,7]:2,b:1", "a1:2,a2:2,a3:2,a7:2,b:1"),
        ("n[008-010,2]-ib:1", "n008-ib:1,n009-ib:1,n010-ib:1,n2-ib:1"),
        ("r[1-2]n[1-2]:4", "r1n1:4,r1n2:4,r2n1:4,r2n2:4"),
    ],
)
def test_lists_of_hosts_are_spelled_out(given: str, hosts: str) -> None:
    config = compose("local_batch=8", f"launch.hosts='{given}'")
    assert config.launch.named_hosts == hosts
    assert config.run_id == compose("local_batch=8", f"launch.hosts='{hosts}'").run_id


@pytest.mark.parametrize(
    ("lines", "hosts"),
    [
        ("# ours\n\na slots=2  # fast\nb:3\n", "a:2,b:3"),
        ("a slots = 2 max_slots=4\nb[1-2]:1", "a:2,b1:1,b2:1"),
        ("\n# none\n", "the file names no host"),
        ("a:1\n-V slots=2\n", "line 2, '-V slots=2': not of the form h1 slots=4 or h1:4"),
        ("a\n", "line 1, 'a': not of the form"),
        ("a:1\nb[3-1]:2\n", "line 2, 'b[3-1]:2': [3-1] counts down"),
    ],
)
def test_a_file_of_hosts_is_read_as_horovod_and_mpi_have_it(
    tmp_path: Path, lines: str, hosts: str
) -> None:
    (tmp_path / "hosts.txt").write_text(lines)
    given = ("local_batch=8", f"launch.hosts=@{tmp_path}/hosts.txt")
    if ":" in hosts and "line" not in hosts:
        assert compose(*given).launch.named_hosts == hosts
    else:
        with pytest.raises(ConfigError) as raised:
            compose(*given)
        assert hosts in str(raised.value)
        assert len(raised.value.problems) == 1
