"""The checks before training: enough GPUs on each host, and the same precision and data on all
workers.

Workers that differ would wait for one another for ever over different backends, or train on
different data. The module also collects the workers' hardware and software for the records.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bsweep.core.gpus import driver_version
from bsweep.core.ranks import World
from bsweep.core.words import counted
from bsweep.data.dataset import Dataset
from bsweep.numerics.precision import are_rounded

Peer = Mapping[str, Any]


def gpu_facts(world: World, gpus: int) -> dict[str, Any]:
    """Return a dictionary with this worker's host, its rank on that host, the number of GPUs that
    it sees, and its `CUDA_VISIBLE_DEVICES`.

    The workers compare these values before any worker takes a GPU.

    Args:
        world: This worker's rank and host.
        gpus: The number of GPUs that this worker sees on its host.
    """
    return {
        "host": platform.node(),
        "local_rank": world.local_rank,
        "gpus": gpus,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def refuse_missing_gpus(peers: Sequence[Peer], device: str) -> None:
    """Raise ValueError if a host has fewer GPUs than workers, unless all workers compute on CPUs.

    If no host has any GPU, all workers compute on CPUs, unless `device=cuda` asks for GPUs.

    Raises:
        ValueError: If a host has too few GPUs. It names every such host and is the same on all
            workers.
    """
    if device != "cuda" and not any(peer["gpus"] for peer in peers):
        return
    last_of_hosts = {
        peer["host"]: peer for peer in sorted(peers, key=lambda peer: peer["local_rank"])
    }
    lacking = [_lack(peer) for peer in last_of_hosts.values() if peer["local_rank"] >= peer["gpus"]]
    if lacking:
        raise ValueError(
            f"{', '.join(lacking)}, but NCCL takes one worker for each GPU: use fewer workers, "
            "give a host no more slots than GPUs (launch.hosts, or horovodrun -H; parameter "
            "servers need no GPU), find out with nvidia-smi why a host shows fewer GPUs, or set "
            "device=cpu."
        )


def _lack(peer: Peer) -> str:
    gpus, workers, visible = peer["gpus"], peer["local_rank"] + 1, peer["cuda_visible_devices"]
    shown = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    has = counted(gpus, "GPU") if gpus else "no GPU"
    return f"{peer['host']} has {has}{shown} for {counted(workers, 'worker')}"


def equipment(device: torch.device, precision: str) -> dict[str, Any]:
    """Return a dictionary of facts about this worker's hardware and precision, such as its host,
    its device and the versions of GPU driver and NCCL.

    The run records them.
    """
    on_gpu = device.type == "cuda"
    has_nccl = on_gpu and torch.distributed.is_nccl_available()
    return {
        "host": platform.node(),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "precision": precision,
        "tf32": are_rounded(device),
        "driver": driver_version() if on_gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def data_facts(dataset: Dataset) -> dict[str, Any]:
    """Return the number of classes, the number of training examples and a hash of some training
    labels of a data set.

    Workers compare these facts, because hosts may have different files under the same path.
    """
    labels = dataset.train.labels
    some = labels[:: max(1, len(labels) // 1000)].cpu().numpy().tobytes()
    return {
        "num_classes": dataset.num_classes,
        "num_train": len(labels),
        "labels": hashlib.sha256(some).hexdigest(),
    }


def refuse_unequal(peers: Sequence[Peer]) -> None:
    """Raise ValueError if a worker's precision or the facts about its data differ from those of the
    first worker.

    Raises:
        ValueError: If a worker differs. The error is the same on all workers.
    """
    first = peers[0]
    for rank, peer in enumerate(peers):
        pair = f"rank {rank} on {peer['host']}", f"rank 0 on {first['host']}"
        if peer["precision"] != first["precision"]:
            raise ValueError(
                f"precision={peer['precision']} suits {pair[0]} ({peer['device']}), but "
                f"precision={first['precision']} suits {pair[1]} ({first['device']}): set the same "
                "precision for all workers, such as precision=fp32."
            )
        if any(peer[name] != first[name] for name in ("num_classes", "num_train", "labels")):
            raise ValueError(
                f"rank {rank} has different data from rank 0. It has {peer['num_train']} training "
                f"examples and {peer['num_classes']} classes (or tokens of a vocabulary), and rank "
                f"0 has {first['num_train']} and {first['num_classes']}. If these numbers are "
                "equal, the labels differ. Give all hosts the same files."
            )


def on_record(peers: Sequence[Peer]) -> dict[str, Any]:
    """Return the fields of a start record that name the workers' hardware and software.

    `device` names each kind of device once, in the order of the workers, such as `Tesla T4, NVIDIA
    A100`. `gpu_software` is None if the workers use CPUs. `workers` has the facts about each
    worker, without those about its data, which are equal for all.
    """
    fields = ("host", "device", "precision", "tf32", "driver", "nccl", "cuda_visible_devices")
    software = dict.fromkeys(
        f"driver {peer['driver']}, NCCL {peer['nccl']}" for peer in peers if peer["nccl"]
    )
    return {
        "device": ", ".join(dict.fromkeys(peer["device"] for peer in peers)),
        "gpu_software": "; ".join(software) or None,
        "workers": tuple({name: peer[name] for name in fields} for peer in peers),
    }
