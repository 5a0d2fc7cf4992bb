"""DiLoCo whose exchange travels while the next round computes (eager updates, Kale et al., arXiv
2502.12996).

When a round ends, the sum of the last one has landed, and moves the anchor as it would have without
overlap. The next round does not begin at the anchor but ahead of it: where an outer step would lead
if the others moved in this round as they did in the last one. Where an epoch ends, so that it can
be evaluated, all wait for what still travels and agree.

A worker holds three more vectors: what travels, its own part of that, and where its round began.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsweep.config import DiLoCoConfig, RunConfig
from bsweep.core.ranks import Place
from bsweep.numerics.vector import Flat
from bsweep.runlog import RunPaths
from bsweep.strategies.diloco import Arrivals, DiLoCo


@dataclass(frozen=True)
class _Travelling:
    """A round whose moves are on their way; at its end, workers waited for one that arrived at
    `waited_until`.
    """

    epoch: int
    number: int
    arrivals: Future[Arrivals]
    waited_until: float


class EagerDiLoCo(DiLoCo):
    is_together = False  # what travels would be waited for
    _travelling: _Travelling | None = None

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self._start = self._anchor.parameters.clone()
        self._own_part = torch.zeros_like(self._start)
        self._thread = ThreadPoolExecutor(max_workers=1)
        # On a GPU what travels has a stream of its own: on the one that computes it would hold up
        # what follows.
        self._stream = (
            torch.cuda.Stream(vector.parameters.device) if vector.parameters.is_cuda else None
        )
        self._last_arrival = float("-inf")  # of the round that landed last
        self._main_thread = threading.get_ident()

    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        own = self._arrive(sums, num_examples)
        weight = self._planned_weight()
        has_landed = self._land()
        own[-1] = time.monotonic()  # from here on it computes again
        moved = torch.sub(self._start, self._vector.parameters, out=self._vector.gradients)
        others = self._anchor.gradients - self._own_part if has_landed else moved * (1 - weight)
        moved.mul_(weight)
        self._own_part.copy_(moved)
        self._anchor.gradients.copy_(moved)
        self._look_ahead(others.add_(moved))
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        arrivals = self._thread.submit(self._travel, own)
        self._travelling = _Travelling(epoch, self._round, arrivals, self._last_arrival)
        self._look_at_the_clock()
        if ends_epoch or self.is_finished:
            self._agree()

    def gather(self, values: Tensor) -> Tensor:
        if self._travelling and threading.get_ident() == self._main_thread:
            # one message after the other: what travels asks for some of its own
            self._travelling.arrivals.result()
        return super().gather(values)

    def state(self) -> dict[str, Any]:
        travelling, now = self._travelling, time.monotonic() - self._offsets[self.rank]
        if travelling is None:
            return super().state()
        on_its_way = {
            "epoch": travelling.epoch,
            "number": travelling.number,
            "arrivals": asdict(travelling.arrivals.result()),
            "waited_until": travelling.waited_until - now,
            "last_arrival": self._last_arrival - now,
            "sum": self._anchor.gradients,
        }
        return {**super().state(), "now": now, "travelling": on_its_way}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        # On the first one's clock.
        now = float(self.gather(torch.tensor([time.monotonic()], dtype=torch.float64))[0])
        if "travelling" not in state:
            return
        saved, pause = state["travelling"], now - state["now"]
        arrivals = Arrivals(**saved["arrivals"])
        times = {name: getattr(arrivals, name) + pause for name in ("began", "arrived", "released")}
        landing: Future[Arrivals] = Future()
        landing.set_result(replace(arrivals, **times))
        self._travelling = _Travelling(
            saved["epoch"], saved["number"], landing, saved["waited_until"] + now
        )
        self._last_arrival = saved["last_arrival"] + now
        self._anchor.gradients.copy_(saved["sum"])

    def own_state(self) -> dict[str, Any]:
        if self._travelling:
            self._travelling.arrivals.result()  # it is counted
        return {**super().own_state(), "start": self._start, "own_part": self._own_part}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._start.copy_(state["start"])
        self._own_part.copy_(state["own_part"])

    def close(self) -> None:
        # all workers end alike, and what still travels arrives; the process may train on
        self._thread.shutdown()
        super().close()

    def _agree(self) -> None:
        """Wait for what travels, and leave all workers at the anchor."""
        self._land(is_last=True)
        self._last_arrival = float("-inf")
        self._start.copy_(self._anchor.parameters)
        self._vector.parameters.copy_(self._anchor.parameters)

    def _travel(self, own: Tensor) -> Arrivals:
        with torch.cuda.device_of(self._anchor.gradients), torch.cuda.stream(self._stream):
            arrivals = self._meet(own)
            spent = self._timed_exchange()  # the host waits for its end
            return replace(arrivals, spent=self.gather(torch.tensor(spent, dtype=torch.float64)))

    def _land(self, is_last: bool = False) -> bool:
        """Make the outer step of the round that travels; whether one did."""
        landing, self._travelling = self._travelling, None
        if landing is None:
            return False
        arrivals = landing.arrivals.result()
        self._outer_optimizer.step()
        waited_until = landing.waited_until
        self._last_arrival = float(arrivals.arrived.max())
        if is_last:  # nothing computes meanwhile: this wait is a part of the round
            released = self.gather(torch.tensor([time.monotonic()], dtype=torch.float64))
            arrivals = replace(arrivals, released=self._on_first_clock(released[:, 0]))
            waited_until = self._last_arrival
        self._close_round(landing.epoch, landing.number, arrivals, waited_until)
        return True

    def _planned_weight(self) -> float:
        """By the shares: who really took how many examples is not known yet."""
        shares = ((share.num_examples, share.num_steps) for share in self.shares)
        examples, steps = torch.tensor(list(shares), dtype=torch.float64).unbind(dim=1)
        return self._weight(self.members, examples, steps)

    def _look_ahead(self, outer_gradient: Tensor) -> None:
        """Begin the next round where an outer step by this gradient would lead, without making
        it.
        """
        (tensor,), group = self._anchor.tensors, self._outer_optimizer.param_groups[0]
        velocity = self._outer_optimizer.state[tensor].get("momentum_buffer")
        step = (
            outer_gradient
            if velocity is None
            else outer_gradient.add(velocity, alpha=group["momentum"])
        )
        if group["nesterov"]:
            step = outer_gradient.add(step, alpha=group["momentum"])
        torch.sub(self._anchor.parameters, step, alpha=group["lr"], out=self._start)
        self._vector.parameters.copy_(self._start)


def build(config: RunConfig, strategy: DiLoCoConfig, place: Place, paths: RunPaths) -> DiLoCo:
    """DiLoCo with or without overlap."""
    return (EagerDiLoCo if strategy.overlap else DiLoCo)(config, strategy, place, paths)
