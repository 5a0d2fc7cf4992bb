"""The tables that the page shows of simulated steps: their speed-up, their parts, what happens in
one, and what the links of sites carry.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from bsweep.analysis import Prediction
from bsweep.analysis.prediction.simulated import links_and_codec, recommended_steps
from bsweep.analysis.simulation.engine import LANE
from bsweep.analysis.simulation.network import parse_network
from bsweep.analysis.simulation.passes import KINDS
from bsweep.analysis.simulation.result import SIMULATED

_CELLS = [
    "network", "num_workers", "speed_up", "speed_up_low", "speed_up_high", "computing_share",
    "exchange_share", "waiting_share", "is_simulated",
]  # fmt: skip
_SITES = [
    "network", "num_workers", "x", "y", "workers", "servers", "sent_bytes", "received_bytes",
    "link_seconds", "latencies",
]  # fmt: skip


def steps(prediction: Prediction) -> dict[str, Any] | None:
    """Return the tables of the page's charts of simulated steps, each as columns by name.

    Args:
        prediction: A prediction.

    Returns:
        `cells` (one for each network and number of workers), `spans` (what each worker does in a
        step: `kind`, and `number` for passes of a pipeline) and `sites`; the `strategy` with its
        `local_batch`, and the `links` between sites by network. None without a simulation.
    """
    found = recommended_steps(prediction)
    if found is None:
        return None
    shares = found.cells["exchange_share"] + found.cells["waiting_share"]
    cells = found.cells.assign(
        is_simulated=found.cells["kind"] == SIMULATED, computing_share=1 - shares
    )
    return {
        "strategy": cells["strategy"].iloc[0],
        "local_batch": cells["local_batch"].iloc[0],
        "cells": _columns(cells, _CELLS),
        "spans": _spans(found.timelines),
        "sites": _columns(found.sites, _SITES) if len(found.sites) else None,
        "links": {name: _between(name) for name in dict.fromkeys(found.sites.get("network", ()))},
    }


def _columns(table: pd.DataFrame, names: list[str]) -> dict[str, list[Any]]:
    return {name: [*table[name]] for name in names}


def _spans(timelines: pd.DataFrame) -> dict[str, list[Any]]:
    """Return what happens in steps, with the names of passes and rows in parts."""
    if timelines.empty:
        return {}
    who, what = timelines["who"].str.extract(r"(.+?)(?: (\d+))?$"), timelines["what"]
    passes = what.str.extract(r"^([FBbW])(\d+)$")
    kinds = passes[0].map(KINDS).fillna(what.mask(timelines["who"] == LANE, "exchange"))
    told = timelines.assign(who=who[0], place=who[1], kind=kinds, number=passes[1])
    return _columns(
        told.astype({"place": float, "number": float}),
        ["network", "num_workers", "who", "place", "kind", "number", "what", "begin_seconds",
         "end_seconds", "message_rounds"],
    )  # fmt: skip


def _between(network: str) -> dict[str, float]:
    """Return the payload in Gbit/s and the latency in ms of the link of a site."""
    link = parse_network(links_and_codec(network)[0]).between
    return {"gigabits": link.bytes_per_second * 8 / 1e9, "ms": link.latency_seconds * 1000}
