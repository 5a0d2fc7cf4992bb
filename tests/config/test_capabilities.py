"""What a strategy can do is one value on its card, which others ask."""

from __future__ import annotations

import pytest

from tests.support.running import compose


@pytest.mark.parametrize(
    ("strategy", "key", "of_kind", "found"),
    [
        ("horovod strategy.buckets=4", "exchanges_in_passes", False, True),
        ("horovod strategy.op=adasum", "needs_mpi", False, True),
        ("ddp", "replicates", False, True),
        ("ddp strategy.hook=powersgd", "replicates", False, False),
        ("parameter_server strategy.consistency=asynchronous", "in_step", True, False),
        ("diloco strategy.algorithm=horovod launch=horovodrun", "uses_horovod", False, True),
        ("own strategy.target=a.py:b", "exchanges_in_passes", None, None),
    ],
)
def test_keys_decide_what_a_kind_leaves_open(
    strategy: str, key: str, of_kind: bool | None, found: bool | None
) -> None:
    card = compose("local_batch=8", "num_workers=2", *f"strategy={strategy}".split()).strategy
    assert getattr(card.kind_can, key) is of_kind
    assert getattr(card.can, key) is found
