"""What a refusal has to say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bsweep.config.values import ConfigError


@contextmanager
def refused(*said: str, error: type[ValueError] = ConfigError) -> Iterator[None]:
    """Fail unless the `with` block raises an error whose message has all of these texts."""
    with pytest.raises(error) as caught:
        yield
    assert [text for text in said if text not in str(caught.value)] == [], caught.value
