"""Checkpoints, from which an interrupted run resumes: what they store, and when workers save
them.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bsweep.config.values import seconds_of
from bsweep.core import tensor_files
from bsweep.numerics.timing import StepClock
from bsweep.runlog.checkpoint_files import (
    Checkpoint,
    checkpoint_at,
    checkpoints,
    crc32_of_records,
    is_stop_requested,
    prune,
)
from bsweep.runlog.errors import Stopped
from bsweep.runlog.records import End, Event
from bsweep.runlog.shared_clock import file_system_time
from bsweep.train.cursor import Cursor
from bsweep.train.job import Job

_LOOK_SECONDS = 1.0  # between two moments at which workers agree whether to save
_APART_SECONDS = 600.0  # the same, for workers that would not have synchronised otherwise
# With `auto`, the interval between checkpoints is at least _LEAST_SECONDS, and _TIMES_COST times
# the seconds that one checkpoint takes.
_LEAST_SECONDS = 30.0
_TIMES_COST = 150
_BYTES_PER_SECOND = 100e6  # the assumed disk speed before the first checkpoint is timed

_GO_ON, _SAVE, _STOP = range(3)


class CheckpointSchedule:
    """The schedule by which the workers of a run save checkpoints, all of them after the same
    round.

    They save as often as `checkpoint_every` says, when the strategy stops the run and, unless
    `checkpoint_every` is null, when a stop is requested. Within epochs the first worker decides, by
    its clock and by whether a stop was requested. The others learn its decision in a gather about
    once a second. Workers that are not synchronised at that time gather much more rarely.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._every = job, job.config.checkpoint_every
        self._interval = seconds_of(self._every) or float("inf")
        if self._every == "auto":
            num_bytes = 3 * job.vector.num_bytes  # parameters and about two optimizer states
            self._interval = max(_LEAST_SECONDS, _TIMES_COST * num_bytes / _BYTES_PER_SECOND)
        self._saved_at = self._looked_at = time.monotonic()
        self._rounds = 0  # since the last gather of the first worker's decision
        # The rounds until the next such gather, by whether the workers are synchronised.
        self._rounds_together = self._rounds_apart = 1

    def after_round(self, cursor: Cursor, clock: StepClock) -> float:
        """Save a checkpoint if one is due after a round, and return the seconds that this took, 0
        if none was due.

        If the run is to stop, save a checkpoint and raise `Stopped`.

        Raises:
            Stopped: If the run is to stop, after the checkpoint is saved.
        """
        strategy = self._job.strategy
        if not (cursor.ends_epoch or strategy.saves_within_epochs):
            return 0.0
        wish = _GO_ON if self._every is None else self._agreed_wish(cursor.ends_epoch)
        if wish == _GO_ON:
            return 0.0
        # The checkpoint holds the seconds of these steps, which a GPU may not have finished yet.
        clock.seconds()
        with clock.pause():
            seconds = self._save(cursor)
        if wish == _STOP:
            reason = f"stopped on request after step {cursor.num_steps}, in epoch {cursor.epoch}"
            message = f"{reason}; start the same sweep again to resume"
            self._job.record(End(status="interrupted", message=message))
            raise Stopped(reason)
        return seconds

    def after_epoch(self, cursor: Cursor) -> float:
        """Save a checkpoint if one is due after an epoch, and return the seconds that this took, 0
        if none was due.

        `cursor` is already at the beginning of the next epoch.
        """
        done, every = cursor.epoch - 1, self._every
        is_due = isinstance(every, int) and done % every == 0 and done < self._job.config.epochs
        return self._save(cursor) if is_due else 0.0

    def _agreed_wish(self, ends_epoch: bool) -> int:
        self._rounds += 1
        strategy = self._job.strategy
        synchronised_now = ends_epoch or strategy.synchronised_now
        if self._rounds < (self._rounds_together if synchronised_now else self._rounds_apart):
            return _GO_ON
        now = time.monotonic()
        rate = self._rounds / max(1e-6, now - self._looked_at)
        apart = seconds_of(self._every) or _APART_SECONDS
        wish = _SAVE if now - self._saved_at >= self._interval else _GO_ON
        if is_stop_requested(self._job.paths):
            wish = _STOP
        proposal = [wish, *(max(1, int(rate * seconds)) for seconds in (_LOOK_SECONDS, apart))]
        # The answer of the first worker counts.
        wish, self._rounds_together, self._rounds_apart = map(
            int, strategy.gather(torch.tensor(proposal, dtype=torch.float64))[0].tolist()
        )
        self._rounds, self._looked_at = 0, time.monotonic()
        return wish

    def _save(self, cursor: Cursor) -> float:
        begun = time.monotonic()
        save(self._job, cursor)
        self._job.heartbeat.beat()
        self._saved_at = time.monotonic()
        seconds = self._saved_at - begun
        if self._every == "auto":
            self._interval = max(_LEAST_SECONDS, _TIMES_COST * seconds)
        return seconds


def save(job: Job, cursor: Cursor) -> None:
    """Write a checkpoint of the run; all workers call this together.

    If the checkpoint cannot be written, the run records a warning, and this raises no error.
    """
    strategy = job.strategy
    checkpoint = checkpoint_at(job.paths, cursor.epoch, cursor.position)
    problem, sha256 = "", {}
    try:
        checkpoint.folder.mkdir(parents=True, exist_ok=True)
        parts = {checkpoint.own(job.world.rank): _own_state}
        if job.world.rank == 0:
            parts[checkpoint.shared] = _shared_state
        for path, state_of in parts.items():  # one after the other, to hold few copies
            sha256[path.name] = tensor_files.write_tensors(state_of(job, cursor), path)
    except (OSError, RuntimeError) as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
    try:
        sha256 |= strategy.save_elsewhere(checkpoint)
    except OSError as error:
        problem = problem or f"{type(error).__name__}: {error}"
    answers = strategy.gather_json({"problem": problem, "sha256": sha256})
    problems = [answer["problem"] for answer in answers if answer["problem"]]
    if job.world.rank == 0:
        for answer in answers:
            sha256 |= answer["sha256"]
        try:
            if not problems:
                checkpoint.complete({**_facts(job, cursor), "sha256": sha256})
        except OSError as error:
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            checkpoint.remove()
            message = f"{checkpoint.folder} was not written: {problems[0]}"
            job.record(Event(event="warning", message=message))
        else:
            prune(job.paths)
    # All workers wait here for the first one, so that no worker's next step does.
    strategy.gather(torch.zeros(1, dtype=torch.float64))


def _facts(job: Job, cursor: Cursor) -> dict[str, Any]:
    num_bytes = job.log.sync()  # A power cut must not lose records that the checkpoint needs.
    return {
        "epoch": cursor.epoch,
        "position": cursor.position,
        "num_steps": cursor.num_steps,
        "train_seconds": cursor.train_seconds + sum(cursor.step_seconds),
        "num_workers": job.world.num_workers,
        "division": job.strategy.division,
        "metrics_bytes": num_bytes,
        "metrics_crc32": crc32_of_records(job.paths.metrics, num_bytes),
        "time": file_system_time(job.paths.folder),
    }


def _shared_state(job: Job, cursor: Cursor) -> dict[str, Any]:
    return {
        "cursor": cursor.shared(),
        "strategy": job.strategy.state(),
        "policy": job.policy.state(),
        "noise": job.noise.state() if job.noise else None,
        "model": _model_state(job) if job.strategy.can.replicates else None,
    }


def _own_state(job: Job, cursor: Cursor) -> dict[str, Any]:
    scale, strategy = job.vector.scale, job.strategy
    is_own = not (strategy.can.replicates or strategy.can.splits_model)
    on_gpu = {"cuda": torch.cuda.get_rng_state()} if job.device.type == "cuda" else {}
    return {
        "model": _model_state(job) if is_own else None,
        "strategy": job.strategy.own_state(),
        "scale": scale.state if scale else {},
        # BatchNorm's buffers differ between workers until an evaluation.
        "buffers": [buffer for _, buffer in job.model.named_buffers()],
        "buffer_names": [name for name, _ in job.model.named_buffers()],
        "random": {"cpu": torch.get_rng_state(), **on_gpu},
        "totals": cursor.totals,
        "recent": cursor.recent,
        "noise": job.noise.own_state() if job.noise else None,
    }


def _model_state(job: Job) -> dict[str, Any]:
    return {"parameters": job.vector.parameters, "optimizer": job.optimizer.state_dict()}


def load(job: Job) -> Cursor | None:
    """Restore the run from its latest complete checkpoint, and return the position from which
    training continues.

    Return None if there is no checkpoint. All workers call this together. The process that launched
    them has checked the files for damage.

    Raises:
        ValueError: If a file of the checkpoint cannot be read.
    """
    names = [checkpoint.folder.name for checkpoint in checkpoints(job.paths)[:1]]
    names = job.strategy.gather_json({"names": names})[0]["names"]
    if not names:
        return None
    checkpoint = Checkpoint(job.paths.checkpoints / names[0])
    rank, strategy = job.world.rank, job.strategy
    now = job.world.num_workers, strategy.division
    facts = checkpoint.facts or {"num_workers": now[0]}
    is_alike = (facts["num_workers"], facts.get("division", "")) == now
    ranks = [rank] if is_alike else range(facts["num_workers"])
    paths = checkpoint.shared, *map(checkpoint.own, ranks)
    shared, *states = map(tensor_files.read_tensors, paths)
    is_read = strategy.load_elsewhere(checkpoint) and shared is not None and None not in states
    if not bool(strategy.gather(torch.tensor([is_read], dtype=torch.float64)).all()):
        raise ValueError(
            f"{checkpoint.folder} cannot be read; the run's logs have the reason. Remove this "
            "folder and start the same sweep again: the run resumes from an earlier checkpoint, or "
            "starts from its beginning."
        )
    assert shared is not None
    own_state: Any = states[0] if is_alike else _state_of_another_division(states, rank)
    return _put_back(job, shared, own_state)


def _state_of_another_division(states: Sequence[Any], rank: int) -> dict[str, Any]:
    """Return a worker's own training state, built from a checkpoint of workers that were more or
    fewer, or held other stages.

    `states` are the own states of all earlier workers. Each new worker gets the mean of their
    floating-point buffers, by name; rank 0 alone gets the sums of all. Random numbers and the
    strategy's own state begin anew.
    """
    copies: dict[str, list[Tensor]] = {}
    for state in states:
        for name, buffer in zip(state["buffer_names"], state["buffers"], strict=True):
            copies.setdefault(name, []).append(buffer)
    buffers = [
        torch.stack(equal).mean(dim=0) if equal[0].is_floating_point() else equal[0]
        for equal in copies.values()
    ]
    sums = {
        name: sum(state[name] for state in states) * (rank == 0) for name in ("totals", "recent")
    }
    return {
        "model": None,
        "strategy": None,
        "random": None,
        "scale": states[0]["scale"],
        "buffers": buffers,
        "buffer_names": list(copies),
        **sums,
    }


def _put_back(job: Job, shared: dict[str, Any], own_state: dict[str, Any]) -> Cursor:
    cursor = Cursor.create(job.device, len(job.dataset.train), **shared["cursor"])
    job.strategy.load_state(shared["strategy"])
    job.policy.load_state(shared["policy"])
    if job.noise:
        job.noise.load_state(shared["noise"], own_state.get("noise"))
    for state in (shared["model"], own_state["model"]):
        if state:
            with torch.no_grad():
                job.vector.parameters.copy_(state["parameters"])
            job.optimizer.load_state_dict(state["optimizer"])
    if own_state["strategy"]:
        job.strategy.load_own_state(own_state["strategy"])
    if job.vector.scale:
        for name, value in job.vector.scale.state.items():
            value.copy_(own_state["scale"][name])
    saved = dict(zip(own_state["buffer_names"], own_state["buffers"], strict=True))
    for name, buffer in job.model.named_buffers():
        buffer.copy_(saved[name])
    if own_state["random"]:
        torch.set_rng_state(own_state["random"]["cpu"])
        if "cuda" in own_state["random"] and job.device.type == "cuda":
            torch.cuda.set_rng_state(own_state["random"]["cuda"])
    cursor.totals.copy_(own_state["totals"])
    cursor.recent.copy_(own_state["recent"])
    return cursor
