"""Functions that write the configuration of a run to a file, and read it again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import yaml

from bsweep.config.parsing import validate
from bsweep.config.run import RunConfig
from bsweep.config.values import ConfigError
from bsweep.core.whole_files import write_whole


def save_config(config: RunConfig, path: Path) -> None:
    """Write the configuration of a run to a YAML file that `read_config` can read."""
    write_whole(
        path, yaml.safe_dump(json.loads(json.dumps(asdict(config))), sort_keys=False).encode()
    )


def read_config(path: Path) -> RunConfig:
    """Return the configuration of a run from a file that `save_config` wrote. Its values are not
    checked for contradictions again.

    Raises:
        ConfigError: If the file cannot be read, or a value has the wrong type or range.
    """
    try:
        saved = yaml.load(path.read_bytes(), _LOADER)
        if not isinstance(saved, dict):
            raise ValueError("no mapping of keys to values")
        return validate(saved)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}.") from None
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: for example a date in month 13
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path}: the file holds no configuration ({why}).") from None


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast
