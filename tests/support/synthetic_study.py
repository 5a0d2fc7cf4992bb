"""Writes studies with known answers: the run folders that a sweep would leave, without training
anything.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bsweep.config.run import RunConfig
from bsweep.runlog.files import RunPaths
from bsweep.runlog.records import SCHEMA, End, Epoch, Event, Record, Round, Start, Status
from bsweep.runlog.summary import write_summary
from tests.support.running import compose

NUM_TRAIN = 50_000
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
META = {
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
    "versions": {"python": "3.12.0", "torch": "2.13.0"},
    "cpu": "Test CPU",
    "cores": 2,
    "gpus": [],
    "launched_at": 0.0,
    "command": "bsweep run -m experiment=synthetic",
}


def train_seconds(local_batch: int, num_workers: int, epochs: int = 3, seed: int = 0) -> float:
    """Seconds of training a run: a + c / b, exactly for seed 0, longer by 1 % a seed."""
    examples = epochs * NUM_TRAIN / num_workers
    return (
        (examples * 0.004 + examples * 0.2 / local_batch)
        * math.pow(num_workers, 0.1)
        * (1 + 0.01 * seed)
    )


def _by_layer(num_servers: int) -> list[float]:
    return [1.0] if num_servers == 1 else [0.743, *[0.257 / (num_servers - 1)] * (num_servers - 1)]


SHARES: dict[str, Callable[[int], list[float]]] = {
    "layer": _by_layer,
    "memory": lambda num_servers: [1 / num_servers] * num_servers,
}
COMPUTE_SECONDS, EXCHANGE_SECONDS = 4.0, 1.0


def server_step_seconds(num_workers: int, sharding: str) -> float:
    """Seconds of a step with a parameter server for two workers: C + max(1, w s) x."""
    largest = max(SHARES[sharding](max(1, num_workers // 2)))
    return COMPUTE_SECONDS + max(1, num_workers * largest) * EXCHANGE_SECONDS


@functools.cache
def _composed(*words: str) -> dict[str, Any]:
    """What a point has, as a run's file keeps it."""
    composed: dict[str, Any] = json.loads(json.dumps(asdict(compose("local_batch=4", *words))))
    return composed


def server(sharding: str, **others: Any) -> dict[str, Any]:
    """Settings of a run of VGG-16 on parameter servers; `others` as in `strategy`."""
    point = _composed("model=vgg16", "strategy=parameter_server")
    strategy = point["strategy"] | {"sharding": sharding, **others}
    return {"strategy": strategy, "model": point["model"]}


# Seconds of a local step at batch 4, by worker, which idle as the published baseline does; what of
# it no batch changes.
NODE_STEP_SECONDS = (0.0294, 0.0305, 0.0159, 0.0256)
FIXED_SHARE = 0.7
ROUND_EXCHANGE_SECONDS = 0.5
Lists = tuple[tuple[int, ...] | None, tuple[int, ...] | None]
ALLOCATIONS: dict[str, Lists] = {  # local batches and local steps
    "uniform": (None, None),
    "batch_by_flops": ((4, 4, 6, 5), None),
    "batch_by_memory": ((8, 8, 32, 16), None),
    "steps_by_flops": (None, (100, 104, 145, 117)),
    "steps_by_speed": (None, (104, 100, 192, 119)),
    "hybrid": ((4, 4, 16, 8), (104, 100, 101, 92)),
    "network_aware": (None, (208, 200, 384, 238)),
}


def diloco(allocation: str, lists: Lists | None = None, **others: Any) -> dict[str, Any]:
    """Settings of a DiLoCo run with `ALLOCATIONS` or other `lists`; `others` as in `strategy`."""
    batch = ("local_batch=null", "global_batch=16", "num_workers=4")
    point = _composed(*batch, "strategy=diloco", f"allocation={allocation}")
    batches, steps = lists or ALLOCATIONS[allocation]
    filled_in = {"local_batches": batches, "local_steps": steps}
    return {"strategy": point["strategy"] | others, "allocation": point["allocation"] | filled_in}


def round_seconds(batches: tuple[int, ...], steps: tuple[int, ...], seed: int = 0) -> list[float]:
    """Seconds that each worker computes in a round, longer by 1 % a seed."""
    per_step = zip(steps, NODE_STEP_SECONDS, batches, strict=True)
    return [
        count * seconds * (FIXED_SHARE + (1 - FIXED_SHARE) * batch / 4) * (1 + 0.01 * seed)
        for count, seconds, batch in per_step
    ]


