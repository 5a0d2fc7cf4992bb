"""Models have the published size, on the meta device where weights take no memory; and what is
special about each.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from bsweep import data, models
from bsweep.config.models import LlamaConfig, VGG16Config
from bsweep.config.values import ConfigError
from bsweep.models.llama import Llama, rotary_table, rotate
from bsweep.numerics.vector import layout
from tests.support import divided_network
from tests.support.refusing import refused
from tests.support.running import TINY, compose


def vgg16(num_classes: int = 1000, in_channels: int = 3) -> torch.nn.Module:
    with torch.device("meta"):
        config = VGG16Config(name="vgg16", dropout=0.25)
        return models.build(config, num_classes=num_classes, shape=(in_channels, 32, 32))


TEXT = ("data=text", "data.path=book.txt", "model=llama_tiny")
SPLIT = ("num_workers=2", "strategy=sharded", "launch=torchrun")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), torch.channels_last),
        (("channels_last=false",), torch.contiguous_format),
        (SPLIT, torch.contiguous_format),
        (TEXT, torch.contiguous_format),
        ((*TEXT, "channels_last=true"), torch.channels_last),
    ],
)
def test_models_with_convolutions_are_stored_channels_last(
    words: tuple[str, ...], expected: torch.memory_format
) -> None:
    config = compose("local_batch=8", "channels_last=auto", *words)
    model = models.build(
        config.model, num_classes=9, shape=(16,) if TEXT[0] in words else (3, 8, 8)
    )
    assert models.memory_format(config, model) == expected


@pytest.mark.parametrize("side", [32, 64, 224])
def test_vgg16_has_its_published_parameters_whatever_the_side(side: int) -> None:
    model = vgg16()
    assert sum(parameter.numel() for parameter in model.parameters()) == 138_357_544
    assert model(torch.empty(2, 3, side, side, device="meta")).shape == (2, 1000)
    assert [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)] == [0.25, 0.25]
    other = vgg16(num_classes=10, in_channels=1)
    assert other(torch.empty(2, 1, side, side, device="meta")).shape == (2, 10)


def llama(name: str, vocabulary_size: int = 256) -> Llama:
    config = compose("local_batch=8", "data=text", "data.path=somewhere", f"model={name}").model
    assert isinstance(config, LlamaConfig)
    torch.manual_seed(0)
    return Llama(config, vocabulary_size=vocabulary_size)


@pytest.mark.parametrize("vocabulary_size", [256, 32_000])
def test_llama_150m_has_opendilocos_size_without_its_embeddings(vocabulary_size: int) -> None:
    with torch.device("meta"):
        model = llama("llama_150m", vocabulary_size)
    block = 4 * 1024**2 + 3 * 1024 * 2688 + 2 * 1024  # attention, MLP, norms
    assert 12 * block + 1024 == 149_447_680
    expected = 149_447_680 + 2 * vocabulary_size * 1024
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    logits = model(torch.empty(2, 8, dtype=torch.long, device="meta"))
    assert logits.shape == (2, 8, vocabulary_size)


def test_llama_predicts_a_token_from_those_before_it() -> None:
    model = llama("llama_tiny").double()
    tokens = torch.randint(256, (2, 12))
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=1e-14)
    assert (before - after).abs()[:, 7:].amax(dim=-1).min() > 1e-6
    swapped = model(torch.tensor([[3, 5, 9]]))[0, -1] - model(torch.tensor([[5, 3, 9]]))[0, -1]
    assert swapped.abs().max() > 1e-6, "it knows their order"


def test_rotated_products_depend_on_distances_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)
    rotation = rotary_table(50, 16, like=query)
    queries, keys = (rotate(heads.expand(1, 1, 50, 16), rotation) for heads in (query, key))
    products = (queries @ keys.mT)[0, 0]
    for distance in (-3, 0, 7):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(
            diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-12, atol=1e-12
        )
    assert products[0].std() > 0.1
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(1, 1, 50))
    assert torch.equal(queries[0, 0, 0], query.flatten()), "position 0 does not turn"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_an_untrained_llama_guesses_in_every_precision(precision: str) -> None:
    model = llama("llama_tiny")
    model = model.double() if precision == "fp64" else model
    tokens, labels = torch.randint(256, (2, 4, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1).double(), labels.flatten())
    loss.backward()
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "tiny_cnn", "llama_tiny", "llama_150m"])
def test_tensors_need_no_gaps_for_the_fast_kernels_of_gpus(name: str) -> None:
    """These read 16 bytes at once, which are four numbers in fp32."""
    data = ("data=text", "data.path=somewhere") if name.startswith("llama") else ()
    config = compose("local_batch=8", f"model={name}", *data).model
    with torch.device("meta"):
        model = models.build(config, num_classes=7, shape=(7, 32, 32))
    assert not [part.name for part in layout(model) if part.start % 4]


@pytest.mark.parametrize("name", ["resnet18", "tiny_cnn", "llama_tiny"])
def test_the_pieces_of_a_model_compute_what_it_computes(name: str) -> None:
    is_text = name == "llama_tiny"
    text = ("data=text", "data.path=somewhere") if is_text else ()
    card = compose(*text, f"model={name}", "local_batch=8").model
    torch.manual_seed(0)
    model = models.build(card, num_classes=20, shape=(16,) if is_text else (3, 32, 32)).eval()
    inputs = torch.randint(20, (2, 16)) if is_text else torch.randn(2, 3, 32, 32)
    found = inputs
    for _, piece in models.pieces(card, model):
        found = piece(found)
    torch.testing.assert_close(found, model(inputs))


def test_a_layer_without_parameters_belongs_to_the_piece_before_it() -> None:
    card = VGG16Config(name="vgg16", dropout=0.25)
    pieces = models.pieces(card, vgg16())
    assert len(pieces) == 16
    assert pieces[-1][0] == "classifier.6"
    first = torch.empty(2, 3, 32, 32, device="meta")
    assert pieces[1][1](pieces[0][1](first)).shape == (2, 64, 16, 16)


STAGES = "strategy=pipeline num_workers=2"
LIBRARYS = "model=torchvision model.architecture"


@pytest.mark.full(but=4)
@pytest.mark.parametrize(
    "row",
    [
        (f"{STAGES} model=tiny_cnn num_workers=4", "4 stages", "3 pieces (conv1, conv2, head)"),
        (f"{STAGES} model=tiny_cnn strategy.cuts=[3]", "strategy.cuts=[3]", "between 1 and 2"),
        (f"{STAGES} {LIBRARYS}=squeezenet1_0", "nn.Sequential", "pieces()"),
        (f"{LIBRARYS}=alexnet", "or larger images."),
        (f"{LIBRARYS}=googlenet", "not logits [2, 10]: give model.options.aux_logits=false."),
        (f"{LIBRARYS}=inception_v3 +model.options.aux_logits=false", "or larger images."),
    ],
)
def test_what_a_model_cannot_do_is_said_with_its_remedy(row: tuple[str, ...]) -> None:
    words, *expected = row
    with refused(*expected):
        models.check_model(compose("local_batch=8", *words.split()), 10, (3, 32, 32))


CUT = """\
from torch import nn

class Pair(nn.Module):
    def __init__(self, one):
        super().__init__()
        self.one = one

    def forward(self, x):
        return self.one(x), x

class Cut(nn.Module):
    def __init__(self, num_classes, shape, wrong=0):
        super().__init__()
        self.one = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 8))
        self.two, self.wrong = nn.Linear(8, num_classes), wrong

    def forward(self, x):
        return self.two(self.one(x).relu())

    def pieces(self):
        last = [("two", self.two)]
        if self.wrong == 1:
            return [("one", self.one), *last]
        if self.wrong == 2:
            return [("one", Pair(self.one)), *last]
        return [("one", nn.Sequential(self.one, nn.ReLU())), *last]
"""


@pytest.mark.parametrize(
    ("wrong", "said"), [(0, ""), (1, "do not compute what"), (2, "piece one of the model returned")]
)
def test_pieces_of_an_own_model_are_tried_before_a_run(
    tmp_path: Path, wrong: int, said: str
) -> None:
    (tmp_path / "cut.py").write_text(CUT)
    words = ("model=own", f"model.target={tmp_path}/cut.py:Cut", f"+model.options.wrong={wrong}")
    split = ("strategy=pipeline", "num_workers=2", "local_batch=8")
    config = compose(*TINY, *words, *split).with_fingerprints()
    info = data.prepare(config.data)
    with pytest.raises(ConfigError, match=said) if wrong else nullcontext():
        models.try_model(config, info)


def test_a_parameter_of_two_pieces_is_refused() -> None:
    card = compose("model=timm", "local_batch=8", "model.architecture=resnet18").model
    with pytest.raises(ConfigError, match=r"2\.weight is in 2 of its pieces"):
        models.pieces(card, divided_network.tied(10, (3, 8, 8)))


class Nested(torch.nn.Module):
    """A network with a list of layers, and layers in one of them."""

    def __init__(self, num_classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        self.layers = torch.nn.ModuleList([inner, torch.nn.Linear(4, 4)])
        self.head = torch.nn.Linear(4, 100 * num_classes)


def test_blocks_are_modules_that_compute_something() -> None:
    words = ("model=own", "model.target=nested.py:Nested", "local_batch=8", "data=synthetic")
    model = Nested(10, (4,))
    found = models.blocks(compose(*words).model, model)
    assert found == [*model.layers, model.head], "by their size"
    named = compose(*words, "model.blocks=[layers]").model
    with pytest.raises(ConfigError, match=r"blocks has layers, which is a list.*layers\.\*"):
        models.blocks(named, model)
