"""Each data set loads what it says, and says what is wrong when it cannot."""

from __future__ import annotations

import hashlib
import importlib.resources
import multiprocessing
import os
import pickle
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bsweep import data
from bsweep.config.data import (
    AnyData,
    Cifar10Config,
    DigitsConfig,
    ImageFolderConfig,
    SyntheticConfig,
)
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.data import cache, digits
from bsweep.data.dataset import Dataset, Part, balanced_subset, channel_statistics
from tests.support.refusing import refused

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {"subset": None, "crop_padding": 4}
DIGITS = DigitsConfig(**PLAIN, flip=False, name="digits", side=32)
SYNTHETIC = SyntheticConfig(
    **PLAIN, flip=True, name="synthetic", shape=(3, 16, 12), num_classes=7, num_train=300,
    num_test=50,
)  # fmt: skip


def check_contract(config: AnyData) -> Dataset:
    """What the training loop counts on, for any data set."""
    info, dataset = data.prepare(config), data.load(config, CPU)
    for part in (dataset.train, dataset.test):
        assert part.inputs.dtype == torch.uint8
        assert part.inputs.is_contiguous()
        assert tuple(part.inputs.shape[1:]) == info.shape
        assert part.labels.dtype == torch.int64
        assert part.labels.shape == (len(part.inputs),)
        assert 0 <= int(part.labels.min()) <= int(part.labels.max()) < len(info.classes)
    assert (len(dataset.train), len(dataset.test)) == (info.num_train, info.num_test)
    assert dataset.classes == info.classes
    assert dataset.num_classes == info.num_classes == len(info.classes)
    assert dataset.mean is not None
    assert dataset.std is not None
    assert dataset.mean.dtype == dataset.std.dtype == torch.float32
    assert dataset.mean.shape == dataset.std.shape == (info.shape[0],)
    again = data.load(config, CPU)
    assert torch.equal(dataset.train.inputs, again.train.inputs)
    assert torch.equal(dataset.train.labels, again.train.labels)
    return dataset


# What all data sets share


def test_channel_statistics_are_those_of_floats() -> None:
    images = torch.randint(
        0, 256, (600, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    images[:, 1] //= 3
    mean, std = channel_statistics(images)
    floats = images.double() / 255
    torch.testing.assert_close(mean.double(), floats.mean(dim=(0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        std.double(), floats.transpose(0, 1).flatten(1).std(1, correction=0), rtol=1e-6, atol=0
    )
    _, std = channel_statistics(torch.full((4, 1, 3, 3), 77, dtype=torch.uint8))
    assert std.item() == pytest.approx(1 / 255), "without contrast, too, it can be divided by"


def test_subsets_are_balanced_and_nested() -> None:
    smaller: set[bytes] = set()
    for size in (1, 5, 23, 100):
        dataset = check_contract(replace(DIGITS, subset=size))
        counts = torch.bincount(dataset.train.labels, minlength=10)
        assert counts.sum() == size
        assert counts.max() - counts.min() <= 1
        assert len(dataset.test) == 360
        larger = {image.numpy().tobytes() for image in dataset.train.inputs}
        assert smaller < larger
        smaller = larger
    refuses(replace(DIGITS, subset=1438), "data.subset=1438", "training set of 1437", "null")


def test_a_class_with_too_few_examples_gives_all() -> None:
    labels = torch.tensor([0] * 10 + [1] * 2 + [2] * 10)
    images = torch.arange(22, dtype=torch.uint8).view(22, 1, 1, 1)
    part = Part(images, labels)
    dataset = Dataset(part, part, ("a", "b", "c"), 3)
    subset = balanced_subset(dataset, 11)
    assert sorted(torch.bincount(subset.train.labels).tolist()) == [2, 4, 5]
    assert torch.equal(labels[subset.train.inputs.flatten().long()], subset.train.labels)


# Digits


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    theirs = importlib.resources.files("sklearn.datasets.data") / "digits.csv.gz"
    ours = importlib.resources.files("bsweep.data") / "digits.csv.gz"
    assert ours.read_bytes() == theirs.read_bytes()
    expected = load_digits()
    greys, labels = digits.read_digits()
    assert np.array_equal(greys.numpy(), expected.images)
    assert np.array_equal(labels.numpy(), expected.target)


def test_digits_split_is_stratified() -> None:
    dataset = check_contract(DIGITS)
    assert data.prepare(DIGITS) == data.DataInfo(1437, 360, (3, 32, 32), tuple("0123456789"), 10)
    train, test = (torch.bincount(labels) for labels in (dataset.train.labels, dataset.test.labels))
    assert ((test - (train + test) / 5).abs() < 1).all()
    assert dataset.train.inputs.max() == 255


# Synthetic


def test_synthetic_images_have_their_shape_and_can_be_learned() -> None:
    dataset = check_contract(SYNTHETIC)
    assert data.prepare(SYNTHETIC) == data.DataInfo(300, 50, (3, 16, 12), tuple("0123456"), 7)
    prototypes = torch.stack(
        [dataset.train.inputs[dataset.train.labels == c].float().mean(0) for c in range(7)]
    )
    distance = torch.cdist(dataset.test.inputs.float().flatten(1), prototypes.flatten(1))
    assert torch.equal(distance.argmin(1), dataset.test.labels)


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 3, 40)])
def test_synthetic_images_of_odd_shapes(shape: tuple[int, int, int]) -> None:
    check_contract(replace(SYNTHETIC, shape=shape))


# Image folder


def write_image(path: Path, grey: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (grey,) * len(mode) if len(mode) > 1 else grey).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for c, name in enumerate(("cat", "dog")):
        for i in range(4):
            write_image(root / "train" / name / f"{i}.png", 100 * c + i)
        write_image(root / "test" / name / "0.png", 100 * c + 50)
    return root


def image_folder(root: Path, side: int = 8, **more: Any) -> ImageFolderConfig:
    folder: dict[str, Any] = {"root": str(root), "side": side, **more}
    return ImageFolderConfig(**PLAIN, flip=True, name="imagefolder", **folder)


def test_an_image_folder_holds_its_images(folder: Path) -> None:
    dataset = check_contract(image_folder(folder))
    assert dataset.classes == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0] * 4 + [1] * 4
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert dataset.test.inputs[:, 2, 7, 7].tolist() == [50, 150]
    assert dataset.mean is not None
    assert dataset.mean[0].item() == pytest.approx(51.5 / 255)


def test_a_flat_folder_of_classes_is_divided_by_class(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder / "train"
    write_image(root / "cat/4.png", 4)
    dataset = check_contract(image_folder(root, test_share=0.3))
    assert dataset.train.labels.tolist() == [0] * 3 + [1] * 3
    assert dataset.test.labels.tolist() == [0] * 2 + [1]
    both = [*dataset.train.inputs[:, 0, 0, 0].tolist(), *dataset.test.inputs[:, 0, 0, 0].tolist()]
    assert sorted(both) == [0, 1, 2, 3, 4, 100, 101, 102, 103]
    shutil.copytree(root, folder / "copy")
    again = data.load(image_folder(folder / "copy", test_share=0.3), CPU)
    assert torch.equal(again.test.inputs, dataset.test.inputs)
    monkeypatch.chdir(root)
    here = data.load(image_folder(Path(), test_share=0.3), CPU)
    assert torch.equal(here.test.inputs, dataset.test.inputs)
    refuses(image_folder(folder, test_share=0.3), "holds train/ and test/ already. Leave data.test")
    refuses(image_folder(folder / "test", test_share=0.3), "cat holds one image", "two or more")
    refuses(image_folder(root), "<class>/ alone with data.test_share=0.2")


def test_broken_images_are_left_out_and_counted(folder: Path) -> None:
    cut = folder / "train/cat/0.png"
    cut.write_bytes(cut.read_bytes()[:40])
    (folder / "train/dog/note.txt").write_text("no image")
    refuses(image_folder(folder), "data.skip_broken=true", str(cut), "note.txt", "repair or remove")
    assert not list(cache.cache_folder().glob("*.safetensors"))
    config = image_folder(folder, skip_broken=True)
    dataset = check_contract(config)
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [1, 2, 3, 100, 101, 102, 103]
    assert dataset.train.labels.tolist() == [0] * 3 + [1] * 4
    assert "left out 2 files" in data.prepare(config).notes[0]
    (folder / "test/dog/0.png").write_text("no image")
    refuses(config, "no image of the class dog that is to test on")


def test_validation_examples_are_taken_of_each_class_and_never_trained_on() -> None:
    config = replace(SYNTHETIC, validation_share=0.2)
    whole, held = data.load(SYNTHETIC, CPU), data.load(config, CPU)
    assert held.validation is not None
    assert data.prepare(config).num_train == len(held.train) == 240
    counts, of_whole = held.validation.labels.bincount(), whole.train.labels.bincount()
    assert (counts - 0.2 * of_whole).abs().max() <= 1
    parts = torch.cat([held.train.inputs, held.validation.inputs]).flatten(1)
    assert torch.equal(parts.unique(dim=0), whole.train.inputs.flatten(1).unique(dim=0))
    assert torch.equal(held.test.inputs, whole.test.inputs)
    assert held.mean is not None
    assert whole.mean is not None
    assert torch.equal(held.mean, whole.mean), "docs/results.md says so"
    assert len(held.evaluated) == 60
    again = data.load(replace(config, subset=50), CPU).validation
    assert again is not None
    assert torch.equal(again.inputs, held.validation.inputs)


def test_images_are_converted_resized_and_cropped(folder: Path) -> None:
    train = folder / "train" / "cat"
    write_image(train / "deep" / "er" / "grey.jpg", 200, (20, 40), "L")
    write_image(train / "palette.gif", 7, (8, 8), "P")
    write_image(train / "transparent.png", 9, (16, 16), "RGBA")
    Image.fromarray(np.full((8, 8), 200 * 256, np.uint16)).save(train / "sixteen.png")
    stripes = np.zeros((8, 24, 3), np.uint8)
    stripes[:, 8:16] = 255
    Image.fromarray(stripes).save(train / "wide.bmp")
    exact = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(exact).save(train / "0.png")
    (train / ".hidden").write_text("no image")
    dataset = check_contract(image_folder(folder))
    assert np.array_equal(dataset.train.inputs[0].numpy(), exact.transpose(2, 0, 1))
    names = ["0", "1", "2", "3", "deep", "palette", "sixteen", "transparent", "wide"]
    means = dict(
        zip(names, dataset.train.inputs.double().mean(dim=(1, 2, 3)).tolist(), strict=False)
    )
    assert means["deep"] == pytest.approx(200, abs=1)
    assert means["sixteen"] == 200
    assert means["transparent"] == 9
    assert means["wide"] == 255  # its centre is the white stripe


@pytest.mark.parametrize("change", ["content", "name", "side", "class"])
def test_images_are_decoded_once_and_again_if_anything_changes(
    folder: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = data.load(image_folder(folder), CPU)
    assert "decoding images: 10 of 10" in capsys.readouterr().err
    data.load(image_folder(folder), CPU)
    assert capsys.readouterr().err == ""
    assert not list(cache.cache_folder().glob(".*.tmp"))
    side, path = 8, folder / "train" / "cat" / "0.png"
    if change == "content":
        write_image(path, 222)
    elif change == "name":
        path.rename(path.with_name("9.png"))
    elif change == "side":
        side = 4
    else:
        path.rename(folder / "train" / "dog" / "00.png")
    after = data.load(image_folder(folder, side), CPU)
    assert "decoding" in capsys.readouterr().err
    if change == "side":
        assert after.train.inputs.shape[-1] == side
    else:
        are_equal = torch.equal(before.train.inputs, after.train.inputs)
        assert not are_equal or not torch.equal(before.train.labels, after.train.labels)


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "text", "class"])
def test_a_damaged_cache_is_made_anew_and_said(
    folder: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = data.load(image_folder(folder), CPU).train.inputs.clone()
    (path,) = cache.cache_folder().glob("*.safetensors")
    os.utime(path, (1000, 1000))
    data.load(image_folder(folder), CPU)  # reads all of an old file for its checksum, once
    content = path.read_bytes()
    path.write_bytes(
        {
            "flipped": content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
            "cut": content[:-50],
            "emptied": b"",
            "text": b"<html>no tensor</html>" * 20,
            "class": content.replace(b"cat", b"cow", 1),
        }[damage]
    )
    dataset = data.load(image_folder(folder), CPU)
    assert torch.equal(dataset.train.inputs, before)
    assert dataset.classes == ("cat", "dog")
    assert f"{path} is damaged" in capsys.readouterr().err
    data.load(image_folder(folder), CPU)
    assert capsys.readouterr().err == ""


def _load_in_process(root: str, results: Any) -> None:
    dataset = data.load(image_folder(Path(root)), CPU)
    results.put(int(dataset.train.inputs.long().sum()))


@pytest.mark.full
def test_processes_that_load_at_once_decode_once(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_load_in_process, args=(str(folder), results)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    sums = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(sums) == 1
    assert capfd.readouterr().err.count("decoding images: 10 of 10") == 1


def refuses(config: AnyData, *parts: str) -> None:
    data._prepared.cache_clear()  # what a test mends is looked at anew
    with refused(*parts, error=ValueError):
        data.prepare(config)


def test_what_is_no_image_folder_is_named(folder: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    refuses(image_folder(missing), "data.root=", "nowhere", "train/<class>/", "data=digits")
    whole = image_folder(missing, test_share=0.3)
    refuses(whole, "nowhere", "it must hold train/<class>/", "data=digits")
    (missing / "train").mkdir(parents=True)
    refuses(image_folder(missing), f"{missing}/train holds no folder of a class")
    (missing / "train/cat").mkdir()
    refuses(image_folder(missing), f"{missing}/train/cat holds no image")
    write_image(missing / "train/cat/0.png", 1)
    refuses(image_folder(missing), "nowhere/test")
    write_image(missing / "test/cat/0.png", 1)
    refuses(image_folder(missing), "only one class, cat")  # and an accuracy of 1 without a word
    write_image(folder / "train/cow/0.png", 1)
    (folder / "test/dog").rename(folder / "test/Dog")
    refuses(image_folder(folder), "only in train: cow, dog; only in test: Dog")


def test_images_that_cannot_be_read_are_named_or_counted(folder: Path) -> None:
    refuses(image_folder(folder, side=10_000_000), "data.side=10000000", "smaller")
    Image.fromarray(np.ones((8, 8), np.float32)).save(folder / "train" / "cat" / "float.tiff")
    refuses(image_folder(folder), "float.tiff", "8 or 16 bits")
    for i in range(24):
        (folder / "train" / "cat" / f"bad{i}.png").write_text("no image")
    refuses(image_folder(folder), "and 15 more")


def test_an_example_that_cannot_be_read_is_no_fault_of_the_cache() -> None:
    def build() -> Dataset:
        raise FileNotFoundError(2, "No such file", "images/1.png")

    with pytest.raises(ValueError, match=r"cannot be read \(.*images/1\.png.*repair or replace"):
        cache.cached("broken", build)


# CIFAR-10


def cifar10(root: Path, *, download: bool = True) -> Cifar10Config:
    return Cifar10Config(**PLAIN, flip=True, name="cifar10", root=str(root), download=download)


@pytest.fixture
def pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, np.ndarray[Any, np.dtype[np.uint8]]]:
    """The images of a small CIFAR-10 in the folder `root`, by file; no server has another one."""
    import_torchvision()
    from torchvision.datasets import CIFAR10

    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (20, 3072), dtype=np.uint8) for name in names}
    contents = {
        name: pickle.dumps({"data": images[name], "labels": [i % 10 for i in range(20)]})
        for name in names
    }
    contents["batches.meta"] = pickle.dumps({"label_names": [f"class{i}" for i in range(10)]})
    folder = tmp_path / "root" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        sums[name] = hashlib.md5(content, usedforsecurity=False).hexdigest()
    listed = [[name, sums[name]] for name in names]
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    monkeypatch.setattr(CIFAR10, "train_list", listed[:5])
    monkeypatch.setattr(CIFAR10, "test_list", listed[5:])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    return images


