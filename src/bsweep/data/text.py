"""A text file as sequences of tokens, for language models.

The tokens are the bytes of the file, or those that a Hugging Face tokenizer makes of it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bsweep.config.data import TextConfig
from bsweep.data.cache import cached_facts, cached_tensors
from bsweep.data.info import DataInfo

if TYPE_CHECKING:
    from torch import Tensor

    from bsweep.data.cache import Build
    from bsweep.data.dataset import Dataset

_PIECE_CHARACTERS = 100_000  # characters that a thread tokenizes at once
_BATCH_PIECES = 64
_NUM_BYTES = 256  # values of a byte


def info(config: TextConfig) -> DataInfo:
    """Return the numbers of training and test sequences of a text, their length and the size of the
    vocabulary.
    """
    text = _read(config.path, "data.path", "a text file")
    facts = {"num_tokens": len(text), "vocabulary_size": _NUM_BYTES}
    if config.tokenizer is not None:
        facts = cached_facts(*_tokenized(text, config.tokenizer))
    num_train, num_test = (
        _num_sequences(tokens, config.sequence_length)
        for tokens in _split(config, facts["num_tokens"])
    )
    length = (config.sequence_length,)
    num_classes = facts["vocabulary_size"]
    return DataInfo(
        num_train, num_test, length, (), num_classes, inputs="tokens", label_shape=length
    )


def load(config: TextConfig) -> Dataset:
    """Return a text as sequences of `sequence_length` tokens that do not overlap.

    The last `test_share` of the text is for testing.

    Raises:
        ValueError: If the file or the tokenizer cannot be read, or if the text is too short.
    """
    import torch

    from bsweep.data.dataset import Dataset, Part

    text = _read(config.path, "data.path", "a text file")
    if config.tokenizer is None:
        tokens = torch.from_numpy(np.frombuffer(bytearray(text), dtype=np.uint8))
        vocabulary_size = _NUM_BYTES
    else:
        tensors, facts = cached_tensors(*_tokenized(text, config.tokenizer))
        tokens, vocabulary_size = tensors["tokens"], facts["vocabulary_size"]
    train, test = (
        Part(*_sequences(share, config.sequence_length))
        for share in tokens.split(_split(config, len(tokens)))
    )
    return Dataset(train, test, classes=(), num_classes=vocabulary_size)


def _split(config: TextConfig, num_tokens: int) -> tuple[int, int]:
    """Return how many of a text's tokens are for training, and how many for testing.

    Raise ValueError if either has too few tokens for one sequence.
    """
    num_test = int(num_tokens * config.test_share)
    num_train = num_tokens - num_test
    if min(num_train, num_test) <= config.sequence_length:
        raise ValueError(
            f"data.path={config.path} has {num_tokens} tokens: with "
            f"data.test_share={config.test_share:g}, {num_train} are for training and {num_test} "
            f"for testing. Training and testing each need {config.sequence_length + 1} tokens or "
            f"more, since data.sequence_length={config.sequence_length}: use a longer text, a "
            "smaller data.sequence_length, or another data.test_share."
        )
    return num_train, num_test


def _num_sequences(num_tokens: int, length: int) -> int:
    return (num_tokens - 1) // length


def _sequences(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the input sequences and the label sequences of a text, both (N, length) and views of
    `tokens`.

    Each label is the token after its input.
    """
    stop = _num_sequences(len(tokens), length) * length
    return tokens[:stop].view(-1, length), tokens[1 : stop + 1].view(-1, length)


def _read(path: str, key: str, wanted_file: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"{key}={path} cannot be read ({error}): give {wanted_file}.") from error
    except MemoryError:
        raise ValueError(
            f"{key}={path} does not fit into this machine's memory: give a smaller file."
        ) from None


def _tokenized(text: bytes, tokenizer: str) -> tuple[str, Build]:
    """Return arguments for `cached_tensors`: the cache name of a text's tokens, and the function
    that tokenizes the text.

    The tokens are int32 (n,). The cache has one file for each content of the text and the
    tokenizer.
    """
    definition = _read(
        tokenizer, "data.tokenizer", "a Hugging Face tokenizer.json, or null for bytes"
    )
    key = hashlib.sha256(
        b"1" + hashlib.sha256(definition).digest() + hashlib.sha256(text).digest()
    ).hexdigest()[:32]
    return f"text-{key}", functools.partial(_tokenize, text, definition, tokenizer)


def _tokenize(
    text: bytes, definition: bytes, path: str
) -> tuple[dict[str, Tensor], dict[str, int]]:
    # Imported here because a worker that finds the cache should not wait for it.
    import torch
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(definition)
    except Exception as error:  # The library raises no narrower type.
        raise ValueError(
            f"data.tokenizer={path} is not a Hugging Face tokenizer.json ({error}): give such a "
            "file, or null for bytes."
        ) from error
    # The file keeps the truncation and padding that were set for some model.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pieces = _pieces(text.decode(errors="replace"))
    numbers = [np.empty(0, dtype=np.int32)]
    while batch := list(itertools.islice(pieces, _BATCH_PIECES)):
        encodings = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        numbers += [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
    tokens = torch.from_numpy(np.concatenate(numbers))
    vocabulary_size = 1 + max(tokenizer.get_vocab().values())
    return {"tokens": tokens}, {"num_tokens": len(tokens), "vocabulary_size": vocabulary_size}


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces that end at line ends, so that several threads can tokenize them at
    the same time.
    """
    start = 0
    while start < len(text):
        stop = text.find("\n", start + _PIECE_CHARACTERS) + 1 or len(text)
        yield text[start:stop]
        start = stop
