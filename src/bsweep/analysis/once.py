"""Tables that many figures and sentences ask for, computed once where nobody changes a study
meanwhile.
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
    """Within, whoever asks for a table again gets a copy of the first: no study may change before
    the end.

    Within another, it is that one.
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
    """A table of a study or of its runs that `computing_once` computes once."""

    @wraps(compute)
    def computed(of: Of, /, *args: Others.args, **options: Others.kwargs) -> Table:
        known = _known.get()
        if known is None:
            return compute(of, *args, **options)
        key = (compute, id(of), args, *options.items())
        if key not in known:
            # While `of` is kept, no other object has its id.
            known[key] = (
                compute(of, *args, **options),
                of,
            )
        table: Table = known[key][0].copy()
        return table

    return computed