def test_cifar10_is_read(
    pixels: dict[str, np.ndarray[Any, np.dtype[np.uint8]]], tmp_path: Path
) -> None:
    dataset = check_contract(cifar10(tmp_path / "root"))
    assert data.prepare(cifar10(tmp_path / "root")).num_train == 100
    train = np.concatenate([pixels[f"data_batch_{i}"] for i in range(1, 6)])
    for images, expected in (
        (dataset.train.inputs, train),
        (dataset.test.inputs, pixels["test_batch"]),
    ):
        assert np.array_equal(images.numpy(), expected.reshape(-1, 3, 32, 32))
    assert dataset.train.labels.tolist() == [i % 10 for i in range(20)] * 5
    assert dataset.classes[3] == "class3"


@pytest.mark.usefixtures("pixels")
def test_cifar10_that_is_not_intact_and_cannot_be_downloaded_is_refused(tmp_path: Path) -> None:
    remedies = ("data.root=DIR", "data=digits", "data=imagefolder")
    elsewhere = cifar10(tmp_path / "elsewhere")
    refuses(elsewhere, "could not be downloaded", "Connection refused", *remedies)
    (tmp_path / "root/cifar-10-batches-py/data_batch_3").write_bytes(b"torn")
    refuses(cifar10(tmp_path / "root", download=False), "data.download=false", *remedies)
    assert socket.getdefaulttimeout() is None


def test_the_cache_lies_in_the_users_cache_folder_which_is_named_if_it_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.cache_folder() == tmp_path / "xdg" / "bsweep" / "data"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.cache_folder() == Path.home() / ".cache" / "bsweep" / "data"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refuses(image_folder(folder), "XDG_CACHE_HOME")
