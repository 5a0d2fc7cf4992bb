"""A cache of tables and lists that are computed from a study, because several figures and sentences
of a report use them; it exists within a `caching` block only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any, TypeVar, cast

_tables: ContextVar[dict[Any, Any] | None] = ContextVar("tables computed", default=None)
Compute = TypeVar("Compute", bound=Callable[..., Any])


@contextmanager
def caching() -> Iterator[None]:
    """Within a `with` block, let functions decorated with `cached` compute a result only at the
    first call with the same study and arguments, and return copies of it at later calls.

    No study may change within the block. A block within another shares the outer block's results.
    """
    tables = _tables.get()
    token = _tables.set({} if tables is None else tables)
    try:
        yield
    finally:
        _tables.reset(token)


def cached(compute: Compute) -> Compute:
    """Decorate a function so that it caches the tables or lists that it computes, but only within a
    `caching` block.

    The first argument of the function is a study or its runs.
    """

    @wraps(compute)
    def computed(study: Any, /, *args: Any, **options: Any) -> Any:
        tables = _tables.get()
        if tables is None:
            return compute(study, *args, **options)
        key = (compute, id(study), args, *options.items())
        if key not in tables:
            # Keeping the study ensures that no other object gets its id.
            tables[key] = study, compute(study, *args, **options)
        return copy(tables[key][1])

    return cast("Compute", computed)
