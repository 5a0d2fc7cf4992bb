"""A cache of tables and lists that are computed from a study, because several figures and sentences
of a report use them; it exists within a `caching` block only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

_known: ContextVar[dict[Any, Any] | None] = ContextVar("tables computed", default=None)


Of = TypeVar("Of")
Others = ParamSpec("Others")
Table = TypeVar("Table")


@contextmanager
def caching() -> Iterator[None]:
    """Within a `with` block, let functions decorated with `cached` compute a result only at the
    first call with the same study and arguments, and return copies of it at later calls.

    No study may change within the block. A block within another shares the outer block's results.
    """
    if _known.get() is not None:
        yield
        return
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def cached(
    compute: Callable[Concatenate[Of, Others], Table],
) -> Callable[Concatenate[Of, Others], Table]:
    """Decorate a function so that it caches the tables or lists that it computes, but only within a
    `caching` block.

    The first argument of the function is a study or its runs.
    """

    @wraps(compute)
    def computed(of: Of, /, *args: Others.args, **options: Others.kwargs) -> Table:
        known = _known.get()
        if known is None:
            return compute(of, *args, **options)
        key = (compute, id(of), args, *options.items())
        if key not in known:
            # Keeping `of` ensures that no other object gets its id.
            known[key] = (
                compute(of, *args, **options),
                of,
            )
        table: Table = copy(known[key][0])
        return table

    return computed
