"""The simulation of clusters that are larger than what was measured: how long a training step takes
with each strategy, on so many workers and such a network.

A simulation has constants (`constants`, `machines`), links and exchanges over them (`network`),
strategies as a user names them (`choices`) on a number of workers (`cases`), and the seconds of
their steps (`strategies`). `simulate` makes a table of them (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from bsweep.analysis.prediction.ways import PARAMETER_BYTES
from bsweep.analysis.simulation import constants as constants_of
from bsweep.analysis.simulation import machines, rows
from bsweep.analysis.simulation.cases import Case
from bsweep.analysis.simulation.choices import Choice, choices_of
from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.simulation.network import FREE, Network, parse_network
from bsweep.analysis.simulation.rows import Simulation
from bsweep.analysis.study.folder import load
from bsweep.analysis.study.frames import Study
from bsweep.config.values import check_above_zero, counts
from bsweep.core.words import counted, listed

__all__ = ["Constants", "Simulation", "constant_warnings", "links_of", "simulate"]

STRATEGIES = "horovod,parameter_server,diloco"
DOUBLINGS = (1, 2, 4, 8, 16, 32, 64)


def simulate(
    study: Study | str | Path | None = None,
    *,
    workers: int | str | Sequence[int] = DOUBLINGS,
    network: str | Sequence[str] | None = None,
    strategies: str | Sequence[str] = STRATEGIES,
    local_batch: int | None = None,
    global_batch: int | None = None,
    measured_network: str | None = None,
    parameters: float | None = None,
    example_bytes: float | None = None,
    probe: str | Path | None = None,
    machine: str | None = None,
    flops_per_example: float | None = None,
    speeds: Sequence[float] = (),
    memories: Sequence[float] = (),
    price_per_worker_hour: float | None = None,
    where: Mapping[str, str] | None = None,
) -> Simulation:
    """Simulate training steps on clusters that are larger than what was measured.

    Args:
        study: A study or its folder, from whose records the constants come.
        workers: The numbers of workers, or a text such as `1,2,4` or `1..4096`.
        network: The links between them, such as `25gbit,10us`; see `parse_network`. `measured`:
            links as the study's own exchanges had them. Several are compared. None: `measured`, or
            with a machine what its vendor states.
        strategies: Names of strategies, joined by commas or as a list; see `choices_of`.
        local_batch: The examples of a worker's pass; None: the most frequent in the study.
        global_batch: The examples of a step of all workers, in place of a local batch.
        measured_network: The links on which the study was measured. What its exchanges took beyond
            them is then the hosts', and is added to any `network`.
        parameters: The number of the model's parameters, if no study says it.
        example_bytes: What the messages of an example take between workers that split the model,
            forward and backward, if no study says it.
        probe: A file of `bsweep probe`, in place of a study.
        machine: A machine of `conf/machines.yaml` or a YAML file, in place of a study.
        flops_per_example: What a training step computes for an example, needed with a machine.
        speeds: Relative speeds of uneven workers; they repeat if there are more workers.
        memories: The memory of each worker in GB, for allocations that choose batches by it; they
            repeat, too. The local batch is what the worker with the least memory holds. Empty: that
            of the machine, or the largest batches of the probe.
        price_per_worker_hour: The price of an hour of one worker, in any currency.
        where: Columns of the study's runs, and the value to select in each.

    Returns:
        The seconds of a step for each strategy and number of workers, and notes.

    Raises:
        ValueError: If a word is unknown, constants are missing, or a strategy suits none of the
            numbers of workers. The message says what to do.
        FileNotFoundError: If there is no such folder of a study.
    """
    for option, value, example in (
        ("parameters", parameters, "11e6"), ("flops-per-example", flops_per_example, "12e9"),
        ("local-batch", local_batch, "64"), ("price-per-worker-hour", price_per_worker_hour, "2.5"),
        ("global-batch", global_batch, "1024"), ("example-bytes", example_bytes, "1e4"),
        *(("speeds", speed, "0.5") for speed in speeds),
        *(("memories", memory, "80") for memory in memories),
    ):  # fmt: skip
        check_above_zero(option, value, example)
    study = load(study, mix=True) if isinstance(study, str | Path) else study
    vendor = None if machine is None else machines.machine_of(machine)
    constants = _source(study, where, parameters, probe, vendor, flops_per_example, local_batch)
    constants = replace(
        constants,
        example_bytes=constants.example_bytes if example_bytes is None else example_bytes,
        speeds=tuple(speeds) or constants.speeds,
        memories=tuple(memories) or constants.memories,
        largest_batches=() if memories else constants.largest_batches,
    )
    links = _links(network, measured_network, constants, vendor, study)
    choices = choices_of(strategies, study.runs if study else pd.DataFrame())
    batch = local_batch or constants.local_batch
    simulated, left_out = _simulated(constants, choices, workers, batch, global_batch, links)
    measured = rows.measured_rows(constants, choices, simulated)
    table = pd.DataFrame([*simulated, *measured])
    table = rows.compared(table, constants, global_batch or batch, price_per_worker_hour)
    notes = [*_notes(constants, choices, links.values(), table), *left_out, *rows.knees(table)]
    return Simulation(table, (*notes, *machines.notes(vendor, constants, choices, table)))


def _links(
    network: str | Sequence[str] | None, measured_network: str | None, constants: Constants,
    vendor: machines.Machine | None, study: Study | None,
) -> dict[str, Network]:  # fmt: skip
    """Return the links of each network, by the words for it.

    Raises:
        ValueError: If a word is unknown, or there is no network that the links on which the study
            was measured tell of.
    """
    if network is None:
        network = (vendor.link if vendor else "") or "measured"
    networks = [network] if isinstance(network, str) else network
    if measured_network and (constants.link is None or {*networks} == {"measured"}):
        raise ValueError(
            f"--measured-network {measured_network} tells nothing here: it is for a study whose "
            "exchanges were timed, with another network to simulate, as in --network 25gbit,10us."
        )
    name = study.name if study else "the constants' source"
    return {
        text: machines.within(links_of(constants, text, name, measured_network), vendor)
        for text in networks
    }


def _simulated(
    constants: Constants, choices: Sequence[Choice], workers: int | str | Sequence[int],
    local_batch: int, global_batch: int | None, links: Mapping[str, Network],
) -> tuple[list[dict[str, Any]], list[str]]:  # fmt: skip
    """Return a row for each strategy on each number of workers that bsweep can train so, with each
    of the links, and sentences about the numbers that are left out.

    Raises:
        ValueError: If no number of workers is left for a strategy, or it cannot be simulated.
    """
    simulated: list[dict[str, Any]] = []
    notes: list[str] = []
    worker_counts = sorted(set(counts("--workers", workers)))
    for choice in choices:
        refused = {}
        for count in worker_counts:
            case = Case(constants, Network(FREE), choice, count, local_batch, divides=False)
            try:
                case = _checked(case.with_replicas(), global_batch)
                simulated += [
                    {"network": text, **rows.row_of(replace(case, network=network))}
                    for text, network in links.items()
                ]
            except ValueError as error:
                refused[count] = str(error)
        problem = next(iter(refused.values()), "")
        if len(refused) == len(worker_counts):
            raise ValueError(f"--strategies {choice.name}: {problem}")
        if refused:
            several = counted(listed([*refused]), "worker")
            notes.append(f"{choice.name}: not on {several}: {problem}")
    return simulated, notes


def _checked(case: Case, global_batch: int | None) -> Case:
    """Return a case whose workers divide the global batch, if there is one.

    Raises:
        ValueError: If workers cannot train so.
    """
    if global_batch:
        groups = case.num_groups
        is_uneven = global_batch % groups and not case.choice.allocation.shares_batches
        if is_uneven or global_batch < groups:
            raise ValueError(
                f"--global-batch {global_batch} cannot be divided by {groups}. Choose a multiple, "
                f"such as {max(1, global_batch // groups) * groups}."
            )
        case = replace(case, local_batch=global_batch / groups, divides=True)
    if case.problem:
        raise ValueError(case.problem)
    _ = case.batches  # which memories may not hold
    return case


def _source(
    study: Study | None, where: Mapping[str, str] | None, parameters: float | None,
    probe: str | Path | None, vendor: machines.Machine | None, flops_per_example: float | None,
    local_batch: int | None,
) -> Constants:  # fmt: skip
    """Return the constants of the one source that was given."""
    sources = {"a study": study, "--probe": probe, "--machine": vendor}
    given = [name for name, source in sources.items() if source is not None]
    if len(given) != 1:
        raise ValueError(
            f"constants come from one source, but {' and '.join(given) or 'none'} was given: use "
            "a study's folder, --probe FILE, or --machine NAME."
        )
    if (flops_per_example is None) != (vendor is None):
        raise ValueError(
            "--machine and --flops-per-example, which is what a training step computes for an "
            "example, belong together: give both, as in --machine h100 --flops-per-example 12e9, "
            "or neither. For each token of a text it is 6 times the parameters."
        )
    if study is not None:
        return constants_of.of_study(study, where, parameters)
    if parameters is None:
        raise ValueError(f"{given[0]} does not say how large the model is: give --parameters 11e6.")
    num_bytes = parameters * PARAMETER_BYTES
    if probe is not None:
        return constants_of.of_probe(probe, num_bytes)
    assert vendor
    assert flops_per_example
    return machines.of_machine(vendor, flops_per_example, num_bytes, local_batch or 32)


def links_of(
    constants: Constants, network: str, name: str, measured_network: str | None = None
) -> Network:
    """Return the links that are simulated, with what hosts need beside them.

    Args:
        constants: The constants.
        network: Words as `parse_network` takes them, or `measured`.
        name: The name of the source of the constants, for messages.
        measured_network: The words for the links on which the study was measured. What its
            exchanges took beyond these links counts as time of the hosts. None: hosts take no time.

    Returns:
        The links.

    Raises:
        ValueError: If a word is unknown, or nothing was measured.
    """
    measured = constants.link
    if network == "measured":
        if measured is None:
            raise ValueError(
                f"{name} has no exchange that was timed: describe the links with --network, as in "
                "--network 25gbit,10us."
            )
        return Network(measured)
    links = parse_network(network)
    if measured is None or measured_network is None:
        return links
    wire = parse_network(measured_network, "--measured-network").link
    return replace(
        links,
        message_seconds=max(0.0, measured.latency_seconds - wire.latency_seconds),
        byte_seconds=max(0.0, 1 / measured.bytes_per_second - 1 / wire.bytes_per_second),
    )


def _notes(
    constants: Constants, choices: Sequence[Choice], networks: Iterable[Network],
    table: pd.DataFrame,
) -> Iterator[str]:  # fmt: skip
    has_measured = table["kind"].eq(rows.MEASURED).any()
    rows_simulated = "All rows but the measured ones" if has_measured else "All rows"
    yield f"Computing: {constants.source}. {rows_simulated} are simulated."
    if constants.link is None:
        yield "No exchange was measured: links are as described, and hosts cost nothing."
    for warning in constant_warnings(constants, choices, networks):
        yield warning[0].upper() + warning[1:]
    codecs = [choice.config.compression for choice in choices if choice.config.compression.builds]
    names = dict.fromkeys(str(codec.name) for codec in codecs)
    if untimed := [name for name in names if name not in constants.codec_seconds]:
        yield f"The seconds of {listed(untimed)} are not known: they take no time here."


def constant_warnings(
    constants: Constants, choices: Sequence[Choice], networks: Iterable[Network]
) -> Iterator[str]:
    """Yield a sentence for each fact of the model or the links that a simulation needs, but nobody
    measured or gave, and what is simulated in its place.

    Args:
        constants: The constants.
        choices: The strategies.
        networks: The links.
    """
    strategies = [choice.strategy for choice in choices]
    cuts_model = any(card.can.cuts_model for card in strategies)
    sends_activations = cuts_model or any(card.can.splits_layers for card in strategies)
    if latencies := dict.fromkeys(text for network in networks for text in network.published):
        yield (
            "latencies that --network does not give are published, not measured: "
            f"{'; '.join(latencies)}."
        )
    if not constants.layer_shares and any(getattr(card, "holds_layers", 0) for card in strategies):
        yield (
            "the sizes of the layers are not known: servers that hold whole layers are taken to "
            "hold equal parts of the model."
        )
    if cuts_model and not constants.pieces:
        yield "the pieces of the model are not known: it is cut into any number of stages."
    if sends_activations and not constants.example_bytes:
        yield (
            "the size of activations is not known: what tensor and pipeline workers send of them "
            "takes no time here."
        )
