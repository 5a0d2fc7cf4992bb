"""Speed and memory of bsweep against plain programs, measured in one run, alternating, as ratios of
medians.

python scripts/bench.py [--quick] [--models M,M] [--batches N,N] [--rounds N] [--json FILE]
[--against FILE] [NAME...]

Without names: all. Of these, alone and together go over all models and batches, accumulation, parts
and noise over some of them, which takes long on few cores. --models and --batches choose a part of
that, --rounds how often each program takes its turn; --quick is a look at the first model.

memory      peak memory of a lone worker
alone       steps of each shipped model at batches of 8 to 256, beside the plain loop
accumulation, parts      several passes a step; what a step consists of
together    steps of two workers, of the same models and batches, beside DDP and Horovod's own
optimizer wrapper
noise       what measuring the gradient noise scale, and deciding by it, add to a step
split       a Llama split over two workers, beside the same split by hand in plain torch
step, exchange, strategies, start, points, analysis      see there

The file (by default, of the whole suite, results/bench/HARDWARE.json) gets every timed round of
every program, in seconds, with the hardware and the command. --against such a file says how many
values were compared with it and which got slower, and exits with 1 then; with 2 where the file has
none of what was measured. Where there is a GPU, benches run on it; those of two workers, where
there are two.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benches import against, alone, noise, split, together  # noqa: E402
from benches.common import Seconds, alternating, medians  # noqa: E402

from bsweep.config.run import RunConfig  # noqa: E402
from bsweep.config.strategies import GPU_CYCLE_MS, PLAIN_HOROVOD  # noqa: E402
from bsweep.core.ranks import Place  # noqa: E402
from bsweep.core.whole_files import write_whole  # noqa: E402
from bsweep.runlog.files import RunPaths  # noqa: E402
from bsweep.runlog.reading import read_records  # noqa: E402
from bsweep.study import provenance  # noqa: E402
from bsweep.train import graph_capture, step, warm_up, worker  # noqa: E402
from bsweep.train.job import Job  # noqa: E402
from tests.support.running import compose, tool  # noqa: E402

MEGABYTE = 2**20
NOWHERE = RunPaths(Path("nowhere"))


def main(given: argparse.Namespace) -> int:
    # Before minutes of measuring.
    then = json.loads(given.against.read_text()) if given.against else {}
    wanted = [name for name in NAMES if name in (given.names or NAMES)]
    if given.against and not then.keys() & {*wanted}:
        has = ", ".join(name for name in NAMES if name in then) or "none that there is today"
        print(
            f"{given.against} has no bench of {', '.join(wanted)}. It has {has}.", file=sys.stderr
        )
        return 2
    grid = alone.QUICK if given.quick else alone.Grid(given.models, given.batches, given.rounds)
    hardware = provenance.provenance(compose("local_batch=64"))
    file = given.json or (None if given.names or grid != alone.Grid() else default_file(hardware))
    part = file and file.with_name(f"{file.stem}.part.json")
    if part:
        part.parent.mkdir(parents=True, exist_ok=True)
        print(f"{part} has what was measured so far")
    found: dict[str, Any] = {}
    for name in wanted:
        found[name] = globals()[f"bench_{name}"](*[grid] * (name in FAMILIES))
        if part:  # after each one: the next may want more memory than there is
            write_whole(part, (json.dumps({**hardware, **found}, indent=1) + "\n").encode())
    if file and part:
        print(part.replace(file))
    return told_against(given.against, then, found, hardware) if given.against else 0


def told_against(
    file: Path, then: dict[str, Any], found: dict[str, Any], hardware: dict[str, Any]
) -> int:
    """Print what got slower since a file was written, and return the exit code."""
    same_hardware = all(then.get(key) == hardware[key] for key in ("cpu", "cores", "gpus"))
    if not same_hardware:
        print(
            f"{file} comes from other hardware: {then.get('cores')} cores of {then.get('cpu')} "
            f"{' '.join(then.get('gpus') or ())}. Only what has a reference beside it is compared."
        )
    slower, count = against.compared(found, then, same_hardware)
    print(*slower, sep="\n", end="\n" * bool(slower))
    if not count:
        print(f"nothing was compared: {file} has none of the measured values")
        return 2
    print(f"compared with {file}: {len(slower) or 'none'} of {count} values got slower or larger")
    return 1 if slower else 0


def default_file(hardware: dict[str, Any]) -> Path:
    gpus = [gpu.partition(",")[0] for gpu in hardware["gpus"]]
    name = f"{len(gpus)}x {gpus[0]}" if gpus else f"{hardware['cpu']} {hardware['cores']} cores"
    return ROOT / "results/bench" / f"{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}.json"


FAMILIES = ("alone", "accumulation", "parts", "together", "noise")  # which go over a grid
# Memory comes first: its peak is the process's.
NAMES = (
    *("memory", *FAMILIES, "split", "step", "exchange", "strategies"),
    *("start", "points", "analysis"),
)
bench_alone, bench_accumulation, bench_parts = alone.steps_alone, alone.accumulation, alone.parts
bench_together = together.steps_together
bench_noise, bench_split = noise.noise, split.split


STEP_TARGETS = {  # on one H100 or H200, by batch
    8: "2.5x; 5x is out of reach, because ResNet-18 alone launches 136 operations",
    64: "3x",
    512: "65,000 images/s, and on to 100,000",
}
STEPS_A_ROUND = 50  # on a GPU: more than its queue hides of the host


def bench_step(*model: str) -> dict[str, Seconds]:
    """A training step, cifar stem, against a plain eager fp32 loop (on a GPU as torch has it by
    default, with TF32 in convolutions, and without), and what the loop adds to its parts; by batch.
    """
    model = model or ("model.stem=cifar",)
    return {
        f"batch {size}": step_rounds(size, *model)
        for size in (STEP_TARGETS if torch.cuda.is_available() else (64,))
    }


def step_rounds(size: int, *model: str) -> Seconds:
    config = compose(f"local_batch={size}", "strategy=single", *model, "data=synthetic")
    job = prepare(config)
    batch, on_gpu = job.inputs.first(size), job.device.type == "cuda"
    if on_gpu:
        warm_up.make_steps(job)
        warnings = graph_capture.capture(job)
        print(
            f"CUDA graph: {'yes' if job.graphs else 'no'}",
            *(warning.message for warning in warnings),
        )
    programs = {
        "plain": with_tf32(plain_loop(job, size)),
        "plain without TF32": plain_loop(job, size),
        "step": lambda: step.train_step(job, batch, batch, job.inputs.crops(1, job.config.seed)),
        "core": core_of(job, batch),
    }
    if not on_gpu:  # a CPU has no TF32
        del programs["plain without TF32"]
    rounds = alternating(programs, rounds=7, calls=STEPS_A_ROUND if on_gpu else 1)
    rounds["data"] = data_seconds(job, batch)
    seconds = medians(rounds)
    ratio = seconds["plain"] / seconds["step"]
    added = seconds["step"] - seconds["core"]
    where = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    print(
        f"step at batch {size} ({job.precision}, {where}): {size / seconds['step']:.1f} images/s, "
        f"plain fp32 loop {size / seconds['plain']:.1f}: {ratio:.2f}x"
        + (f", without TF32 {size / seconds['plain without TF32']:.1f}" if on_gpu else "")
        + (f" (target on one H100 or H200: {STEP_TARGETS[size]})" if on_gpu else "")
    )
    print(
        f"  around forward, backward and optimizer: {added / seconds['step']:.2%} of the step by "
        f"difference, {seconds['data'] / seconds['step']:.2%} by timing the data path alone"
    )
    return rounds


def prepare(config: RunConfig) -> Job:
    torch.set_num_threads(os.cpu_count() or 1)
    return worker.set_up(config, NOWHERE, Place())


def plain_loop(job: Job, size: int) -> Callable[[], object]:
    """What one writes first: contiguous fp32, the optimizer tensor by tensor, inputs ready as
    floats.
    """
    from bsweep import models

    model = models.build(job.config.model, num_classes=10, shape=(3, 32, 32)).to(job.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(size, 3, 32, 32, device=job.device)
    labels = torch.randint(10, (size,), device=job.device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def with_tf32(program: Callable[[], object]) -> Callable[[], object]:
    """A program that runs as torch has it by default: convolutions in TF32 where a GPU has it.

    The job has switched that off for the whole process.
    """

    def run() -> None:
        own = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = True
        try:
            program()
        finally:
            torch.backends.cudnn.allow_tf32 = own

    return run


def core_of(job: Job, batch: torch.Tensor) -> Callable[[], object]:
    """Forward, backward and optimizer of the job's own model on inputs that are ready."""
    images = job.inputs.of(job.dataset.train_inputs[batch.to(job.device)])
    labels = job.dataset.train_labels[batch.to(job.device)]

    def step() -> None:
        job.vector.zero_gradients()
        with job.autocast():
            logits = job.model(images)
        (job.objective.loss(logits, labels) / len(batch)).backward()
        job.optimizer.step()

    return step


