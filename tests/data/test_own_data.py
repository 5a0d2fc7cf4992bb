"""Data of one's own, and torchvision's: whatever is returned becomes tensors in the cache, or is
refused in words. Pillow's images and labels are read as their author meant them, or what differs is
said.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image

from bsweep import data
from bsweep.config import user_code, user_files
from bsweep.config.data import OwnDataConfig, TorchvisionConfig, TorchvisionDataset
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.data import examples
from bsweep.data.dataset import Dataset, balanced_subset
from bsweep.data.own import info
from bsweep.data.pictures import Unfit
from bsweep.data.torchvision import splits
from bsweep.study.checks import check_point
from tests.data.test_data import PLAIN
from tests.support.refusing import refused
from tests.support.running import compose

CPU = torch.device("cpu")

FILE = """\
import pathlib
import torch
from PIL import Image

def images(num_train=60, classes=3):
    pathlib.Path("calls").open("a").write("called\\n")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (num_train + 20, 1, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.arange(num_train + 20) % classes
    return (pixels[:num_train], labels[:num_train]), (pixels[num_train:], labels[num_train:])

def floats():
    return (torch.randn(12, 5), torch.arange(12) % 2), (torch.randn(4, 5), torch.arange(4) % 2)

class Pictures:
    classes = ["dark", "bright"]
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __getitem__(self, i): return Image.new("RGB", (8, 6), (100 * (i % 2), 0, i)), i % 2

def pictures():
    return Pictures(10), Pictures(4)

def ones():
    return ((torch.randn(8, 3, 8, 8), torch.arange(8) % 4 + 1),) * 2

def unpaired():
    return Pictures(10)

def broken():
    [][3]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to start in, whose code no test has imported."""
    (tmp_path / "mydata.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    for cache in (user_files.of_file, user_files.of_package):
        cache.cache_clear()
    return tmp_path


def point(name: str, *more: str) -> RunConfig:
    return user_code.with_fingerprints(
        compose(
            "local_batch=8", "data=own", f"data.target=mydata.py:{name}", "model=tiny_cnn", *more
        )
    )


def load(name: str, *more: str) -> Dataset:
    config = point(name, *more).data
    info, dataset = data.prepare(config), data.load(config, CPU)
    assert info.shape == tuple(dataset.train.inputs.shape[1:])
    assert info.num_train == len(dataset.train)
    assert (info.num_test, info.classes) == (len(dataset.test), dataset.classes)
    assert info.num_classes == dataset.num_classes
    return dataset


def test_a_pair_of_tensors_is_taken_and_called_for_once(folder: Path) -> None:
    dataset = load("images")
    assert dataset.train.inputs.shape == (60, 1, 8, 8)
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.num_classes == 3
    assert dataset.classes == ()
    assert dataset.mean is not None
    load("images")
    assert (folder / "calls").read_text().count("called") == 1
    assert len(load("images", "data.options={num_train: 40}").train) == 40
    assert (folder / "calls").read_text().count("called") == 2


def test_pillow_images_become_bytes_and_keep_their_class_names() -> None:
    dataset = load("pictures")
    assert dataset.train.inputs.shape == (10, 3, 6, 8)
    assert dataset.classes == ("dark", "bright")
    assert dataset.train.inputs[:, 2, 5, 7].tolist() == list(range(10))
    assert dataset.train.labels.dtype == torch.int64
    assert dataset.train.labels.tolist() == [0, 1] * 5


def test_floats_are_neither_bytes_nor_normalised() -> None:
    dataset = load("floats", "data.crop_padding=4")
    assert dataset.train.inputs.dtype == torch.float32
    assert dataset.mean is dataset.std is None
    assert dataset.train.inputs.shape == (12, 5)


class _Examples(list[Any]):
    """A map-style data set."""


def pairs(count: int, *, dtype: torch.dtype = torch.uint8, side: int = 4) -> _Examples:
    return _Examples((torch.zeros(3, side, side, dtype=dtype), i % 2) for i in range(count))


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (iter([]), "no len() or no [index]"),
        (pairs(0), "0 inputs"),
        ((torch.zeros(3, 2), torch.zeros(4)), "3 inputs and 4 labels"),
        (_Examples([{"image": 1, "label": 2}]), "training example 0 is a dict"),
        (pairs(3) + pairs(1, side=5), "training input 3 is uint8 of shape (3, 5, 5), but the"),
        (pairs(3, dtype=torch.float32), "testing are uint8 of shape (3, 4, 4)"),
        (_Examples([(torch.zeros(3, 4, 4, dtype=torch.uint8), -1)]), "a label is -1"),
        ((torch.zeros(3, 2), torch.zeros(3, 7, dtype=torch.int64)), "labels of shape (3, 7)"),
        (pairs(3, dtype=torch.complex64), "the data hold complex numbers"),
        ((torch.zeros(3, 2), torch.zeros(3) + 1j), "the data hold complex numbers"),
        (_Examples([(Image.new("F", (4, 4)), 0)]), "32-bit grey levels"),
    ],
)
def test_data_that_cannot_be_stacked_are_described(train: Any, expected: str) -> None:
    with refused(expected, error=Unfit):
        examples.collected(train, pairs(3))


def test_a_label_beyond_the_names_of_the_classes_is_refused() -> None:
    split = pairs(4)
    split.classes = ["only"]  # type: ignore[attr-defined]
    with pytest.raises(Unfit, match="a label is 1, but the number of names in `classes` is 1"):
        examples.collected(split, pairs(2))


def test_tokens_and_targets_are_no_classes() -> None:
    tokens = torch.arange(20).view(4, 5)
    text = examples.collected((tokens, tokens + 1), (tokens[:1], tokens[:1] + 1))
    assert text.tokens_per_example == 5
    assert text.num_classes == 21
    assert text.mean is None
    targets = examples.collected(
        (torch.randn(6, 5), torch.randn(6, 2)), (torch.randn(2, 5), torch.randn(2, 2))
    )
    assert targets.tokens_per_example is None
    assert targets.num_classes == 2
    assert len(balanced_subset(targets, 3).train.labels) == 3


@pytest.mark.parametrize(
    ("name", "expected"), [("unpaired", "Pictures, not a pair"), ("broken", 'mydata.py", line')]
)
def test_a_function_that_does_something_else_is_quoted(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        data.prepare(point(name).data)
    assert expected in str(caught.value)
    assert "data.target=mydata.py:" in str(caught.value)
    assert 'bsweep/data/own.py"' not in str(caught.value)


# torchvision's


def torchvision(root: Path, dataset: str, side: int | None = None) -> TorchvisionConfig:
    more: dict[str, Any] = {"dataset": dataset, "root": str(root), "download": False, "side": side}
    return TorchvisionConfig(**PLAIN, flip=False, name="torchvision", **more)


def write_idx(path: Path, values: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        file.write(head + values.tobytes())


def test_files_of_mnists_format_are_read(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    for name, part in (("train", slice(20)), ("t10k", slice(20, None))):
        write_idx(folder / "MNIST/raw" / f"{name}-images-idx3-ubyte", pixels[part])
        write_idx(folder / "MNIST/raw" / f"{name}-labels-idx1-ubyte", labels[part])
    dataset = data.load(torchvision(folder, "MNIST"), CPU)
    assert np.array_equal(dataset.train.inputs[:, 0].numpy(), pixels[:20])
    assert dataset.test.labels.tolist() == labels[20:].tolist()
    assert len(dataset.classes) == 10
    assert data.prepare(torchvision(folder, "MNIST")).shape == (1, 28, 28)
    assert data.load(torchvision(folder, "MNIST", side=8), CPU).train.inputs.shape == (20, 1, 8, 8)


@pytest.mark.parametrize("dataset", get_args(TorchvisionDataset))
def test_every_data_set_that_is_named_takes_its_parts(dataset: str) -> None:
    import inspect

    kind = getattr(import_torchvision().datasets, dataset)
    for keywords in splits(dataset):
        inspect.signature(kind).bind("root", download=True, **keywords)
        for value in keywords.values():
            assert isinstance(value, bool) or f'"{value}"' in inspect.getsource(
                sys.modules[kind.__module__]
            )


def test_inputs_and_labels_may_share_memory_and_be_bfloat16() -> None:
    images = torch.rand(6, 3, 4, 4, dtype=torch.bfloat16)
    both = images, images[:, 0, 0]
    found = examples.collected(both, both)
    parts = [found.train.inputs, found.train.labels, found.test.inputs, found.test.labels]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 4
    assert torch.equal(found.train.inputs, images.float())


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
    return data.load(config.data, CPU)


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


def test_what_is_said_of_data_is_kept_in_the_cache_and_warned_of() -> None:
    config = point("ones", "launch=inline", "strategy=single")
    assert isinstance(config.data, OwnDataConfig)
    for _ in range(2):  # the second time from the cache
        assert "has the class 0" in info(config.data).notes[0]
    assert "has the class 0" in " ".join(check_point(config))