def _round(config: Mapping[str, Any], epoch: int, number: int) -> dict[str, Any]:
    """One of many equal rounds, whose loss falls with the examples trained on."""
    workers = range(config["num_workers"])
    batches = config["allocation"]["local_batches"] or (config["local_batch"],) * len(workers)
    steps = config["allocation"]["local_steps"] or (config["strategy"]["sync_every"],) * len(
        workers
    )
    compute = round_seconds(tuple(batches), tuple(steps), config["seed"])
    examples = sum(batch * count for batch, count in zip(batches, steps, strict=True))
    began = (number - 1) * (max(compute) + ROUND_EXCHANGE_SECONDS)
    return vars(
        Round(
            epoch=epoch, round=number, workers=tuple(workers), worker_batches=tuple(batches),
            local_steps=tuple(steps),
            began_seconds=(began,) * len(workers), compute_seconds=tuple(compute),
            idle_seconds=tuple(max(compute) - seconds for seconds in compute),
            exchange_seconds=(ROUND_EXCHANGE_SECONDS,) * len(workers), codec_seconds=None,
            exposed_exchange_seconds=(ROUND_EXCHANGE_SECONDS,) * len(workers),
            num_examples=examples,
            train_loss=3 + 4 / (1 + number * examples / 5_000) + 0.02 * config["seed"],
            is_whole=True,
        )
    )  # fmt: skip


