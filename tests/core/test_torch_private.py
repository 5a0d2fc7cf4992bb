"""The private names of torch, and what is different between its versions."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bsweep.core import network, torch_private
from bsweep.core.torch_private import NAMES, listening_store, private

PACKAGE = Path(torch_private.__file__).parents[1]


@pytest.mark.parametrize("name", NAMES)
def test_torch_has_each_private_name(name: str) -> None:
    assert callable(private(name))


def test_a_private_name_that_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "gone", "torch:_gone.too")
    with pytest.raises(
        ValueError, match=re.escape(f"torch._gone.too, which torch {torch.__version__}")
    ):
        private("gone")


def test_no_other_module_names_private_parts_of_torch() -> None:
    private_parts = re.compile(
        r"\btorch(\.\w+)*\._(?!_version__)\w|\bdistributed_c10d\b|_BatchNorm\b"
    )
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    found = [path.stem for path, source in sources.items() if private_parts.search(source)]
    assert found == ["torch_private"]


def test_a_store_takes_a_socket_that_listens_in_every_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: Any = vars(dist)["TCPStore"]

    def of_torch_2_6(*values: object, **options: object) -> object:
        if "use_libuv" not in options:
            raise NotImplementedError("The libuv TCPStore backend does not support a listen fd")
        return made(*values, **options)

    monkeypatch.setattr(dist, "TCPStore", of_torch_2_6)
    server = network.listening("127.0.0.1")
    port = server.getsockname()[1]
    store = listening_store("127.0.0.1", port, 1, timedelta(seconds=9), server.detach())
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_an_error_of_a_gpu_is_told_from_a_lost_worker_in_every_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = RuntimeError("Connection closed by peer [127.0.0.1]:1234")
    assert not torch_private.is_of_accelerator(lost)
    monkeypatch.delattr(torch, "AcceleratorError", raising=False)  # as in torch 2.6
    assert not torch_private.is_of_accelerator(lost)
    assert torch_private.is_of_accelerator(RuntimeError("CUDA error: an illegal memory access"))


@pytest.mark.parametrize(("version", "is_safe"), [("2.6.0+cu124", False), ("2.13.0+cpu", True)])
def test_groups_of_gloo_are_dropped_where_that_was_seen_to_end(
    monkeypatch: pytest.MonkeyPatch, version: str, is_safe: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_private.joins_gloo_safely() is is_safe
