"""Pillow's images and labels are read as their author meant them, or what differs is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bsweep.config import user_code
from bsweep.config.data import ImageFolderConfig, OwnDataConfig
from bsweep.data import examples, imagefolder
from bsweep.data.dataset import Dataset
from bsweep.data.own import info
from bsweep.data.pictures import Unfit
from bsweep.study.checks import check_point
from tests.support.running import compose

SIDE = 8
TAG = 0x112
# How an upright image is stored under each value of the tag.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def upright() -> Image.Image:
    rows = np.zeros((SIDE, SIDE, 3), np.uint8)
    rows[:2], rows[:, :3, 1] = 200, 90
    return Image.fromarray(rows)


def save(path: Path, image: Image.Image, tag: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    way, exif = STORED[tag], Image.Exif()
    exif[TAG] = tag
    (image if way is None else image.transpose(way)).save(path, exif=exif)


def folder_of(root: Path) -> Dataset:
    config = compose("local_batch=2", "data=imagefolder", f"data.root={root}", f"data.side={SIDE}")
    assert isinstance(config.data, ImageFolderConfig)
    return imagefolder.load(config.data)


def test_images_are_read_upright_whatever_their_tag_says(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for tag in STORED:
            save(tmp_path / "f" / split / "a" / f"{tag}.png", upright(), tag)
        save(tmp_path / "f" / split / "b" / "0.png", Image.new("RGB", (SIDE, SIDE)))
    expected = torch.from_numpy(np.array(upright())).permute(2, 0, 1)
    dataset = folder_of(tmp_path / "f")
    for images in (dataset.train.inputs, dataset.test.inputs):
        assert all(torch.equal(image, expected) for image in images[: len(STORED)])
    opened = [Image.open(path) for path in sorted((tmp_path / "f/test/a").iterdir())]
    labels = [*range(2)] * 4
    of_own = examples.collected([*zip(opened, labels, strict=True)], [(upright(), 0)])
    assert all(torch.equal(image, expected) for image in of_own.train.inputs)


@pytest.mark.parametrize(
    ("low", "high", "bits"), [(160, 840, 10), (0, 4095, 12), (0, 65_535, 16), (0, 100, 8)]
)
def test_deep_grey_levels_keep_the_bits_that_the_data_set_uses(
    tmp_path: Path, low: int, high: int, bits: int
) -> None:
    levels = np.linspace(low, high, SIDE**2).astype(np.uint16).reshape(SIDE, SIDE)
    levels[-1, -1] = high
    bright, dark = Image.fromarray(levels), Image.fromarray(levels // 2)
    for split in ("train", "test"):
        save(tmp_path / "f" / split / "a" / "0.png", bright if split == "test" else dark)
        save(tmp_path / "f" / split / "b" / "0.png", dark)
    expected = torch.from_numpy((levels >> (bits - 8)).astype(np.uint8))
    dataset = folder_of(tmp_path / "f")
    assert torch.equal(dataset.test.inputs[0, 0], expected)
    assert torch.equal(
        dataset.train.inputs[0, 0], torch.from_numpy((levels // 2 >> (bits - 8)).astype(np.uint8))
    )
    of_own = examples.collected([(dark, 0), (dark, 1)], [(bright, 0)])
    assert torch.equal(of_own.test.inputs[0, 0], expected)
    for notes in (dataset.notes, of_own.notes):
        assert notes[0].endswith(f"that {2**bits - 1} is white")
        assert len(notes) == 1


def labelled(labels: list[int], **more: Any) -> Dataset:
    inputs, targets = torch.randn(len(labels), 3), torch.tensor(labels)
    return examples.collected((inputs, targets), (inputs, targets), **more)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (range(1, 11), "class 0, "),
        ([0, 1, 2, 5], "class 3, 4, "),
        ([*range(9), 11], "class 9, 10, "),
        (range(10), ""),
        (range(2), ""),
    ],
)
def test_classes_that_never_occur_are_said_once(labels: list[int], said: str) -> None:
    notes = labelled([*labels]).notes
    assert len(notes) == bool(said)
    assert all(f"no training example has the {said}" in note for note in notes)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (range(5, 9006, 1000), "10 different numbers up to 9005.*return_inverse"),
        ([*range(10), 255], "11 different numbers up to 255.*without a class"),
        ([*range(100), 255], "101 different numbers up to 255"),
        ([3, 3, 3], "all training labels are 3"),
    ],
)
def test_labels_that_number_no_classes_are_refused(labels: list[int], said: str) -> None:
    with pytest.raises(Unfit, match=said):
        labelled([*labels])


def test_a_large_label_of_the_test_split_is_named() -> None:
    train, test = ((torch.randn(4, 3), torch.tensor([0, 1, 2, last])) for last in (3, 255))
    with pytest.raises(Unfit, match=r"4 different numbers up to 3, .* of both splits is 255, "):
        examples.collected(train, test)


class Drawn:
    """Examples that differ each time."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3), number % 2


class Fixed(Drawn):
    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), torch.nan if number == 0 else 1.0), number % 2


def test_examples_that_differ_from_time_to_time_are_said() -> None:
    (note,) = examples.collected(Drawn(), Fixed()).notes
    assert "differs when it is read again" in note
    assert examples.collected(Fixed(), Drawn()).notes == ()


def test_what_is_said_of_data_is_kept_in_the_cache_and_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\ndef ones():\n"
        "    return ((torch.randn(8, 3, 8, 8), torch.arange(8) % 4 + 1),) * 2\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("data=own", "data.target=mine.py:ones", "model=tiny_cnn", "local_batch=4")
    config = user_code.with_fingerprints(compose(*words, "launch=inline", "strategy=single"))
    assert isinstance(config.data, OwnDataConfig)
    for _ in range(2):  # the second time from the cache
        assert "has the class 0" in info(config.data).notes[0]
    assert "has the class 0" in " ".join(check_point(config))
