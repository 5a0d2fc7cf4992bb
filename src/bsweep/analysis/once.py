"""A cache for tables that many figures and sentences ask for, valid while nobody
changes a study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

_known: ContextVar[dict[Any, Any] | None] = ContextVar("tables computed", default=None)


class _Copied(Protocol):
    def copy(self) -> Any: ...


Of = TypeVar("Of")
Others = ParamSpec("Others")
Table = TypeVar("Table", bound=_Copied)


@contextmanager
def computing_once() -> Iterator[None]:
    """Cache the tables of functions decorated with `once` until the end of the block; these
    functions then return copies of the cached tables.

    No study may change within the block. A block within another shares the outer block's tables.
    """
    if _known.get() is not None:
        yield
        return
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def once(
    compute: Callable[Concatenate[Of, Others], Table],
) -> Callable[Concatenate[Of, Others], Table]:
    """Return a function that caches the tables it computes, but only within a `computing_once`
    block.

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
        table: Table = known[key][0].copy()
        return table

    return computed
