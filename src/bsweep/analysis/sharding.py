"""A published study of VGG-16 on parameter servers, with a model of its gains in speed, and
measured runs for comparison. The servers hold whole layers, or equal parts of the parameters.

In the model, a step takes the time to compute plus the time to exchange, T = C + max(1, w s) x.
There are w workers, the fullest server holds the share s of the parameters, and x seconds bring all
parameters through one link there and back. The bottleneck is the link of the fullest server, which
all workers share, or else a worker's own link.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pandas as pd
from scipy.optimize import minimize_scalar

from bsweep.analysis.keys import cell_keys, keyed
from bsweep.analysis.loaded import Study
from bsweep.analysis.once import once
from bsweep.analysis.published import published_csv
from bsweep.analysis.tables import Line, fit_line, step_seconds

_CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
_FEATURES = (7 * 7 * 512, 4096, 4096, 1000)
VGG16_LAYERS = (
    *((9 * before + 1) * after for before, after in pairwise(_CHANNELS)),
    *((before + 1) * after for before, after in pairwise(_FEATURES)),
)
"""The number of parameters in each layer of VGG-16, weights and biases: 13 convolutions of 3x3,
then 3 linear layers.
"""

Sharding = Literal["layer", "memory"]


def published_gains() -> pd.DataFrame:
    """Return the published gain in speed if each parameter server holds an equal part of the
    parameters (`memory`) rather than whole layers (`layer`), for each number of workers.

    Columns: `num_servers`, `gain`. `results/published/README.md` names their source.

    Returns:
        One row for each number of workers; gains are fractions.
    """
    table = pd.read_csv(published_csv("parameter_sharding"), index_col="num_workers")
    return table.assign(gain=table["memory_over_layer"] - 1)[["num_servers", "gain"]]


def largest_share(sharding: Sharding, num_servers: int) -> float:
    """Return the fraction of VGG-16's parameters that the fullest parameter server holds, by layer
    (whole layers) or by memory (equal parts).

    By layer, layers go, the largest first, to the server that has the least so far. By memory, all
    servers hold equal parts.
    """
    if sharding == "memory":
        return 1 / num_servers
    loads = [0] * num_servers
    for size in sorted(VGG16_LAYERS, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads) / sum(loads)


def predicted_gain(
    num_workers: int, ratio: float, shares: tuple[float, float] | None = None
) -> float:
    """Return the model's prediction of the gain in speed if each parameter server holds an equal
    part of the parameters (`memory`) rather than whole layers (`layer`).

    Args:
        num_workers: w; the published study has one server for two workers.
        ratio: The compute time over the exchange time of evenly loaded servers with two workers
            each: C / 2x.
        shares: The fullest server's share by layer and by memory; None: VGG-16's on w / 2 servers.

    Returns:
        The gain: 0.1 if memory sharding takes 10 % more steps in the same time.
    """
    num_servers = max(1, num_workers // 2)
    by_layer, by_memory = shares or (
        largest_share("layer", num_servers),
        largest_share("memory", num_servers),
    )
    compute = 2 * ratio  # in units of x
    return (compute + max(1, num_workers * by_layer)) / (
        compute + max(1, num_workers * by_memory)
    ) - 1


def fit_ratio(gains: pd.Series[float]) -> float:
    """Fit the model of sharded parameter servers to measured gains by least squares, and return its
    one parameter: computing time divided by exchange time.

    Args:
        gains: The gains in speed of sharding by memory over sharding by layer, as fractions,
            indexed by `num_workers`.

    Returns:
        The ratio, between 0 and 100.
    """

    def error(ratio: float) -> float:
        return float(
            sum((gains - [predicted_gain(num_workers, ratio) for num_workers in gains.index]) ** 2)
        )

    return float(minimize_scalar(error, bounds=(0, 100)).x)


@once
def sharding_gains(study: Study) -> pd.DataFrame:
    """Return the measured gain in speed of VGG-16 if each synchronous parameter server holds an
    equal part of the parameters (`memory`) rather than whole layers (`layer`).

    The gain is given for settings that were measured with both; everything else is equal. The table
    is indexed by what tells the cells of such runs apart, without the sharding.

    Columns:
        `layer_share`, `memory_share`: The recorded shares of the fullest server.
        `gain`: The gain in images per second, from means over runs.
        `published_gain`: The published gain with as many workers.
        `predicted_gain`: The gain by the recorded shares and the ratio fitted to the published
            gains.

    Args:
        study: The study.

    Returns:
        The table, in which all values are fractions. It is empty if VGG-16 was not measured with
        both.
    """
    runs, published = _measured(study), published_gains()["gain"]
    if not {"layer", "memory"} <= set(runs["strategy.sharding"]):
        return pd.DataFrame()
    alike = runs.drop(columns=["strategy.sharding", "largest_share"])
    keys = cell_keys(alike)
    known = keyed(alike).assign(
        sharding=runs["strategy.sharding"], largest_share=runs["largest_share"]
    )
    by_sharding = (
        known.groupby([*keys, "sharding"])[["images_per_second", "largest_share"]]
        .mean()
        .unstack("sharding")
    )
    speed, share = by_sharding["images_per_second"], by_sharding["largest_share"]
    gain = speed["memory"] / speed["layer"] - 1
    table = pd.DataFrame(
        {"layer_share": share["layer"], "memory_share": share["memory"], "gain": gain}
    ).dropna()
    workers, ratio = table.index.get_level_values("num_workers"), fit_ratio(published)
    shares = table[["layer_share", "memory_share"]].itertuples(index=False)
    return table.assign(
        published_gain=published.reindex(workers).to_numpy(),
        predicted_gain=[
            predicted_gain(count, ratio, pair) for count, pair in zip(workers, shares, strict=True)
        ],
    )


def sharding_fit(study: Study) -> Line | None:
    """Fit a line to the measured seconds of a step of VGG-16 over the load of the fullest
    synchronous parameter server.

    The load is max(1, w s), for w workers and the share s of the parameters on that server. The
    `intercept` of the line estimates C and its `slope` x. The intercept is all time that does not
    grow with the load, so it is not a measured computing time; see `computing_seconds`. The result
    is None if fewer than three such loads were measured, or if there are several batch sizes, each
    with its own C.

    Args:
        study: The study.

    Returns:
        The line, whose intercept and slope are in seconds, or None.
    """
    runs = _measured(study)
    load = (runs["num_workers"] * runs["largest_share"]).clip(lower=1).round(4)
    if load.nunique() < 3 or runs["local_batch"].nunique() > 1:
        return None
    return fit_line(load, runs["train_seconds"] / runs["num_steps"].astype(float))


def computing_seconds(study: Study) -> tuple[float, float] | None:
    """Return the shortest and the longest computing time of a step among the completed runs of
    VGG-16, in seconds.

    The result is None if no such time was measured.

    Args:
        study: The study.

    Returns:
        The shortest and the longest time in seconds, or None.
    """
    is_wanted = (study.runs["status"] == "completed") & (study.runs["model"] == "vgg16")
    seconds = (
        step_seconds(study)["compute_seconds"].reindex(study.runs.loc[is_wanted, "run_id"]).dropna()
    )
    return (float(seconds.min()), float(seconds.max())) if len(seconds) else None


def _measured(study: Study) -> pd.DataFrame:
    """Return the completed runs of VGG-16 on synchronous parameter servers that have a training
    time, with the share of the parameters on the fullest server.
    """
    shares = study.servers.groupby("run_id")["share"].max()
    # These settings do not change how long a step takes.
    no_matter = [name for name in study.runs if str(name).startswith(("lr", "optimizer."))]
    runs = study.runs.drop(columns=no_matter)
    is_timed = (runs["status"] == "completed") & runs["train_seconds"].notna()
    is_wanted = is_timed & (runs["strategy"] == "parameter_server") & (runs["model"] == "vgg16")
    runs = runs[is_wanted].join(shares.rename("largest_share").astype(float), on="run_id")
    if "strategy.sharding" not in runs:  # the study has no parameter servers
        return runs.assign(**{"strategy.sharding": ""})
    return runs[runs["strategy.consistency"] == "synchronous"]
