"""Our all-reduce algorithms against the plain sum, on real processes, in groups of 2 to 5; on GPUs
over NCCL.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bsweep.strategies.groups import ALGORITHMS, Wire
from tests.support.gpus import on_gpus
from tests.support.running import ROOT, Fork, ranks

SIZES = (1, 3, 1000, 4099)  # fewer elements than workers, and lengths that nothing divides
GROUPS = {"cpu": (2, 3, 4, 5), "cuda": (3,)}
CASES = [
    *(("cpu", p) for p in GROUPS["cpu"]),
    *(on_gpus("cuda", p, number=max(GROUPS["cuda"])) for p in GROUPS["cuda"]),
]
Results = list[dict[tuple[int, str, int], tuple[torch.Tensor, int, int]]]
"""Of each rank, by group size, algorithm and vector size: the vector afterwards, bytes sent and
steps.
"""


def vector(rank: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + size)
    return torch.randn(size, dtype=torch.float64, generator=generator)


def main(out: Path, kind: str) -> None:
    """One process: what each algorithm makes of this worker's vector, and what it counted."""
    dist.init_process_group("gloo" if kind == "cpu" else "nccl")
    rank = dist.get_rank()
    device = torch.device(kind, rank)
    if kind == "cuda":
        torch.cuda.set_device(device)
    results = {}
    for p in GROUPS[kind]:
        group = dist.new_group(list(range(p)))
        if rank < p:
            dist.broadcast(torch.zeros(1, device=device), src=0, group=group)  # as strategies begin
        for name, algorithm in ALGORITHMS.items() if rank < p else ():
            for size in SIZES:
                counts: list[tuple[int, int, int]] = []  # of bytes sent and received, and of steps
                wire = Wire(group, lambda *count, counts=counts: counts.append(count))
                values = vector(rank, size).to(device)
                algorithm(values, wire)
                sent, _, steps = zip((0, 0, 0), *counts, strict=True)
                results[p, name, size] = (values.cpu(), sum(sent), sum(steps))
    torch.save(results, out / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """What the processes on a kind of device made of it all, once for all tests; see `computed`."""
    return functools.cache(lambda kind: computed(tmp_path_factory.mktemp("collectives"), kind))


def computed(out: Path, kind: str) -> Results:
    num_processes, module = max(GROUPS[kind]), "tests.strategies.test_collectives"
    with (out / "output").open("w") as output:
        started = [
            Fork(module, str(out), kind, cwd=ROOT, env=env, stdout=output, stderr=output)
            for env in ranks(num_processes)
        ]
    assert [process.wait(120) for process in started] == [0] * num_processes, (
        out / "output"
    ).read_text()
    return [torch.load(out / f"{rank}.pt") for rank in range(num_processes)]


@pytest.mark.parametrize(("kind", "p"), CASES)
def test_every_worker_gets_the_sum_and_the_same_bits_with_as_many_bytes_as_theory_says(
    results_on: Callable[[str], Results], kind: str, p: int
) -> None:
    results = results_on(kind)
    for size, name in itertools.product(SIZES, ALGORITHMS):
        expected = torch.stack([vector(rank, size) for rank in range(p)]).sum(dim=0)
        for rank in range(p):
            values = results[rank][p, name, size][0]
            torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
            assert torch.equal(values, results[0][p, name, size][0])
    size, n = 4099, 8 * 4099
    counted = {name: [results[rank][p, name, size][1:] for rank in range(p)] for name in ALGORITHMS}
    for sent, steps in counted["ring"]:
        assert sent == pytest.approx(2 * (p - 1) / p * n, abs=8 * 2 * p)
        assert steps == 2 * (p - 1)
    assert sum(sent for sent, _ in counted["tree"]) == 2 * (p - 1) * n, (
        "each edge of the tree carries the vector twice"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
