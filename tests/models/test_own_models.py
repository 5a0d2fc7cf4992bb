"""Models that bsweep does not ship: the user's own, timm's and torchvision's."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bsweep import models
from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.config.saved import save_config
from bsweep.config.values import ConfigError
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.data.dataset import from_images
from bsweep.data.info import DataInfo
from bsweep.runlog.reading import read_records
from bsweep.study import branching
from tests.study.test_run import runs, summary
from tests.support.running import TINY, compose, exits, ran_ok
from tests.support.training import train

ALONE = ("strategy=single", "launch=inline")
MODELS = """\
import torch
from torch import nn

def flat(num_classes, shape, width=4, norm=False):
    size = shape[0] * shape[1] * shape[2]
    between = nn.BatchNorm1d(width) if norm else nn.ReLU()
    last = nn.Linear(width, num_classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), between, last)

def looks_at_numbers(num_classes, shape):
    assert torch.ones(1).item() == 1
    return flat(num_classes, shape)

def returns_none(num_classes, shape):
    pass

def frozen(num_classes, shape):
    return flat(num_classes, shape).requires_grad_(False)

def lazy(num_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

def passes_on(num_classes, shape, **options):
    return nn.Linear(3, num_classes, **options)

def wrong_shape(num_classes, shape):
    return flat(num_classes - 3, shape)

def too_narrow(num_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, num_classes))

class OfFours(nn.Module):
    def __init__(self, num_classes, shape, size=4):
        super().__init__()
        self.layer, self.size = flat(num_classes, shape), size

    def forward(self, images):
        return self.layer(images.unflatten(0, (-1, self.size)).flatten(0, 1))

class Pair(nn.Module):
    def __init__(self, num_classes, shape):
        super().__init__()
        self.layer = flat(num_classes, shape)

    def forward(self, images):
        return self.layer(images), images

class Modes(nn.Module):
    def __init__(self, num_classes, shape, most_evaluated=10, uses_all=True):
        super().__init__()
        self.layer, self.unused = flat(num_classes, shape), nn.Linear(3, 3)
        self.most_evaluated, self.uses_all = most_evaluated, uses_all

    def forward(self, images):
        more = self.unused(images[0, 0, :1, :3]).sum() if self.uses_all else 0
        outputs = self.layer(images) + more
        return outputs if self.training else outputs[:, : self.most_evaluated]

class Odd(nn.Module):
    def __init__(self, num_classes, shape):
        super().__init__()
        self.layer, self.ones = flat(num_classes, shape), torch.empty(0, 1)
        self.gaps = nn.Parameter(torch.ones(2, 2 * num_classes)[:, ::2])
        self.register_buffer("turn", torch.tensor(1j).expand(num_classes))

    def forward(self, images):
        if len(self.ones) < len(images):
            self.ones = torch.ones(len(images), 1)
        turned = (self.turn * self.layer(images)).imag * self.gaps.mean(dim=0)
        return turned * self.ones[: len(images)]

