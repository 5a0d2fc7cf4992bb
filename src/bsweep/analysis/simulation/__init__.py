"""The simulation of clusters that are larger than what was measured: how long a training step takes
with each strategy, on so many workers and such a network.

A simulation has constants (`constants`, `machines`), links (`network`), exchanges as their messages
(`collectives`), and steps as programs or graphs (`strategies`, `passes`, `servers`), whose events
SimPy orders (`engine`). `simulate` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd

from bsweep.analysis.loaded import Study
from bsweep.analysis.loading import load
from bsweep.analysis.simulation import constants as constants_of
from bsweep.analysis.simulation import machines, result, uneven
from bsweep.analysis.simulation.constants import Constants
from bsweep.analysis.simulation.network import FREE, Network, parse_network
from bsweep.analysis.simulation.result import Simulation
from bsweep.analysis.simulation.strategies import Case, outcome, with_replicas
from bsweep.analysis.simulation.words import Way, way_of, ways_of
from bsweep.config.values import check_above_zero, counts
from bsweep.core.words import counted, listed

__all__ = [
    "Constants",
    "Simulation",
    "links_of",
    "not_known",
    "simulate",
    "simulate_from",
]

STRATEGIES = "horovod,parameter_server,diloco"
_MOST_WORKERS = 65_536
_FEW_WORKERS = 8  # settings that fit no number up to this contradict each other


def simulate(
    study: Study | str | Path | None = None,
    *,
    workers: int | str | Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
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
    num_steps: int = 100,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Simulate training steps on clusters that are larger than what was measured.

    Args:
        study: A study or its folder, from whose records the constants come.
        workers: The numbers of workers, or a text such as `1,2,4` or `1..4096`.
        network: The links between them, such as `25gbit,10us`; see `parse_network`. `measured`:
            links as the study's own exchanges had them. Several are compared. None: `measured`, or
            with a machine what its vendor states.
        strategies: Names of strategies, joined by commas or as a list; see `ways_of`.
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
        num_steps: The steps to simulate.
        seed: The seed of the random numbers.
        progress: A function that is told what is simulated next.

    Returns:
        The seconds of a step for each strategy and number of workers, and notes.

    Raises:
        ValueError: If a word is unknown, constants are missing, or workers have less than one
            example each. The message says what to do.
        FileNotFoundError: If there is no such folder of a study.
    """
    known = load(study, mix=True) if isinstance(study, str | Path) else study
    found, of = _constants(known, where, parameters, probe, machine, flops_per_example, local_batch)
    found = _adjusted(found, example_bytes, speeds, memories, measured_network)
    name, runs = (known.name, known.runs) if known else ("the constants' source", pd.DataFrame())
    network = (of.link if of else "") or "measured" if network is None else network
    networks = [network] if isinstance(network, str) else network
    _check_networks(networks, measured_network, found)
    links = {one: machines.within(links_of(found, one, name), of) for one in networks}
    ways = ways_of(",".join([strategies] if isinstance(strategies, str) else strategies), runs)
    simulation = simulate_from(
        found, links, ways, counts("--workers", workers), local_batch=local_batch,
        global_batch=global_batch, price_per_worker_hour=price_per_worker_hour,
        num_steps=num_steps, seed=seed, progress=progress,
    )  # fmt: skip
    if of is None:
        return simulation
    of_machine = machines.notes(of, found, ways, simulation.cells)
    return replace(simulation, notes=(*simulation.notes, *of_machine))


def _check_networks(
    networks: Sequence[str], measured_network: str | None, constants: Constants
) -> None:
    if not networks:
        raise ValueError("network [] names none: give some, as in network='25gbit,10us'.")
    if measured_network and (constants.network is None or {*networks} == {"measured"}):
        raise ValueError(
            f"--measured-network {measured_network} tells nothing here: it is for a study whose "
            "exchanges were timed, with another network to simulate, as in --network 25gbit,10us."
        )


def _adjusted(
    constants: Constants,
    example_bytes: float | None,
    speeds: Sequence[float],
    memories: Sequence[float],
    measured_network: str | None,
) -> Constants:
    """Return constants with what a user knows better; see `simulate`."""
    check_above_zero("example-bytes", example_bytes or None, "4e6")
    for speed in speeds:
        check_above_zero("speeds", speed, 0.5)
    for memory in memories:
        check_above_zero("memories", memory, 80)
    if example_bytes is not None:
        constants = replace(constants, example_bytes=example_bytes)
    if speeds:
        constants = replace(constants, speeds=tuple(speeds))
    if memories:
        constants = replace(constants, memories=tuple(memories), largest_batches=())
    return constants_of.with_measured(constants, measured_network)


