"""Machines that nobody here has measured, by what vendors publish of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from bsweep.analysis.simulation.cases import Case
from bsweep.analysis.simulation.choices import Choice
from bsweep.analysis.simulation.constants import NORMAL, NUM_DRAWS, Constants, Spread
from bsweep.analysis.simulation.network import FREE, Network, parse_network
from bsweep.config.parsing import conf_dir
from bsweep.config.values import Count, Positive, did_you_mean
from bsweep.core.words import listed

_UNSURE = 0.3  # of the logarithm of the share of a machine's speed that a model reaches
_SPREAD = Spread(0.03)  # of steps, on a machine that nobody has measured


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine as its vendor describes it, and the share of its speed that models reach.

    `link` is that of a node to others, and `inner` that of a worker within its node, in the words
    of a network. `link` is empty if nothing is known of it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    tflops: Positive
    reached: Annotated[float, Field(gt=0, le=1)]
    memory_gb: Positive
    workers: Count
    inner: str
    source: str
    link: str = ""


def machine_of(name: str) -> Machine:
    """Return a machine of `conf/machines.yaml`, or of a file of the user with the same keys.

    Raises:
        ValueError: If there is no such machine, or a key is wrong.
    """
    shipped: Mapping[str, Any] = yaml.safe_load((conf_dir() / "machines.yaml").read_text())
    path = Path(name)
    if name not in shipped and path.suffix not in (".yaml", ".yml"):
        raise ValueError(
            f"--machine {name}: no such machine.{did_you_mean(name, [*shipped])} Known: "
            f"{', '.join(shipped)}; or give a YAML file with its keys, see docs/simulate.md."
        )
    try:
        facts = shipped[name] if name in shipped else yaml.safe_load(path.read_bytes())
        checked: Machine = TypeAdapter(Machine).validate_python(facts)
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"--machine {name}: the file cannot be read ({error}).") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"--machine {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}. The keys are "
            f"{', '.join(shipped['h100'])}, see docs/simulate.md."
        ) from None
    for text in filter(None, (checked.inner, checked.link)):
        parse_network(text, f"--machine {name}:")
    return checked


def of_machine(
    machine: Machine, flops_per_example: float, parameter_bytes: float, local_batch: int
) -> Constants:
    """Return the constants of a machine by what is published of it.

    Args:
        machine: The machine.
        flops_per_example: What a training step computes for an example, in floating-point
            operations.
        parameter_bytes: The bytes of the model's parameters.
        local_batch: The examples of a worker's pass.
    """
    reached = machine.reached * np.exp(_UNSURE * np.random.default_rng(3).permutation(NORMAL))
    return Constants(
        pass_seconds=np.full(NUM_DRAWS, 1e-3),
        example_seconds=flops_per_example / (machine.tflops * 1e12 * np.clip(reached, 0.01, 1)),
        parameter_bytes=parameter_bytes,
        local_batch=local_batch,
        source=f"{100 * machine.reached:.0f} % of what is published, not measured "
        f"({machine.source})",
        spread=_SPREAD,
        memories=(machine.memory_gb,),
        is_gpu=True,
        precision="bf16",  # whose speed is published
    )


def notes(
    machine: Machine | None, constants: Constants, choices: Sequence[Choice], cells: pd.DataFrame
) -> Iterator[str]:
    """Yield a sentence if the links are those that the vendor states, and one for each strategy
    with which the parameters, the gradients, the optimizer's state and the strategy's copies of a
    worker take more than its memory; none without a machine.

    Args:
        machine: The machine, or None.
        constants: The constants, with the bytes of the model's parameters.
        choices: The strategies.
        cells: The table `Simulation.cells`, which has the numbers of workers that suit each.
    """
    if machine is None:
        return
    if machine.link and cells["network"].eq(machine.link).any():
        yield f"Links: {machine.link} a node, as published, not measured."
    for choice in choices:
        counts = sorted(set(cells.loc[cells["strategy"] == choice.name, "num_workers"]))
        needs = {
            count: Case(constants, Network(FREE), choice, count, 1).with_replicas().held_bytes / 1e9
            for count in counts
        }
        full = {count: need for count, need in needs.items() if need > machine.memory_gb}
        if full:
            yield (
                f"{choice.name}: on {listed([*full])} workers the parameters, the gradients and "
                f"the state of optimizer={choice.config.optimizer.name} take up to "
                f"{max(full.values()):.0f} GB of a worker's {machine.memory_gb:g} GB, before any "
                "activation. Such steps cannot be made."
            )


def within(network: Network, machine: Machine | None) -> Network:
    """Return a network whose nodes are such machines, unless it already says what a node has, or
    there is no machine.
    """
    if machine is None or network.per_node > 1 or machine.workers == 1:
        return network
    return replace(network, per_node=machine.workers, inner=parse_network(machine.inner).link)
