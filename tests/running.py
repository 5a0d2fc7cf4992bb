"""What the tests of real runs share: composing a configuration, and typing a command."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from bsweep.config import RunConfig, conf_dir, parse

TINY = ("data=synthetic", "data.num_train=90", "data.num_test=20", "data.shape=[3,8,8]", "data.crop_padding=1")
"""A data set whose last step is uneven for most batches."""


def compose(*overrides: str) -> RunConfig:
    """The configuration of one point, as the command line would compose it."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = hydra_compose("config", list(overrides))
    container = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(container, dict)
    return parse({str(key): value for key, value in container.items()})


def bsweep(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, prefix: tuple[str, ...] = (), timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a person would, from a folder of its own."""
    command = [*prefix, tool("bsweep"), *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def imported_first(folder: Path) -> dict[str, str]:
    """Variables with which processes import a folder's modules first; Python starts with its `sitecustomize.py`."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def write_text(path: Path, num_bytes: int, seed: int = 0) -> Path:
    """A text of a few words in random order, that a language model can learn."""
    draw = random.Random(seed)
    words = ("the ", "batch ", "grows ", "and ", "all ", "workers ", "wait.\n")
    path.write_text("".join(draw.choice(words) for _ in range(num_bytes))[:num_bytes])
    return path


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