def data_seconds(job: Job, batch: torch.Tensor) -> list[float]:
    def path() -> None:
        job.inputs.training(batch, job.inputs.crops(1, 0))

    return alternating({"data": path}, rounds=50)["data"]


CYCLE = (
    f"Horovod's core looks for what is to travel every {PLAIN_HOROVOD.cycle_time_ms:g} ms "
    f"({GPU_CYCLE_MS:g} ms on GPUs)"
)


def bench_exchange(*overrides: str) -> Seconds:
    """Horovod's all-reduce of ResNet-18's gradient against torch.distributed's Gloo on the same
    vector, 2 workers.
    """
    result = subprocess.run(
        [
            tool("horovodrun"),
            "-np",
            "2",
            "--gloo",
            sys.executable,
            __file__,
            "exchange_worker",
            *overrides,
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    text, found = (
        line.partition(":")[2]
        for line in result.stdout.splitlines()
        if line.startswith("[0]<stdout>")
    )
    print(text)
    rounds: Seconds = json.loads(found)
    return rounds


def bench_exchange_worker(*overrides: str) -> None:
    import horovod.torch as hvd
    import torch.distributed as dist

    torch.set_num_threads(1)
    place = Place.from_environment()
    hvd.init()
    store = hvd.broadcast_object(tempfile.mktemp(), root_rank=0)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=place.rank, world_size=place.num_workers
    )
    config = compose(
        "local_batch=8",
        f"num_workers={place.num_workers}",
        "data=synthetic",
        "device=cpu",
        *overrides,
    )
    job = worker.set_up(config, NOWHERE, place)
    job.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    gloo_vector = job.vector.gradients.clone()

    def gloo() -> None:
        dist.barrier()
        dist.all_reduce(gloo_vector)

    def ours() -> None:
        dist.barrier()
        job.strategy.step()

    rounds = alternating(
        {"torch.distributed": gloo, "horovod": ours, "barrier": dist.barrier}, rounds=15
    )
    seconds = medians(rounds)
    times = {name: seconds[name] - seconds["barrier"] for name in ("horovod", "torch.distributed")}
    if place.rank == 0:
        print(
            f"exchange of {job.vector.num_bytes / 1e6:.1f} MB: Horovod "
            f"{times['horovod'] * 1e3:.3g} ms, torch.distributed "
            f"{times['torch.distributed'] * 1e3:.3g} ms: "
            f"{times['horovod'] / times['torch.distributed']:.2f}x; {CYCLE}"
        )
        print(json.dumps(rounds))
    dist.destroy_process_group()


def bench_strategies(rounds: int = 5) -> dict[str, Seconds]:
    """Whole runs of ResNet-18 at batch 64 per worker on two workers, alternating: seconds per step
    and per exchange. On GPUs, some at batch 8 too.
    """
    servers = ("strategy=parameter_server", "strategy.sharding=memory")
    programs = {
        "horovod": ("strategy=horovod",),
        "ddp": ("strategy=ddp",),
        "allreduce": ("strategy=allreduce",),
        "our ring": ("strategy=allreduce", "strategy.algorithm=ring"),
        "one server": (*servers, "strategy.num_servers=1"),
        "colocated": (*servers, "strategy.num_servers=2", "strategy.colocated=true"),
    }
    exchanges: Seconds = {name: [] for name in programs if name not in ("horovod", "ddp")}
    if torch.cuda.is_available():
        small = ("horovod", "ddp", "allreduce")
        programs |= {f"{name} at 8": (*programs[name], "local_batch=8") for name in small}
    steps: Seconds = {name: [] for name in programs}
    for _ in range(rounds):
        for name, overrides in programs.items():
            epoch = one_epoch(*overrides)
            steps[name].append(epoch["step_seconds_p50"])
            if name in exchanges:
                exchanges[name].append(epoch["exchange_seconds"] / epoch["num_steps"])
    step, exchange = medians(steps), medians(exchanges)
    print(
        f"step on 2 workers: allreduce native {step['allreduce'] * 1e3:.3g} ms, DDP "
        f"{step['ddp'] * 1e3:.3g} ms: {step['allreduce'] / step['ddp']:.2f}x"
    )
    print(
        f"step on 2 workers: Horovod {step['horovod'] * 1e3:.3g} ms, DDP {step['ddp'] * 1e3:.3g} "
        f"ms: {step['horovod'] / step['ddp']:.2f}x (target over NCCL: at most 1.1x); {CYCLE}"
    )
    if "allreduce at 8" in step:
        others = min(step["horovod at 8"], step["ddp at 8"])
        print(
            f"step on 2 workers at batch 8: allreduce {step['allreduce at 8'] * 1e3:.3g} ms, the "
            f"faster of DDP and Horovod {others * 1e3:.3g} ms: "
            f"{step['allreduce at 8'] / others:.2f}x (target over NCCL: below 1x)"
        )
    for name in ("our ring", "one server", "colocated"):
        print(
            f"exchange, {name}: {exchange[name] * 1e3:.3g} ms, Gloo's ring "
            f"{exchange['allreduce'] * 1e3:.3g} ms: {exchange[name] / exchange['allreduce']:.2f}x"
        )
    return {"step": steps, "exchange": exchanges}


def one_epoch(*overrides: str) -> dict[str, Any]:
    """The record of the second epoch of a run of the tool."""
    with tempfile.TemporaryDirectory() as folder:
        point = [
            "num_workers=2",
            "local_batch=64",
            "data=synthetic",
            "data.num_test=64",
            "epochs=2",
            "study=bench",
        ]
        command = [tool("bsweep"), "run", *point, *overrides]
        run_command(command, folder)
        (metrics,) = Path(folder).glob("results/bench/*/metrics.jsonl")
        epochs = [r for r in read_records(metrics)[0] if r["type"] == "epoch"]
        return epochs[-1]


def run_command(command: list[str], folder: str) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
        result.check_returncode()


TWELVE = ("local_batch=8,16,32,64,128,256", "num_workers=1,2")


def bench_start(rounds: int = 3, points: Sequence[str] = TWELVE) -> Seconds:
    """Twelve short points with processes that are reused, and with a launch for each: starts, and
    the overheads.
    """
    seconds: Seconds = {
        "cold start": [],
        "warm start": [],
        "overhead, reused": [],
        "overhead, a launch each": [],
    }
    for _ in range(rounds):
        for reuse, name in (("true", "overhead, reused"), ("false", "overhead, a launch each")):
            with tempfile.TemporaryDirectory() as folder:
                grid = (*points, f"launch.reuse={reuse}", "study=bench")
                point = (
                    "data.subset=512",
                    "model=tiny_cnn",
                    "epochs=1",
                    "launch.threads_per_worker=1",
                )
                began = time.perf_counter()
                command = [tool("bsweep"), "run", "-m", *grid, *point, "log_every_steps=1"]
                run_command(command, folder)
                wall = time.perf_counter() - began
                runs = [
                    RunPaths(path.parent)
                    for path in Path(folder).glob("results/bench/*/metrics.jsonl")
                ]
                seconds[name].append(wall - sum(map(spent_on_results, runs)))
                for run in runs:
                    seconds["cold start" if run.launcher_log.exists() else "warm start"].append(
                        first_step_seconds(run)
                    )
    found = medians(seconds)
    ratio = found["overhead, a launch each"] / found["overhead, reused"]
    print(
        f"launch to first step, 1 and 2 workers: {found['cold start']:.2f} s (target: 4), in "
        f"processes of the point before {found['warm start']:.2f} s (target: 0.5)"
    )
    print(
        f"overhead of twelve points: {found['overhead, reused']:.1f} s, with a launch each "
        f"{found['overhead, a launch each']:.1f} s: {ratio:.1f}x (target: 3x)"
    )
    return seconds


def first_step_seconds(run: RunPaths) -> float:
    launched_at: float = json.loads(run.meta.read_text())["launched_at"]
    first: float = next(
        record["time"] for record in read_records(run.metrics)[0] if record["type"] == "step"
    )
    return first - launched_at


def spent_on_results(run: RunPaths) -> float:
    """Seconds of training steps and evaluations, each of which follows an epoch's last step at
    once.
    """
    seconds, last_step = 0.0, 0.0
    for record in read_records(run.metrics)[0]:
        if record["type"] == "step":
            last_step = record["time"]
        elif record["type"] == "epoch":
            seconds += record["train_seconds"] + record["time"] - last_step
    return seconds


def bench_points(
    counts: Sequence[int] = (1000, 2000, 4000, 8000), num_looked_at: int = 10_000, rounds: int = 3
) -> Seconds:
    """Composing and checking the points of a sweep, and with which power of their number that
    grows.
    """
    with tempfile.TemporaryDirectory() as folder:
        refuse = functools.partial(subprocess.run, cwd=folder, capture_output=True, check=False)
        # The last point cannot be: that is said when all are checked, and before any is started.
        settings = ("local_batch=8,0", "data=synthetic", "study=bench")
        commands = {
            count: [tool("bsweep"), "run", "-m", f"seed=range(0,{count})", *settings]
            for count in (1, *counts)
        }
        checks = {
            f"checking {2 * n} points": functools.partial(refuse, command)
            for n, command in commands.items()
        }
        found = alternating(checks, rounds)
    one, *seconds = medians(found).values()
    slope = slope_of(counts, [max(each - one, 1e-3) for each in seconds])
    print(
        f"checking {2 * counts[-1]} points: {seconds[-1]:.1f} s; it grows with their number to the "
        f"power of {slope:.2f}"
    )
    return {**found, "exponent of points": [slope], **look_at_points(num_looked_at, rounds)}


def look_at_points(count: int, rounds: int) -> Seconds:
    """So many points as an operator asks for them: none of them run, half, all."""
    from tests.study.test_operating import many_points, write_many

    points = many_points(count)
    with tempfile.TemporaryDirectory() as folder:
        write_many(Path(folder) / "results/many", count)
        asked = {
            f"plan of {count} new points": ("plan", "-m", "study=other", *points),
            f"plan of {count} points, half done": ("plan", "-m", "study=many", *points),
            f"status of {count} runs": ("status", "results/many"),
        }
        ask = functools.partial(subprocess.run, cwd=folder, capture_output=True, check=True)
        looks = {
            name: functools.partial(ask, [tool("bsweep"), *words]) for name, words in asked.items()
        }
        found = alternating(looks, rounds)
    print(
        "; ".join(f"{name}: {seconds:.1f} s" for name, seconds in medians(found).items())
        + " (target: 2)"
    )
    return found


def slope_of(x: Sequence[float], y: Sequence[float]) -> float:
    """k, of y ~ x^k."""
    return statistics.linear_regression([*map(math.log, x)], [*map(math.log, y)]).slope


def bench_analysis(counts: Sequence[int] = (25, 50, 100, 200, 1000), epochs: int = 50) -> Seconds:
    """Loading and reporting synthetic studies, and with which power of the number of runs loading
    grows.
    """
    import bsweep
    from bsweep import report
    from tests.support.synthetic_study import write_study

    found: Seconds = {}
    with tempfile.TemporaryDirectory() as folder:

        def timed(num_batches: int, epochs: int, rounds: int = 3) -> float:
            path = Path(folder) / f"{10 * num_batches}_runs_{epochs}_epochs"
            write_study(
                path, local_batches=tuple(range(1, num_batches + 1)), seeds=5, epochs=epochs
            )
            name = f"loading {10 * num_batches} runs x {epochs} epochs"
            found.update(alternating({name: lambda: bsweep.load(path)}, rounds))
            print(f"{name}: {statistics.median(found[name]):.2f} s")
            return statistics.median(found[name])

        timed(counts[2], 2 * epochs)
        seconds = [timed(count, epochs, rounds=3 if count < 1000 else 1) for count in counts]
        study = write_study(Path(folder) / "report", seeds=3, epochs=epochs)
        found |= alternating({"report of 36 runs": lambda: report.write(study)}, rounds=3)
    slope = slope_of(counts, seconds)
    found["exponent of runs"] = [slope]
    print(
        f"report of 36 runs x {epochs} epochs: {statistics.median(found['report of 36 runs']):.1f} "
        "s"
    )
    print(f"loading grows with the number of runs to the power of {slope:.2f}")
    return found


def bench_memory(*overrides: str) -> dict[str, int]:
    """Peak memory of a lone worker against the sum of what it must hold."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    config = compose(
        "local_batch=64",
        "strategy=single",
        "data=synthetic",
        *(overrides or ("data.num_train=50000",)),
    )
    job = prepare(config)
    images = job.dataset.train_inputs.numel() + job.dataset.test_inputs.numel()
    state = 3 * job.vector.num_bytes  # parameters, gradients, momentum
    batch = job.inputs.first(64)
    for _ in range(3):
        step.train_step(job, batch, batch, job.inputs.crops(1, job.config.seed))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(
        f"memory above the interpreter's {before / MEGABYTE:.0f} MB: {peak / MEGABYTE:.0f} MB, of "
        f"which data {images / MEGABYTE:.0f} MB, parameters, gradients and momentum "
        f"{state / MEGABYTE:.0f} MB"
    )
    return {"peak_bytes": peak, "data_bytes": images, "state_bytes": state}


def model_name(case: alone.Case) -> str:
    return case.name.replace(" ", "_")


def models_of(text: str) -> tuple[alone.Case, ...]:
    known = {model_name(case): case for case in alone.CASES}
    if unknown := sorted({*text.split(",")} - {*known}):
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)}: unknown. Known: {', '.join(known)}."
        )
    return tuple(case for name, case in known.items() if name in text.split(","))


def batches_of(text: str) -> tuple[int, ...]:
    batches = sorted({int(word) for word in text.split(",")})
    if batches[0] < 1:
        raise argparse.ArgumentTypeError(f"{batches[0]}: a batch needs at least one example.")
    return tuple(batches)


def rounds_of(text: str) -> int:
    if (rounds := int(text)) < 2:
        raise argparse.ArgumentTypeError(
            f"{rounds}: fewer than two rounds do not show the noise. Give 2 or more."
        )
    return rounds


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    whole = alone.Grid()
    models, batches = ",".join(map(model_name, whole.cases)), ",".join(map(str, whole.batches))
    parser.add_argument(
        "--models", type=models_of, default=whole.cases, metavar="M,M", help=f"of {models}: all"
    )
    parser.add_argument(
        "--batches",
        type=batches_of,
        default=whole.batches,
        metavar="N,N",
        help=f"of a worker: {batches}",
    )
    parser.add_argument(
        "--rounds",
        type=rounds_of,
        default=whole.rounds,
        metavar="N",
        help=f"of those: {whole.rounds}",
    )
    quick = "the first model, batches 8 and 64, three rounds: a quick check, not a result"
    parser.add_argument("--quick", action="store_true", help=quick)
    given = parser.parse_args()
    if unknown := sorted({*given.names} - {*NAMES}):
        parser.error(f"{', '.join(unknown)}: unknown. Known: {', '.join(NAMES)}.")
    return given


if __name__ == "__main__":
    if sys.argv[1:2] == ["exchange_worker"]:
        bench_exchange_worker(*sys.argv[2:])
    elif sys.argv[1:2] == ["together_worker"]:
        together.be_worker(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["split_worker"]:
        split.be_worker(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main(parsed()))
