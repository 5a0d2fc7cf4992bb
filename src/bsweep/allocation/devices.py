"""Nominal speed and memory of GPUs by name, from `conf/devices.yaml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from bsweep.config.parsing import conf_dir
from bsweep.config.values import ConfigError, did_you_mean


@dataclass(frozen=True)
class Device:
    """The nominal speed and memory of one GPU; for several GPUs that train together as one worker,
    their mean speed and smallest memory. The speed is the dense half-precision FLOP/s.
    """

    flops: float
    memory_bytes: float


def device(entry: str) -> Device:
    """Return the nominal speed and memory of the GPUs that an entry such as `4 A30` or `3 RTX 2080
    Ti + TITAN RTX` names.

    Several GPUs give their mean FLOP/s and their smallest memory.

    Raises:
        ConfigError: If a name is not in `conf/devices.yaml`.
    """
    found: list[Device] = []
    for part in entry.split("+"):
        match = re.fullmatch(r"(?:([1-9]\d?) *x? +)?(.+)", part.strip())
        count, name = (int(match[1] or 1), match[2]) if match else (1, part)
        if plain(name) not in known():
            near = did_you_mean(name, [str(key) for key in _table()])
            raise ConfigError(
                f"allocation.devices: '{name}' is not in conf/devices.yaml.{near} Known: "
                f"{', '.join(_table())}. For another device leave allocation.devices out, and run "
                "`bsweep probe`, which measures it."
            )
        found += [known()[plain(name)]] * count
    return Device(
        sum(one.flops for one in found) / len(found), min(one.memory_bytes for one in found)
    )


@functools.cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
        (conf_dir() / "devices.yaml").read_text()
    )
    return table


@functools.cache
def known() -> Mapping[str, Device]:
    """Return the nominal speed and memory of each device in `conf/devices.yaml`, by its names and
    aliases in the simplified form of `plain`.
    """
    return {
        plain(alias): Device(entry["tflops"] * 1e12, entry["memory_gb"] * 1e9)
        for name, entry in _table().items()
        for alias in (name, *entry.get("names", ()))
    }


def plain(name: str) -> str:
    """Return a device's name in lower case, without spaces, punctuation and brand words."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "quadro"))
