"""The refusal of what needs packages that are not installed, with the extra that installs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


def refuse_missing(asked: str, packages: Iterable[str], extra: str) -> None:
    """Raise ValueError if a Python package is not installed.

    Args:
        asked: What needs the packages, such as `optimizer=lars`.
        packages: The names by which Python imports the packages.
        extra: The extra of bsweep that installs them.
    """
    missing = [package for package in packages if not _is_installed(package)]
    if missing:
        raise ValueError(
            f"{asked}: {', '.join(missing)} not installed: pip install 'bsweep[{extra}]'"
        )


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    # A folder of that name has no origin; wandb, for example, makes a folder `wandb`.
    return spec is not None and spec.origin is not None