def simulate_from(
    constants: Constants,
    networks: Mapping[str, Network],
    ways: Sequence[Way],
    workers: Sequence[int],
    *,
    local_batch: float | None = None,
    global_batch: int | None = None,
    price_per_worker_hour: float | None = None,
    num_steps: int = 100,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Simulate training steps from constants and links that are known; see `simulate`.

    Args:
        constants: The constants.
        networks: The links, by the words for them.
        ways: The ways to exchange.
        workers: The numbers of workers.
        local_batch: See `simulate`.
        global_batch: See `simulate`.
        price_per_worker_hour: See `simulate`.
        num_steps: See `simulate`.
        seed: See `simulate`.
        progress: See `simulate`.

    Returns:
        The seconds of a step for each way and number of workers, and notes.

    Raises:
        ValueError: If workers have less than one example each, or a way cannot be simulated.
    """
    _check_counts(workers, num_steps)
    check_above_zero("local-batch", local_batch, 64)
    check_above_zero("global-batch", global_batch, 1024)
    check_above_zero("price-per-worker-hour", price_per_worker_hour, 2.5)
    local = local_batch or constants.local_batch
    cells, left_out = _cells(constants, ways, sorted(set(workers)), local, global_batch)
    rows = []
    for name, (way, count, batch) in product(networks, cells):
        progress(f"{way.name} on {count}")
        case = Case(
            constants, networks[name], way, count, batch, num_steps, seed,
            asked_batch=None if global_batch else local,
        )  # fmt: skip
        try:
            steps = outcome(way.card, case)
        except ValueError as error:
            raise ValueError(f"--strategies {way.name}: {error}") from None
        rows.append({"network": name, **result.row_of(case, steps)})
    rows += result.measured_rows(constants, ways, pd.DataFrame(rows))
    lone = _lone(constants, global_batch or local, num_steps, seed)
    alone = result.lone_rates(lone, outcome(lone.way.card, lone))
    table = result.compared(rows, alone, price_per_worker_hour)
    has_measured = bool(table["kind"].eq(result.MEASURED).any())
    first = _notes(constants, ways, networks.values(), has_measured)
    notes = (*first, *left_out, *result.knees(table))
    return Simulation(table, notes)


def _lone(constants: Constants, batch: float, num_steps: int, seed: int) -> Case:
    """Return the case of one worker alone, with which the others are compared."""
    return Case(
        replace(constants, speeds=(1.0,)), Network(FREE), way_of("single", pd.DataFrame()), 1,
        batch, num_steps, seed,
    )  # fmt: skip


def _cells(
    constants: Constants,
    ways: Sequence[Way],
    counts: Sequence[int],
    local: float,
    global_batch: int | None,
) -> tuple[list[tuple[Way, int, float]], list[str]]:
    """Return each way on each number of workers that bsweep can train so, with a worker's batch,
    and sentences about the numbers that are left out.

    Raises:
        ValueError: If a way's settings contradict each other on any number of workers, or no number
            of workers is left for any way.
    """
    cells, notes, problems = [], [], {}
    for way in ways:
        refused = {}
        for count in counts:
            own = with_replicas(way, count, constants)
            batch, problem = _batch(own, count, local, global_batch, constants)
            if problem:
                refused[count] = problem
            else:
                cells.append((own, count, batch))
        if not refused:
            continue
        first = next(iter(refused.values()))
        problems[way.name] = first
        if len(refused) == len(counts) and all(
            _batch(with_replicas(way, count, constants), count, local, None, constants)[1]
            for count in range(1, _FEW_WORKERS + 1)
        ):
            raise ValueError(f"--strategies {way.name}: {first}")
        notes.append(f"{way.name}: not on {_workers([*refused])}: {first}")
    if not cells:
        raise ValueError("\n".join(f"--strategies {name}: {of}" for name, of in problems.items()))
    return cells, notes


def _workers(counts: Sequence[int]) -> str:
    return counted(listed(counts) if len(counts) > 1 else counts[0], "worker")


def _check_counts(workers: Sequence[int], num_steps: int) -> None:
    if not workers or min(workers) < 1 or max(workers) > _MOST_WORKERS:
        raise ValueError(
            f"--workers {', '.join(map(str, workers))}: give numbers from 1 to {_MOST_WORKERS:,}, "
            "such as 1,2,4,8 or 1..4096."
        )
    if num_steps < constants_of.NUM_DRAWS:
        raise ValueError(f"--steps {num_steps}: simulate {constants_of.NUM_DRAWS} or more.")


def _batch(
    way: Way, count: int, local: float, global_batch: int | None, of: Constants
) -> tuple[float, str]:
    """Return the mean local batch of workers, and why they cannot train so, or an empty text."""
    mean = _local_batch(way, count, local, global_batch)
    groups = way.card.data_parallel_size(count)
    if global_batch and global_batch % groups and not way.allocation_card.shares_batches:
        return mean, (
            f"--global-batch {global_batch} cannot be divided by {groups}. Choose a multiple, such "
            f"as {global_batch // groups * groups}."
        )
    if problem := way.problem(count, mean, of):
        return mean, problem
    try:
        shared = uneven.batches(way, of, count, mean, None if global_batch else local)
    except ValueError as error:
        return mean, error.args[0]
    return float(shared.mean()), ""


def _local_batch(way: Way, count: int, local: float, global_batch: int | None) -> float:
    """Return the examples of a pass of each worker, or group of workers with the same examples."""
    if global_batch is None:
        return local
    groups = way.card.data_parallel_size(count)
    if global_batch < groups:
        raise ValueError(
            f"--global-batch {global_batch} on {count} workers leaves less than one example for "
            f"each: use --workers up to {global_batch}, or a larger --global-batch."
        )
    return global_batch / groups


def _constants(
    study: Study | None, where: Mapping[str, str] | None, parameters: float | None,
    probe: str | Path | None, machine: str | None, flops_per_example: float | None,
    local_batch: int | None,
) -> tuple[Constants, machines.Machine | None]:  # fmt: skip
    """Return the constants of the one source that was given, and the machine, if it is one."""
    check_above_zero("parameters", parameters, "11e6")
    check_above_zero("flops-per-example", flops_per_example, "12e9")
    sources = {"a study": study, "--probe": probe, "--machine": machine}
    given = [name for name, one in sources.items() if one is not None]
    if len(given) != 1:
        raise ValueError(
            f"constants come from one source, but {' and '.join(given) or 'none'} was given: use "
            "a study's folder, --probe FILE, or --machine NAME."
        )
    if flops_per_example and machine is None:
        raise ValueError(
            f"--flops-per-example {flops_per_example} is for --machine: leave it out with "
            f"{given[0]}."
        )
    if study is not None:
        return constants_of.of_study(study, where, parameters), None
    if parameters is None:
        raise ValueError(f"{given[0]} does not say how large the model is: give --parameters 11e6.")
    num_bytes = parameters * constants_of.PARAMETER_BYTES
    if probe is not None:
        return constants_of.of_probe(probe, num_bytes), None
    of = machines.machine(str(machine))
    if flops_per_example is None:
        raise ValueError(
            f"--machine {machine}: say what a training step computes for an example, as in "
            "--flops-per-example 12e9. It is 6 times the parameters for each token of a text."
        )
    return machines.of_machine(of, flops_per_example, num_bytes, local_batch or 32), of


def links_of(constants: Constants, network: str, name: str) -> Network:
    """Return the links that are simulated, with what hosts need beside them.

    Args:
        constants: The constants.
        network: Words as `parse_network` takes them, or `measured`.
        name: The name of the source of the constants, for messages.

    Returns:
        The links.

    Raises:
        ValueError: If a word is unknown, or nothing was measured.
    """
    measured = constants.network
    if network != "measured":
        found = parse_network(network)
        if measured is None:
            return found
        return replace(
            found,
            message_seconds=measured.message_seconds,
            byte_seconds=measured.byte_seconds,
        )
    if measured is None:
        raise ValueError(
            f"{name} has no exchange that was timed: describe the links with --network, as in "
            "--network 25gbit,10us."
        )
    return Network(measured.link)


def _notes(
    constants: Constants, ways: Sequence[Way], networks: Iterable[Network], has_measured: bool
) -> list[str]:
    rows = "All rows but the measured ones" if has_measured else "All rows"
    notes = [f"Computing: {constants.source}. {rows} are simulated."]
    if constants.network is None:
        notes.append("No exchange was measured: links are as described, and hosts cost nothing.")
    notes += [one[0].upper() + one[1:] for one in not_known(constants, ways, networks)]
    codecs = dict.fromkeys(str(way.codec.name) for way in ways if way.codec.builds)
    if unknown := [name for name in codecs if name not in constants.codec_seconds]:
        notes.append(f"The seconds of {listed(unknown)} are not known: they take no time here.")
    return notes


def not_known(
    constants: Constants, ways: Sequence[Way], networks: Iterable[Network]
) -> Iterator[str]:
    """Yield a sentence for each fact of the model or the links that a simulation needs, but nobody
    measured or gave, and what is simulated in its place.

    Args:
        constants: The constants.
        ways: The ways to exchange.
        networks: The links.
    """
    if links := dict.fromkeys(text for one in networks for text in one.published):
        yield (
            "latencies that --network does not give are published, not measured: "
            f"{'; '.join(links)}."
        )
    if not constants.layer_shares and any(getattr(way.card, "holds_layers", False) for way in ways):
        yield (
            "the sizes of the layers are not known: servers that hold whole layers are taken to "
            "hold equal parts of the model."
        )
    if not constants.pieces and any(way.card.can.cuts_model for way in ways):
        yield "the pieces of the model are not known: it is cut into any number of stages."
    sends_activations = any(way.card.can.splits_layers or way.card.can.cuts_model for way in ways)
    if sends_activations and not constants.example_bytes:
        yield (
            "the size of activations is not known: what tensor and pipeline workers send of them "
            "takes no time here."
        )