def write_run(
    study: Path,
    *,
    local_batch: int,
    num_workers: int = 1,
    seed: int = 0,
    epochs: int = 3,
    status: str | None = "completed",
    num_epochs_done: int | None = None,
    message: str = "",
    events: tuple[str, ...] = (),
    more: tuple[Record, ...] = (),
    settings: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] = META,
    num_train: int = NUM_TRAIN,
    num_rounds: int = 0,
    threads: int = 2,
    accuracy: float | None = None,
    precision: str = "fp32",
    layer_parameters: tuple[int, ...] | None = None,
    pieces: tuple[str, ...] | None = None,
) -> Path:
    """Write one run folder. `status=None` leaves the summary out; `settings` overrides keys by
    dotted name.

    `more` are records after the start. `num_rounds` is of each epoch, see `diloco`; `accuracy` is
    that of training and test in place of the usual ones.
    """
    config = _config(
        settings or {}, study=study.name, local_batch=local_batch, num_workers=num_workers,
        seed=seed, epochs=epochs,
    )  # fmt: skip
    strategy = config["strategy"]["name"]
    suffix = "".join(f"_{key.split('.')[-1]}{value}" for key, value in _flat(settings or {}))
    if len(suffix) > 200:
        suffix = f"_{config['allocation']['name']}_{zlib.crc32(suffix.encode()):08x}"
    folder = study / f"b{local_batch}_w{num_workers}_{strategy}_s{seed}{suffix}"
    folder.mkdir(parents=True)
    paths = RunPaths(folder)
    global_batch = local_batch * num_workers
    paths.config.write_text(json.dumps(config))  # JSON is YAML
    paths.meta.write_text(json.dumps(meta))
    start = Start(
        run_id=folder.name, config=config, local_batch=local_batch, global_batch=global_batch,
        num_train=num_train,
        num_test=10_000, classes=CIFAR10, num_parameters=11_181_642, tokens_per_example=None,
        layer_parameters=layer_parameters, pieces=pieces, device="cpu",
        precision=precision, threads=threads, start_seconds=1.5,
        channels_last=config["channels_last"] is True, compile=config.get("compile") is True,
    )  # fmt: skip
    done = epochs if num_epochs_done is None else num_epochs_done
    records = [start, *(Event(event="warning", message=text) for text in events), *more]
    lines = [_epoch(config, epoch, num_train) for epoch in range(1, done + 1)]
    rounds = [
        _round(config, number // num_rounds + 1, number + 1) for number in range(done * num_rounds)
    ]
    if status == "diverged" and lines:
        lines[-1].update(train_loss=None, test_loss=None, train_accuracy=0.1, test_accuracy=0.1)
    for line in lines if accuracy is not None else ():
        line.update(train_accuracy=accuracy, test_accuracy=accuracy)
    written = [*(vars(record) for record in records), *rounds, *lines]
    if status == "completed":
        num_steps = sum(line["num_steps"] for line in lines)
        written.append(vars(End(status="completed", message="", epochs=done, num_steps=num_steps)))
    paths.metrics.write_text(
        "".join(json.dumps({"schema": SCHEMA, "time": 0.0, **record}) + "\n" for record in written)
    )
    if status is not None:
        wall_seconds = sum(line["train_seconds"] for line in lines) + 5
        told = SimpleNamespace(
            strategy=SimpleNamespace(name=strategy), num_workers=num_workers,
            examples_per_pass=local_batch,
            examples_per_step=global_batch, seed=seed,
        )  # fmt: skip
        write_summary(paths, cast(RunConfig, told), cast(Status, status), message, wall_seconds)
    return folder


def write_study(
    study: Path,
    *,
    local_batches: tuple[int, ...] = (8, 16, 32, 64, 128, 256),
    num_workers: tuple[int, ...] = (1, 2),
    seeds: int = 1,
    epochs: int = 3,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write a full grid of completed runs and return its folder."""
    for workers, batch, seed in itertools.product(num_workers, local_batches, range(seeds)):
        write_run(
            study, local_batch=batch, num_workers=workers, seed=seed, epochs=epochs,
            settings=settings,
        )  # fmt: skip
    return study


_DEFAULTS = (
    *("data=imagefolder", "data.root=images", "channels_last=true"),
    *("optimizer.lr=0.1", "optimizer.lr_rule=per_worker", "optimizer.weight_decay=5e-4"),
    *("optimizer.reference_batch=256", "strategy.fusion_threshold_mb=64"),
)


def _config(settings: Mapping[str, Any], **given: object) -> dict[str, Any]:
    config = copy.deepcopy(_composed(*_DEFAULTS)) | given
    for key, value in settings.items():
        group, _, name = key.rpartition(".")
        (config.setdefault(group, {}) if group else config)[name] = value
    return config


def _flat(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        pair
        for key, value in settings.items()
        for pair in (value.items() if isinstance(value, dict) else [(key, value)])
    ]


def _epoch(config: Mapping[str, Any], epoch: int, num_train: int) -> dict[str, Any]:
    batch, workers, seed = config["local_batch"], config["num_workers"], config["seed"]
    num_steps = math.ceil(num_train / (batch * workers))
    seconds = train_seconds(batch, workers, config["epochs"], seed) / config["epochs"]
    traffic: dict[str, Any] = {
        "exchange_seconds": 0.1 * seconds if workers > 1 else None, "exchange_steps": None,
        "servers": None, "received_bytes": None,
        "wait_seconds": 0.02 * seconds if workers > 1 else None, "worker_wait_seconds": None,
        "sent_bytes": 44_000_000 * num_steps if workers > 1 else 0,
    }  # fmt: skip
    if config["strategy"]["name"] == "parameter_server":
        seconds = num_steps * server_step_seconds(workers, config["strategy"]["sharding"])
        traffic |= _server_traffic(config, num_steps, seconds)
    best = 0.95 - 0.02 * abs(math.log2(batch / 48)) - 0.01 * workers + 0.004 * seed
    accuracy = 0.1 + (best - 0.1) * (1 - math.exp(-1.5 * epoch / config["epochs"] * 3))
    return vars(
        Epoch(
            epoch=epoch, num_steps=num_steps, train_seconds=seconds,
            train_loss=2.3 * (1 - accuracy) + 0.02,
            train_accuracy=accuracy, test_loss=2.4 * (1 - accuracy) + 0.1,
            test_accuracy=accuracy - 0.03,
            images_per_second=num_train / seconds, tokens_per_second=None,
            step_seconds_p50=seconds / num_steps,
            step_seconds_p95=1.2 * seconds / num_steps, learning_rate=0.1,
            global_batch=batch * workers,
            peak_memory_bytes=None, codec_seconds=None,
            exposed_exchange_seconds=traffic["exchange_seconds"], **traffic,
        )
    )  # fmt: skip


def _server_traffic(config: Mapping[str, Any], num_steps: int, seconds: float) -> dict[str, Any]:
    """Servers that are busy for their share of the exchange; worker 0 waits 0.1 s a step, the
    others do not.
    """
    workers, sharding = config["num_workers"], config["strategy"]["sharding"]
    shares = SHARES[sharding](max(1, workers // 2))
    sent_bytes = 4 * 138_357_544 * num_steps
    loads = (
        {
            "share": share, "received_bytes": round(share * sent_bytes * workers), "sent_bytes": 0,
            "pushes": [num_steps] * workers, "max_lead": 0,
            "busy_seconds": 0.5 * workers * share * num_steps,
            "queue_seconds": 0.25 * share * workers * num_steps,
        }
        for share in shares
    )  # fmt: skip
    return {
        "exchange_seconds": max(1, workers * max(shares)) * EXCHANGE_SECONDS * num_steps,
        "wait_seconds": 0.1 * num_steps / workers, "sent_bytes": sent_bytes,
        "received_bytes": sent_bytes,
        "worker_wait_seconds": [0.1 * num_steps, *[0.0] * (workers - 1)], "servers": list(loads),
    }  # fmt: skip
