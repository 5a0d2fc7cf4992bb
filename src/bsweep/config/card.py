"""The base class of all cards (settings classes of variants), and a function that imports what a
card names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

from bsweep.config.point import Point


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The base class of classes with typed keys, which refuse a key that they do not declare."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Card(Schema):
    """The base class of all cards, which are the settings classes of strategies, models and other
    variants.
    """

    if TYPE_CHECKING:  # each variant declares this key itself, after its group's keys

        @property
        def name(self) -> str: ...

    builds: ClassVar[str] = ""
    """The code that implements the variant, as `module:name` or a module alone (see `resolve`);
    empty if there is none.
    """

    changes_no_number: ClassVar[tuple[str, ...]] = ()
    """Keys that are left out of the hash in a run's id, because they do not change the results of
    the run or because other keys in the hash stand for them.
    """

    @property
    def needs(self) -> tuple[str, ...]:
        """Python packages that the variant imports and that bsweep does not require; an extra of
        each name installs it.
        """
        return ()

    def problems(self, point: Point) -> Iterator[str]:
        """Yield an error message, with the remedy, for each conflict of this card's settings with
        each other or with the rest of a point.

        Args:
            point: The point, whose every key is valid by itself.

        Yields:
            One message for each conflict.
        """
        yield from ()

    def warnings(self, point: Point) -> Iterator[str]:
        """Yield a warning for each doubt about the settings of this card in a point that can run.

        Args:
            point: The point, which has no conflicts.

        Yields:
            One message for each doubt.
        """
        yield from ()


def resolve(target: str) -> Any:
    """Import and return the Python object that a text `module:name` names, or the module that a
    text `module` names.

    Args:
        target: `module:name`, or a module alone.

    Returns:
        The attribute or the module.
    """
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found
