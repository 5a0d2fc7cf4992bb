"""The base class of all cards (settings classes of variants), and a function that imports what a
card names.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict
from typing_extensions import Self, dataclass_transform

from bsweep.config.values import show

if TYPE_CHECKING:
    from bsweep.config.run import RunConfig

    Point = RunConfig
else:
    Point = object  # cards cannot import it


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Schema:
    """The base class of classes with typed keys, which refuse a key that they do not declare. Each
    of them is a frozen dataclass with keyword arguments.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Card(Schema):
    """The base class of all cards, which are the settings classes of strategies, models and other
    variants.

    The first sentence of a card's docstring, and the docstring below each of its keys, are what
    `bsweep run --help` shows. A key without a default has to be given.
    """

    if TYPE_CHECKING:  # each variant declares this key itself, after its group's keys

        @property
        def name(self) -> str: ...

    builds: ClassVar[str] = ""
    """The code that implements the variant, as `module:name` or a module alone (see `load_object`);
    empty if there is none.
    """

    brings: ClassVar[Mapping[str, Any]] = {}
    """Values that the choice of this variant sets elsewhere unless the user gives them: options of
    other groups, such as `{"launch": "torchrun"}`, and keys that are in no group.
    """

    internal: ClassVar[tuple[str, ...]] = ()
    """Keys that a user cannot give: bsweep sets them, or they keep their defaults."""

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

    def with_fingerprints(self) -> Self:
        """Return this card with a fingerprint of the files that it names, if it names any.

        Raises:
            ConfigError: If a file, or a command, cannot be found.
        """
        return self

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


def clash(point: Point, keys: str, remedy: str) -> str:
    """Return an error message about values of a point that contradict each other.

    Args:
        point: The point.
        keys: The keys and groups, such as `strategy.op compression`; the message has their values.
        remedy: The reason and the remedy, as a sentence or two.
    """
    values = {key: operator.attrgetter(key)(point) for key in keys.split()}
    typed = (f"{k}={v.name if isinstance(v, Card) else show(v)}" for k, v in values.items())
    return f"{' with '.join(typed)}: {remedy}"


def load_object(target: str) -> Any:
    """Import and return the Python object that a text `module:name` names, or the module that a
    text `module` names.

    Args:
        target: `module:name`, or a module alone.

    Returns:
        The attribute or the module.
    """
    module, _, name = target.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported
