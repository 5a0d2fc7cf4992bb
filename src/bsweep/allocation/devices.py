"""Nominal speed of GPUs by name, from `conf/devices.yaml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import yaml

from bsweep.config.parsing import conf_dir
from bsweep.config.values import ConfigError, did_you_mean


def flops(entry: str) -> float:
    """Return the nominal dense half-precision FLOP/s of the GPUs that an entry such as `4 A30` or
    `3 RTX 2080 Ti + TITAN RTX` names: of several GPUs, which train together as one worker, their
    mean.

    Raises:
        ConfigError: If a name is not in `conf/devices.yaml`.
    """
    speeds: list[float] = []
    for gpus in entry.split("+"):
        match = re.fullmatch(r"(?:([1-9]\d?) *x? +)?(.+)", gpus.strip())
        count, name = (int(match[1] or 1), match[2]) if match else (1, gpus)
        if plain(name) not in known():
            near = did_you_mean(name, [str(key) for key in _table()])
            raise ConfigError(
                f"allocation.devices: '{name}' is not in conf/devices.yaml.{near} Known: "
                f"{', '.join(_table())}. For another device leave allocation.devices out, and run "
                "`bsweep probe`, which measures it."
            )
        speeds += [known()[plain(name)]] * count
    return sum(speeds) / len(speeds)


@functools.cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        (conf_dir() / "devices.yaml").read_text()
    )
    return table


@functools.cache
def known() -> Mapping[str, float]:
    """Return the nominal FLOP/s of each device in `conf/devices.yaml`, by its names and aliases in
    the simplified form of `plain`.
    """
    return {
        plain(alias): entry["tflops"] * 1e12
        for name, entry in _table().items()
        for alias in (name, *entry.get("names", ()))
    }


def plain(name: str) -> str:
    """Return a device's name in lower case, without spaces, punctuation and brand words."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "quadro"))
