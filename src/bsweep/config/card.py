"""Cards: the schema of each variant with all that is known of it without torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

from bsweep.config.point import Point


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Keys with their types; one that is not among them is refused."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Card(Schema):
    """What every group's cards say."""

    if TYPE_CHECKING:  # each variant has it as a key, after those that its group shares

        @property
        def name(self) -> str: ...

    builds: ClassVar[str] = ""
    """What does it, as `module:name`, or the module alone; see `resolve`."""

    changes_no_number: ClassVar[tuple[str, ...]] = ()
    """Keys that leave the run id as it is."""

    added_later: ClassVar[Mapping[str, object]] = {}
    """Keys that runs of earlier versions do not have, with the value that changes nothing for them:
    their ids stay.
    """

    def problems(self, point: Point) -> Iterator[str]:
        """What contradicts this card in a point, each with the remedy."""
        yield from ()

    def warnings(self, point: Point) -> Iterator[str]:
        """What is doubtful about this card in a point that can run."""
        yield from ()


def resolve(target: str) -> Any:
    """What a card `builds`, imported when it is needed: `module:name`, or a module."""
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found
