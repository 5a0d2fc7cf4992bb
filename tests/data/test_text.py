"""Texts become sequences of tokens and the tokens after them, and language models learn from them
in real runs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from bsweep import data
from bsweep.config.data import TextConfig
from bsweep.data import cache
from tests.data.test_data import refuses
from tests.support.running import exits, imported_first, ran_ok, recorded, summaries, write_text

CPU = torch.device("cpu")


def text(path: Path, **changes: Any) -> TextConfig:
    plain = TextConfig(
        subset=None, name="text", path=str(path), sequence_length=4, tokenizer=None, test_share=0.25
    )
    return dataclasses.replace(plain, **changes)


def test_each_label_is_the_byte_after_its_input(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(100, 120)))  # 15 to train on, 5 to test on
    dataset = data.load(text(path), CPU)
    rows = torch.arange(100, 112).view(3, 4)
    assert dataset.train.inputs.tolist() == rows.tolist()
    assert dataset.train.labels.tolist() == (rows + 1).tolist()
    assert dataset.test.inputs.tolist() == [[115, 116, 117, 118]]
    assert dataset.test.labels.tolist() == [[116, 117, 118, 119]]
    assert data.prepare(text(path)) == data.DataInfo(
        3, 1, (4,), (), 256, inputs="tokens", label_shape=(4,)
    )


def test_a_subset_of_a_text_is_random_repeatable_and_nested(tmp_path: Path) -> None:
    path = write_text(tmp_path / "text.txt", 4000)
    whole, ten, again, five = (
        data.load(text(path, subset=size), CPU) for size in (None, 10, 10, 5)
    )
    assert torch.equal(ten.train.inputs, again.train.inputs)
    assert len(ten.train.inputs) == 10
    assert torch.equal(ten.train.inputs[:, 1:], ten.train.labels[:, :-1])
    rows = [{tuple(row) for row in dataset.train.inputs.tolist()} for dataset in (whole, ten, five)]
    assert rows[0] > rows[1] > rows[2]
    assert not torch.equal(ten.train.inputs, whole.train.inputs[:10])
    assert torch.equal(ten.test.inputs, whole.test.inputs)


def save_tokenizer(path: Path, corpus: str) -> Path:
    """A byte-level BPE of 270 tokens that was set to cut and to pad, as those of published models
    are.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus.splitlines(keepends=True), trainer)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    return path


def test_a_tokenizers_tokens_spell_the_text_and_are_made_once(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    path = write_text(tmp_path / "text.txt", 250_000)  # more than is tokenized at once
    definition = save_tokenizer(tmp_path / "tokenizer.json", path.read_text()[:50_000])
    config = text(path, tokenizer=str(definition), sequence_length=32)
    dataset = data.load(config, CPU)
    assert dataset.train.inputs.dtype == torch.int32
    assert dataset.num_classes == 270
    sizes = len(dataset.train.inputs), len(dataset.test.inputs)
    assert data.prepare(config) == data.DataInfo(
        *sizes, (32,), (), 270, inputs="tokens", label_shape=(32,)
    )
    assert torch.equal(dataset.train.inputs[:, 1:], dataset.train.labels[:, :-1])
    spelled = Tokenizer.from_file(str(definition)).decode(dataset.train.inputs.flatten().tolist())
    assert path.read_text().startswith(spelled)
    assert len(spelled) > 150_000
    assert dataset.train.inputs.max() >= 256, "merges were used"

    (kept,) = cache.cache_folder().glob("*.safetensors")
    written = kept.stat().st_mtime_ns
    path.touch()
    assert torch.equal(data.load(config, CPU).train.inputs, dataset.train.inputs)
    assert kept.stat().st_mtime_ns == written
    write_text(path, 200_000)
    assert len(data.load(config, CPU).train.inputs) < len(dataset.train.inputs)


def test_what_cannot_be_a_text_is_named(tmp_path: Path) -> None:
    path = write_text(tmp_path / "text.txt", 1000)
    refuses(text(tmp_path / "nowhere.txt"), "data.path=", "nowhere.txt", "give a text file")
    refuses(text(tmp_path), "data.path=", "Is a directory")
    missing = text(path, tokenizer=str(tmp_path / "none.json"))
    refuses(missing, "data.tokenizer=", "none.json", "null for bytes")
    refuses(text(path, tokenizer=str(path)), "not a Hugging Face tokenizer.json", "null for bytes")
    refuses(text(path, subset=188), "data.subset=188 is larger than the training set of 187")


@pytest.mark.parametrize(
    ("num_bytes", "test_share"), [(0, 0.1), (4, 0.1), (19, 0.25), (1000, 0.004), (1000, 0.996)]
)
def test_a_text_shorter_than_a_sequence_is_refused(
    tmp_path: Path, num_bytes: int, test_share: float
) -> None:
    path = write_text(tmp_path / "text.txt", num_bytes)
    remedies = ("each need 5 tokens", "a longer text")
    said = (f"has {num_bytes} tokens", "data.sequence_length=4")
    refuses(text(path, test_share=test_share), *said, *remedies)


@pytest.mark.full
def test_a_run_on_a_text_learns_and_counts_its_tokens(tmp_path: Path) -> None:
    path = write_text(tmp_path / "text.txt", 20_000)
    arguments = (
        *("data=text", f"data.path={path}", "data.sequence_length=32", "model=llama_tiny"),
        *("optimizer=adamw", "optimizer.lr=0.003", "precision=fp32", "local_batch=16"),
        *("epochs=3", "launch=inline", "strategy=single", "study=s"),
    )
    result = ran_ok("run", "--report", *arguments, cwd=tmp_path)
    assert "tokens/s" in result.stderr
    assert "images/s" not in result.stderr
    runs = tmp_path / "results/s/report/runs.csv"
    assert str(tmp_path) not in runs.read_text(), "its name tells the data, not its place"
    (folder,) = (file.parent for file in tmp_path.glob("results/s/*/summary.json"))
    (start,) = recorded(folder, "start")
    epochs = recorded(folder, "epoch")
    assert (start["tokens_per_example"], start["classes"], start["num_train"]) == (32, [], 562)
    losses = [epoch["test_loss"] for epoch in epochs]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 2.5
    assert 0.2 < epochs[-1]["test_accuracy"] <= 1
    for epoch in epochs:
        assert epoch["tokens_per_second"] == pytest.approx(32 * epoch["images_per_second"])


def test_workers_with_other_texts_under_the_same_path_are_told_so(tmp_path: Path) -> None:
    env = imported_first(
        tmp_path,
        f"import os\nos.environ['HOME'] = {str(tmp_path)!r} + '/home' + os.environ.get('RANK', "
        "'0')\n",
    )
    for rank in (0, 1):
        (tmp_path / f"home{rank}").mkdir()
        write_text(tmp_path / f"home{rank}/text.txt", 4000, seed=rank)
    arguments = (
        *("data=text", "data.path='~/text.txt'", "data.sequence_length=16", "model=llama_tiny"),
        *("local_batch=4", "num_workers=2", "strategy=allreduce", "study=s"),
    )
    exits(1, "run", *arguments, cwd=tmp_path, env=env)
    (end,) = summaries(tmp_path).values()
    assert end["status"] == "failed"
    assert "rank 1 has different data from rank 0" in end["message"]
    assert "Give all hosts the same files" in end["message"]
