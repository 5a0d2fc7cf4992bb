"""A worker: the entry of a training process, and the one training loop."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from bsweep import data, memory, models, optim, runlog, strategies
from bsweep.clock import StepClock
from bsweep.config import RunConfig, read
from bsweep.data import augment, plan
from bsweep.errors import Diverged, errors_reported
from bsweep.place import Place, num_cores
from bsweep.runlog import RunLog, RunPaths, SignOfLife
from bsweep.strategies import Strategy
from bsweep.vector import Vector


@dataclass(frozen=True)
class Job:
    """All that the loop needs: what to train, on what, and this worker's place among the others."""

    config: RunConfig
    place: Place
    device: torch.device
    precision: str
    dataset: data.Dataset
    model: nn.Module
    training_model: nn.Module  # the same, or what a strategy wraps around it
    vector: Vector
    optimizer: Optimizer
    strategy: Strategy
    learning_rate: Callable[[float], float]
    slowdown: float
    alive: SignOfLife
    log: RunLog | None  # on rank 0
    on_step: Callable[[], None]

    def record(self, record: runlog.Record) -> None:
        if self.log:
            self.log.write(record)

    def heartbeat(self) -> None:
        self.alive.show()
        self.on_step()

    def inputs(self, images: Tensor) -> Tensor:
        """uint8 images as normalised model inputs in the model's memory format."""
        return augment.normalize(
            images,
            self.dataset.mean,
            self.dataset.std,
            dtype=self.vector.parameters.dtype,
            memory_format=memory_format(self.config),
        )

    def autocast(self) -> AbstractContextManager[None]:
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def sums(self, values: Tensor) -> list[float]:
        """Sums over workers of a few numbers."""
        mean = self.strategy.mean(values.to("cpu", torch.float64))
        return (mean * self.place.num_workers).tolist()


def train(
    config: RunConfig,
    paths: RunPaths,
    place: Place,
    *,
    launched_at: float | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Job:
    """Train one point; every worker calls this together. Rank 0 writes the records.

    Raises:
        Diverged: on all workers alike, after what was trained so far is on record.
        WorkerLost: another worker ended.
    """
    torch.set_num_threads(max(1, num_cores() // place.local_workers))
    device = choose_device(config, place)
    _reset_peak_memory(device)
    with RunLog(paths.metrics) if place.rank == 0 else nullcontext() as log:
        job = _prepare(config, place, paths, device, log, on_step)
        try:
            limits = config.launch.memory_limit_mb
            with (
                errors_reported(paths, place),  # before others hear of it, and end this process
                memory.limited(limits[place.rank] if limits else None),
            ):
                _train_epochs(job, launched_at)
        finally:
            job.strategy.close()
    return job


def _train_epochs(job: Job, launched_at: float | None) -> None:
    _warm_up(job)
    job.record(_start_record(job, launched_at))
    for epoch in range(1, job.config.epochs + 1):
        job.record(train_epoch(job, epoch))
        if not bool(job.vector.parameters.sum().isfinite()):  # the same on every worker
            _diverge(job, f"parameters became infinite or NaN in epoch {epoch}")
    job.record(runlog.End(status="completed", message=""))


def _prepare(
    config: RunConfig,
    place: Place,
    paths: RunPaths,
    device: torch.device,
    log: RunLog | None,
    on_step: Callable[[], None],
) -> Job:
    strategy = strategies.build(config, place, paths)
    dataset = data.load(config.data, device)
    torch.manual_seed(config.seed)  # the same initial weights on every worker
    precision = choose_precision(config, device)
    model = models.build(config.model, num_classes=len(dataset.classes), in_channels=dataset.train_images.shape[1]).to(
        device, dtype=torch.float64 if precision == "fp64" else torch.float32
    )
    model = model.to(memory_format=memory_format(config))  # type: ignore[call-overload]
    torch.manual_seed(config.seed + 1 + place.rank)  # dropout that differs between workers
    vector = Vector(model)
    optimizer = optim.build(config.optimizer, vector)
    strategy.prepare(vector, optimizer)
    return Job(
        config=config,
        place=place,
        device=device,
        precision=precision,
        dataset=dataset,
        model=model,
        training_model=strategy.wrap(model),
        vector=vector,
        optimizer=optimizer,
        strategy=strategy,
        learning_rate=optim.schedule(config),
        slowdown=config.launch.slowdown[place.rank] if config.launch.slowdown else 1.0,
        alive=SignOfLife(paths.alive(place.rank)),
        log=log,
        on_step=on_step,
    )


def _warm_up(job: Job) -> None:
    """A forward and a backward pass that nothing remembers: kernels are loaded and chosen before the clock starts."""
    indices = torch.arange(min(job.config.examples_per_pass, len(job.dataset.train_labels)), device=job.device)
    statistics = [buffer.clone() for buffer in job.model.buffers()]
    job.model.train()
    with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
        logits = job.model(job.inputs(job.dataset.train_images[indices]))
    cross_entropy(logits, job.dataset.train_labels[indices]).backward()
    job.vector.zero_gradients()
    for buffer, before in zip(job.model.buffers(), statistics, strict=True):
        buffer.copy_(before)


def train_epoch(job: Job, epoch: int) -> runlog.Epoch:
    """One pass over the training examples, then the evaluation."""
    config, num_train = job.config, len(job.dataset.train_labels)
    order = plan.epoch_order(num_train, seed=config.seed, epoch=epoch).to(job.device)
    num_steps = plan.num_steps(num_train, config.examples_per_step)
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)  # loss, correct, examples of this worker
    recent = torch.zeros_like(totals)
    clock = StepClock(job.device)
    job.training_model.train()
    job.strategy.begin_epoch(epoch)
    for step in range(num_steps):
        with clock.step():
            batch = plan.step_indices(order, step * config.examples_per_step, config.examples_per_step)
            rate = job.learning_rate(epoch - 1 + (step + 0.5) / num_steps)
            optim.set_learning_rate(job.optimizer, rate)
            recent += train_step(job, batch, epoch)
            if step + 1 == num_steps:
                job.strategy.agree()
        job.heartbeat()
        if (step + 1) % config.log_every_steps == 0 or step + 1 == num_steps:
            _log_step(job, epoch, step + 1, num_steps, recent, rate, clock)
            totals += recent
            recent.zero_()
    loss, correct, examples = job.sums(totals)
    if _finite(loss) is None:
        _diverge(job, f"the training loss became {loss / examples} in epoch {epoch}")
    seconds = clock.seconds()
    traffic = asdict(job.strategy.traffic())
    waits = traffic["worker_wait_seconds"]
    peak_memory_bytes = _peak_memory_bytes(job.device)
    test_loss, test_accuracy = evaluate(job)
    return runlog.Epoch(
        epoch=epoch,
        num_steps=num_steps,
        train_seconds=sum(seconds),
        train_loss=loss / examples,
        train_accuracy=correct / examples,
        test_loss=test_loss,
        test_accuracy=test_accuracy,
        images_per_second=examples / sum(seconds),
        step_seconds_p50=_quantile(seconds, 0.5),
        step_seconds_p95=_quantile(seconds, 0.95),
        learning_rate=rate,
        global_batch=config.examples_per_step,
        peak_memory_bytes=peak_memory_bytes,
        wait_seconds=sum(waits) / len(waits) if waits else None,
        **traffic,
    )


def train_step(job: Job, batch: Tensor, epoch: int) -> Tensor:
    """One optimizer step on the global batch `batch` (example numbers); this worker computes its part of it.

    Returns:
        Sum of losses, correct answers and examples of this worker's part, float64 (3,) on the device.
    """
    config, dataset = job.config, job.dataset
    part = plan.worker_part(batch, job.place.rank, job.place.num_workers)
    parts = (plan.worker_part(part, i, config.accumulation_steps) for i in range(config.accumulation_steps))
    passes = [indices for indices in parts if len(indices)]
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.vector.zero_gradients()
    started = time.perf_counter()
    # A worker that has no example of a tail computes one that counts nothing: some exchanges travel within a pass.
    for number, indices in enumerate(passes or [batch[:1]], 1):
        images = augment.crop_and_flip(
            dataset.train_images,
            indices,
            seed=config.seed,
            epoch=epoch,
            padding=config.data.crop_padding,
            flip=config.data.flip,
        )
        labels = dataset.train_labels[indices]
        if number == max(1, len(passes)):
            job.strategy.before_last_pass()
        with job.strategy.passes():
            with job.autocast(), _batchnorm_fit_for(job.model, len(indices)):
                logits = job.training_model(job.inputs(images))
            loss = cross_entropy(logits, labels)
            (loss * (bool(passes) * job.strategy.loss_scale / len(batch))).backward()
        if passes:
            totals += _score(loss, logits, labels)
    _slow_down(job, started)
    job.strategy.step()
    return totals


def evaluate(job: Job) -> tuple[float | None, float | None]:
    """Mean loss and accuracy over the whole test set, each example counted once by one worker."""
    if job.config.average_batchnorm:
        average_batchnorm(job)
    images, labels = job.dataset.test_images, job.dataset.test_labels
    mine = plan.worker_part(torch.arange(len(labels)), job.place.rank, job.place.num_workers)
    totals = torch.zeros(3, dtype=torch.float64, device=job.device)
    job.model.eval()
    with memory.unlimited(), torch.inference_mode(), job.autocast():  # the limit is on what steps take
        for indices in mine.to(job.device).split(_EVALUATION_BATCH):
            logits = job.model(job.inputs(images[indices]))
            totals += _score(cross_entropy(logits, labels[indices]), logits, labels[indices])
            job.heartbeat()
    loss, correct, examples = job.sums(totals)
    return _finite(loss / examples), correct / examples


_EVALUATION_BATCH = 500  # images; bounds the activations' memory


def average_batchnorm(job: Job) -> None:
    """Give all workers the mean of their BatchNorm statistics, which each gathered on its own part of the data."""
    statistics = [buffer for buffer in job.model.buffers() if buffer.is_floating_point()]
    if job.place.num_workers == 1 or not statistics:
        return
    means = job.strategy.mean(torch.cat([s.reshape(-1).to("cpu", torch.float64) for s in statistics]))
    for statistic, mean in zip(statistics, means.split([s.numel() for s in statistics]), strict=True):
        statistic.copy_(mean.view_as(statistic))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of losses, in fp32 at least."""
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    return F.cross_entropy(logits, labels, reduction="sum")


def _score(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    correct = (logits.detach().argmax(dim=1) == labels).sum()
    examples = torch.full_like(correct, len(labels))  # filled on the device: a copy would make the host wait
    return torch.stack([loss.detach().double(), correct.double(), examples.double()])


def _slow_down(job: Job, started: float) -> None:
    """Stretch what this worker computed since `started`; asleep, it leaves its core to the others."""
    if job.slowdown > 1:
        if job.device.type == "cuda":
            torch.cuda.synchronize()
        time.sleep((job.slowdown - 1) * (time.perf_counter() - started))


def _log_step(job: Job, epoch: int, step: int, num_steps: int, recent: Tensor, rate: float, clock: StepClock) -> None:
    # Workers that are not in step are not made to wait for one another: this one speaks for all.
    loss, _, examples = job.sums(recent) if job.strategy.in_step else (recent * job.place.num_workers).tolist()
    job.record(
        runlog.Step(
            epoch=epoch,
            step=(epoch - 1) * num_steps + step,
            train_loss=_finite(loss / examples) if examples else None,
            learning_rate=rate,
            images_per_second=clock.rate(examples),
        )
    )
    if _finite(loss) is None and job.strategy.in_step:
        _diverge(job, f"the training loss became {loss / examples} in epoch {epoch}, by step {step} of {num_steps}")


def _diverge(job: Job, message: str) -> NoReturn:
    job.record(runlog.End(status="diverged", message=message))
    raise Diverged(message)


@contextmanager
def _batchnorm_fit_for(model: nn.Module, num_examples: int) -> Iterator[None]:
    """A lone example, in the tail of an epoch, has no batch statistics where maps are 1x1: use the running ones."""
    if num_examples > 1:
        yield
        return
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.eval()
    yield
    for norm in norms:
        norm.train()


def memory_format(config: RunConfig) -> torch.memory_format:
    return torch.channels_last if config.channels_last else torch.contiguous_format


def choose_device(config: RunConfig, place: Place) -> torch.device:
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def choose_precision(config: RunConfig, device: torch.device) -> str:
    """`auto` is bf16 where matrix units compute in it; emulated, it would be slower than fp32."""
    if config.precision != "auto":
        return config.precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if native else "fp32"


def _start_record(job: Job, launched_at: float | None) -> runlog.Start:
    config, dataset = job.config, job.dataset
    device = torch.cuda.get_device_name(job.device) if job.device.type == "cuda" else "cpu"
    return runlog.Start(
        run_id=config.run_id,
        config=asdict(config),
        local_batch=config.examples_per_pass,
        global_batch=config.examples_per_step,
        num_train=len(dataset.train_labels),
        num_test=len(dataset.test_labels),
        classes=dataset.classes,
        num_parameters=job.vector.parameters.numel(),
        device=device,
        precision=job.precision,
        threads=torch.get_num_threads(),
        start_seconds=time.time() - launched_at if launched_at else None,
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _quantile(values: list[float], q: float) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(q))


def _reset_peak_memory(device: torch.device) -> None:
    """Forget the peak of points that this process ran before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_bytes(device: torch.device) -> int | None:
    """Allocated on a GPU; resident on a CPU, the pages of a data set that it shares with others included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return int(found[1]) * 1024 if found else None
    return None


def main() -> None:
    """`python -m bsweep.worker RUN_FOLDER`, in a process that a launcher started."""
    paths = RunPaths(Path(sys.argv[1]))
    config = read(paths.config)
    place = Place.from_environment(config.num_server_processes)
    meta = runlog.read_json(paths.meta) or {}
    with suppress(Diverged), errors_reported(paths, place):
        if place.is_server:
            strategies.serve(config, place, paths)
        else:
            train(config, paths, place, launched_at=meta.get("launched_at"))


if __name__ == "__main__":
    main()