class Fails(nn.Module):
    def __init__(self, num_classes, shape, rank=None):
        super().__init__()
        self.layer, self.rank = flat(num_classes, shape), rank

    def forward(self, images):
        import os
        if os.environ.get("RANK") == self.rank:
            raise ArithmeticError("too hot")
        return self.layer(images)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to start in, with models in a file."""
    (tmp_path / "mine.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(*overrides: str, shape: tuple[int, ...] = (3, 8, 8)) -> RunConfig:
    config = user_code.with_fingerprints(compose("local_batch=8", *overrides))
    user_code.check(config)
    models.check_model(config, 10, shape)
    models.try_model(config, DataInfo(8, 8, shape, (), 10))
    return config


def outline(*overrides: str, shape: tuple[int, ...] = (3, 8, 8)) -> tuple[int, ...]:
    model = models.outlined(checked(*overrides, shape=shape).model, 10, shape)
    assert all(parameter.is_meta for parameter in model.parameters())
    return tuple(parameter.shape[0] for parameter in model.parameters())


def library(name: str, architecture: str) -> tuple[str, str]:
    return f"model={name}", f"model.architecture={architecture}"


def test_a_function_of_a_file_gives_the_model_that_its_options_say(folder: Path) -> None:
    wide = outline("model=own", "model.target=mine.py:flat", "+model.options.width=7")
    assert wide == (7, 7, 10, 10)
    assert outline("model=own", "model.target=mine.py:looks_at_numbers") == (4, 4, 10, 10)


def test_tensors_may_be_complex_expanded_have_gaps_or_come_from_an_evaluation(folder: Path) -> None:
    odd = ("model=own", "model.target=mine.py:Odd", "optimizer.lr=1e-9")
    model = train(folder / "run", *TINY, *odd, "local_batch=8", "epochs=2").model
    assert next(model.buffers()).tolist() == [1j] * 10
    torch.testing.assert_close(next(model.parameters()), torch.ones(2, 10))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("returns_none", "mine.py:returns_none: it returned NoneType, not a torch.nn"),
        ("frozen", "has no trainable parameters"),
        ("lazy", "parameter 1.weight has no shape before the first batch"),
        ("flat +model.options.norm=true local_batch=1", "=1 with model=own: BatchNorm needs"),
        ("wrong_shape", r"a tensor of shape \[8, 7\] for .* not logits \[8, 10\]: return logits"),
        ("Modes +model.options.most_evaluated=5", r"in evaluation mode .* of shape \[8, 5\]"),
        ("Modes +model.options.uses_all=false strategy=ddp", "no gradient reaches unused.weight"),
        ("too_narrow", r"cannot take 8 examples of shape \[3, 8, 8\]: .*mat1 and mat2 .* Choose"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_starts(
    folder: Path, words: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        checked("model=own", *f"model.target=mine.py:{words}".split())
    assert "\n" not in str(caught.value)


def test_an_error_of_a_model_is_told_with_its_traceback(folder: Path) -> None:
    expected = r'it raised an error:(.|\n)*mine.py", line .*(.|\n)*widht'
    with pytest.raises(ConfigError, match=expected):
        checked("model=own", "model.target=mine.py:passes_on", "+model.options.widht=3")


def test_a_model_may_need_a_multiple_of_some_examples(folder: Path) -> None:
    words = ("model=own", "model.target=mine.py:OfFours")
    before = torch.random.get_rng_state()
    assert checked(*words, "local_batch=4")
    assert checked(*words, "+model.options.size=16", "local_batch=32")
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(ConfigError, match=r"cannot take 8 examples of shape \[3, 8, 8\]"):
        checked(*words, "+model.options.size=16", "local_batch=24")


def test_a_model_that_does_not_fit_the_data_starts_nothing(folder: Path) -> None:
    point = ("model=own", "model.target=mine.py:Pair", "local_batch=8", "study=s")
    result = exits(2, "run", *TINY, *ALONE, *point, cwd=folder)
    (said,) = result.stderr.splitlines()
    assert said.startswith("bsweep: model.target=mine.py:Pair, tried on 8 examples of shape")
    assert "returned tuple for targets of shape [8], " in said
    assert "or give the model methods loss" in said
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    "words",
    [
        "flat local_batch=1",  # without BatchNorm
        "Modes strategy=allreduce +model.options.uses_all=false",  # which needs no gradient of all
        "Modes strategy=ddp",
    ],
)
def test_what_can_be_trained_is_not_refused(folder: Path, words: str) -> None:
    assert checked("model=own", *f"model.target=mine.py:{words}".split())


def test_a_librarys_model_without_batchnorm_takes_one_example() -> None:
    assert checked(*library("torchvision", "squeezenet1_1"), "local_batch=1", shape=(3, 32, 32))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "words", "channels"),
    [
        ("timm", "resnet18", 1),
        ("timm", "vit_tiny_patch16_224 +model.options.img_size=32", 3),
        ("torchvision", "resnet18", 3),
        ("torchvision", "regnet_y_400mf", 3),
    ],
)
def test_libraries_models_are_built_for_the_data(name: str, words: str, channels: int) -> None:
    architecture, *more = words.split()
    assert outline(*library(name, architecture), *more, shape=(channels, 32, 32))[-1] == 10


@pytest.mark.parametrize(
    ("name", "words", "shape", "expected"),
    [
        ("timm", "resnt50", (3, 32, 32), "timm has no such classifier. Did you mean 'resnet50'?"),
        ("torchvision", "resnet5", (3, 32, 32), "torchvision has no such classifier. Did you mean"),
        ("torchvision", "resnet18", (1, 32, 32), "but these have 1: use model=timm"),
        ("timm", "vit_tiny_patch16_224", (3, 32, 32), "such as model.options.img_size=32"),
        ("timm", "resnet18 +model.options.pretrained=true", (3, 32, 32), "options.pretrained=true"),
    ],
)
def test_a_wrong_model_name_or_option_is_refused_before_the_start(
    name: str, words: str, shape: tuple[int, ...], expected: str
) -> None:
    architecture, *more = words.split()
    with pytest.raises(ConfigError, match=re.escape(expected)):
        checked(*library(name, architecture), *more, shape=shape)


WEIGHTS = ("model=timm", "model.architecture=resnet18", "data.side=32")


def with_weights(*words: str) -> RunConfig:
    config = compose("local_batch=8", *WEIGHTS, *words).with_fingerprints()
    models.check_model(config, 10, (3, 32, 32))
    return config


@pytest.mark.full
def test_pretrained_weights_are_taken_but_for_another_classifier(folder: Path) -> None:
    torch.manual_seed(7)
    import_torchvision()  # timm imports it
    import timm

    for num_classes, form in ((7, "plain"), (10, "nested")):
        given = timm.create_model("resnet18", num_classes=num_classes).state_dict()
        torch.save({"state_dict": given} if form == "nested" else given, f"{form}.pth")
        config = with_weights(f"model.weights={form}.pth")
        images = (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.arange(2))
        dataset = from_images(images, images, "0123456789")
        model = models.initial(config, dataset, torch.device("cpu"), torch.float32)
        loaded = model.state_dict()
        assert torch.equal(loaded["layer4.1.conv2.weight"], given["layer4.1.conv2.weight"])
        assert torch.equal(loaded["bn1.running_var"], given["bn1.running_var"])
        assert torch.equal(loaded["fc.weight"], given["fc.weight"]) == (num_classes == 10)
    plain = compose("local_batch=8", *WEIGHTS)
    ids = {one.run_id for one in (plain, config, with_weights("model.weights=plain.pth"))}
    assert len(ids) == 3
    (folder / "moved").mkdir()
    shutil.copy("nested.pth", "moved/other.pth")
    moved = with_weights("model.weights=moved/other.pth")
    assert moved.run_id == config.run_id
    (folder / "run").mkdir()
    save_config(config, folder / "run/config.yaml")
    for other, is_refused in ((moved, False), (with_weights("model.weights=plain.pth"), True)):
        with pytest.raises(ConfigError, match="no complete checkpoint") as caught:
            branching.check_branch(replace(other, resume_from="run"))
        assert ("model.weights_sha256=" in str(caught.value)) == is_refused
        assert "model.weights=" not in str(caught.value)
    shutil.copy("plain.pth", "nested.pth")
    with pytest.raises(ConfigError, match=r"nested\.pth is not the file that was there when"):
        models.check_model(config, 10, (3, 32, 32))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("nothere.pth", r"nothere.pth cannot be read \(No such file.* Name a local file"),
        ("mine.py", r"mine.py cannot be read as weights \(UnpicklingError: .* give a state dict"),
        ("empty.pth", "holds no tensors with names: give a state dict"),
        ("small.pth", r"not weights of .*=resnet18 .*bn1.weight is missing; .* Give the file"),
    ],
)
def test_a_file_of_other_weights_is_refused_in_a_sentence(
    folder: Path, word: str, expected: str
) -> None:
    torch.save([], folder / "empty.pth")
    torch.save({"conv1.weight": torch.zeros(1)}, folder / "small.pth")
    with pytest.raises(ConfigError, match=expected) as caught:
        with_weights(f"model.weights={word}")
    assert "\n" not in str(caught.value)


def test_a_sweep_over_options_and_a_changed_file_are_runs_of_their_own(folder: Path) -> None:
    point = ("local_batch=8", *TINY, *ALONE, "epochs=1", "study=s", "model=own")
    options = ("model.target=mine.py:flat", "model.options.width=3,5", "model.options={norm: true}")
    ran_ok("run", "-m", *point, *options, cwd=folder)
    sizes = {
        paths.folder.name: read_records(paths.metrics)[0][0]["num_parameters"]
        for paths in runs(folder)
    }
    assert sorted(sizes.values()) == [3 * 193 + 3 * 2 + 10 * 4, 5 * 193 + 5 * 2 + 10 * 6]
    kept = [path.read_text() for path in folder.glob("results/s/*/own/*/mine.py")]
    assert kept == [MODELS] * 2
    for place, more, is_known in (("same", "", True), ("changed", "# another thought", False)):
        (folder / place).mkdir()
        (folder / place / "mine.py").write_text(MODELS + more)
        same = f"model.target={place}/mine.py:flat +model.options.width=3 +model.options.norm=true"
        assert (
            user_code.with_fingerprints(compose(*point, *same.split())).run_id in sizes
        ) == is_known


@pytest.mark.full
def test_an_error_in_own_code_shows_its_traceback_and_the_sweep_goes_on(folder: Path) -> None:
    """Two workers train what the run folder holds, wherever they are."""
    model = ("model=own", "model.target=mine.py:Fails", "model.options.rank='1',none")
    point = ("local_batch=8", "num_workers=2", "strategy=allreduce", "study=s")
    exits(1, "run", "-m", *TINY, *model, *point, cwd=folder)
    ends = {one["status"]: one["message"] for one in map(summary, runs(folder))}
    assert ends.keys() == {"failed", "completed"}
    lines = ends["failed"].splitlines()
    assert lines[0].startswith("rank 1")
    assert "ArithmeticError: too hot" in lines[0]
    theirs = [line for line in lines if line.strip().startswith("File")]
    assert re.search(r'own/mine_\w+/mine.py", line \d+, in forward', theirs[0])
    assert "step.py" not in ends["failed"]
