"""A program that prints facts about its machine, such as versions and GPUs; bsweep runs it to check
the other hosts that points name.

`python -m bsweep.launch.machine_facts` reads a request as one line of JSON from its standard input
and answers with one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from bsweep import data
from bsweep.config import user_code
from bsweep.config.groups import DataConfig, ModelConfig
from bsweep.config.models import LibraryConfig
from bsweep.config.saved import read_config
from bsweep.core import gpus, network, torch_versions
from bsweep.core.checksums import sha256_of
from bsweep.core.ranks import num_cores
from bsweep.launch.checks import check_packages
from bsweep.runlog.files import RunPaths

PACKAGES = ("bsweep", "torch", "torchvision", "horovod")
EXTRAS = ("safetensors", "timm", "tokenizers")
_SHARED = Path("/dev/shm")
_MOST_FILES = 5_000
_SAMPLED_FILES = 20
_SAMPLED_BYTES = 65_536


def facts(
    *,
    point: str | None = None,
    device: str = "auto",
    hosts: Sequence[str] = (),
    is_thorough: bool = False,
) -> dict[str, Any]:
    """Return a dictionary of facts about this machine, such as its package versions, cores, GPUs
    and network interfaces.

    If this machine's GPUs or the point's files could not be examined, `problems` holds the reasons.

    Args:
        point: The absolute path of a file with a point's configuration, within the study's folder.
        device: The value of the key `device`.
        hosts: Names to resolve.
        is_thorough: Also import torch and Horovod, which takes seconds.
    """
    problems: list[str] = []
    families = {host: _families(host) for host in hosts}
    return {
        "name": platform.node(),
        **machine(PACKAGES),
        "code": code_digest(),
        "are_tested": torch_versions.are_tested(),
        "missing_extras": [name for name in EXTRAS if torch_versions.version(name) is None],
        "torch_problems": torch_versions.problems() if is_thorough else [],
        "gpus": _gpus(device, problems),
        "driver": gpus.driver_version(),
        "interfaces": network.interfaces(),
        "unresolved": [host for host, known in families.items() if not known],
        "unresolved_name": network.unresolved_name(),
        "without_ipv4": [host for host, known in families.items() if known == {socket.AF_INET6}],
        "horovod_build": _horovod_build() if is_thorough else None,
        "free_bytes": shutil.disk_usage(_existing(Path(point or "."))).free,
        "free_temporary_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        "free_shared_bytes": shutil.disk_usage(_SHARED).free if _SHARED.exists() else None,
        **_facts_of_point(Path(point) if point else None, problems),
        "problems": problems,
    }


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Return the facts about this machine that the records of runs have, too, with the versions of
    some packages.
    """
    return {
        "python": platform.python_version(),
        "versions": {package: torch_versions.version(package) for package in packages},
        "cores": num_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def code_digest() -> str:
    """Return a digest of bsweep's source code, to tell apart two copies that have the same version
    number.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


def fingerprint(card: DataConfig) -> str | None:
    """Return a digest of those files of a data set that have no known checksum, by which hosts
    compare their copies; return None if there are no such files.

    For each file or folder that the card names, the digest covers the names and sizes of up to
    5,000 files, and the first and last 64 KiB of fewer than 40 of them.
    """
    paths = [Path(str(getattr(card, key))).expanduser() for key in card.files]
    if not paths:
        return None
    digest = hashlib.sha256()
    for path in paths:
        files = list(islice(_files(path), _MOST_FILES))
        for file, size in files:
            digest.update(f"{file.relative_to(path.parent)} {size}\n".encode())
        for file, size in files[:: max(1, len(files) // _SAMPLED_FILES)]:
            with file.open("rb") as opened:
                digest.update(opened.read(_SAMPLED_BYTES))
                opened.seek(max(0, size - _SAMPLED_BYTES))
                digest.update(opened.read(_SAMPLED_BYTES))
    return digest.hexdigest()


def weights_digest(card: ModelConfig) -> str | None:
    """Return the hash of a model's file of pretrained weights; an empty text if the file cannot be
    read here; None if the card names no file.
    """
    if not isinstance(card, LibraryConfig) or card.weights is None:
        return None
    try:
        return sha256_of(Path(card.weights))
    except OSError:
        return ""


def _files(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield the path and the size of each file in the folder `path`, in a fixed order. If `path` is
    a file, yield its own path and size.
    """
    if path.is_file():
        yield path, path.stat().st_size
    for folder, names, files in os.walk(path):
        names.sort()
        for file in (Path(folder, name) for name in sorted(files)):
            yield file, file.stat().st_size


def _facts_of_point(path: Path | None, problems: list[str]) -> dict[str, Any]:
    """Return facts about a point as this machine reads them: the hash of the point's configuration
    file, that of its pretrained weights, and facts about its data. `hosts_check` compares these
    values between hosts; those that are unknown are None.
    """
    known: dict[str, Any] = dict.fromkeys(("point", "data", "weights"))
    if not path:
        return known
    try:
        digest = sha256_of(path)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".preflight."):
            known["point"] = digest
    except OSError as error:
        problems.append(f"{path.parent}: {error.strerror}")
        return known
    try:
        config = read_config(path)
        known["weights"] = weights_digest(config.model)
        user_code.load_saved(config, RunPaths(path.parent).own)  # it may make the data
        check_packages(config)
        if not config.program.is_own:
            card = config.data
            known["data"] = {**asdict(data.prepare(card)), "files": fingerprint(card)}
        elif config.program.with_fingerprints() != config.program:
            problems.append("the files of the program differ: give all hosts the same files")
    except (OSError, ValueError) as error:
        problems.append(str(error))
    return known


def _gpus(device: str, problems: list[str]) -> int:
    try:
        return gpus.num_gpus(device)
    except ValueError as error:
        problems.append(str(error))
        return 0


def _horovod_build() -> str | None:
    """Return the parts with which Horovod was built, such as `Gloo, NCCL`; None if Horovod or a
    module that it needs is missing.

    If the import fails otherwise, return "broken: " and the error.
    """
    try:
        import horovod.torch as hvd
    except Exception as error:  # a build for another torch may fail with any error
        return None if isinstance(error, ModuleNotFoundError) else f"broken: {error}"
    parts = ("Gloo", "MPI", "NCCL", "CUDA")
    return ", ".join(name for name in parts if getattr(hvd, f"{name.lower()}_built")())


def _families(host: str) -> set[int]:
    """Return the address families, IPv4 and IPv6, in which a name has an address; none if it is
    unknown here.
    """
    try:
        return {info[0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def main() -> None:
    print(json.dumps(facts(**json.loads(sys.stdin.readline()))), flush=True)


if __name__ == "__main__":
    main()
