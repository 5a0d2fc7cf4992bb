"""DiLoCo whose exchange after a round overlaps with the steps of the next round (eager updates,
Kale et al., arXiv 2502.12996).

At the end of a round, a worker waits for the sum of the previous round, which then moves the anchor
as it would without overlap. The next round does not begin at the anchor, but ahead of it. It begins
where an outer step would lead if the other workers moved in this round as they did in the last one.
At the end of an epoch or of the run all workers wait for the exchange under way and agree on one
model, which can then be evaluated.

A worker holds three more vectors than without overlap: the sum under way, its own part of that sum,
and the start of its round.
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

from bsweep.config.run import RunConfig
from bsweep.config.strategies import DiLoCoConfig
from bsweep.core import gpus
from bsweep.core.ranks import Place
from bsweep.numerics.vector import Flat
from bsweep.runlog.files import RunPaths
from bsweep.strategies.diloco import Arrivals, DiLoCo


@dataclass(frozen=True)
class _Travelling:
    """A finished round whose outer gradient is still being summed over the workers.

    `waited_until` is when the last worker arrived at the end of the round before. Workers that
    ended this round earlier waited until then.
    """

    epoch: int
    number: int
    arrivals: Future[Arrivals]
    waited_until: float


class EagerDiLoCo(DiLoCo):
    is_together = False  # meeting would mean waiting for the exchange under way
    _travelling: _Travelling | None = None

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        super().prepare(vector, optimizer)
        self._start = self._anchor.parameters.clone()
        self._own_part = torch.zeros_like(self._start)
        self._thread = ThreadPoolExecutor(1, "exchange", gpus.use, (vector.parameters.device,))
        # On a GPU the exchange has a stream of its own. On the stream that computes, it would delay
        # what follows.
        device = vector.parameters.device
        self._stream = gpus.stream_for(device, "exchange") if device.type == "cuda" else None
        # the last worker's arrival in the last round whose exchange ended
        self._last_arrival = float("-inf")
        self._main_thread = threading.get_ident()

    def end_round(self, epoch: int, sums: Tensor, num_examples: int, ends_epoch: bool) -> None:
        own = self._arrive(sums, num_examples)
        weight = self._planned_weight()
        has_landed = self._land()
        own[-1] = time.monotonic()  # from here on this worker computes again
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
            # The exchange gathers, too: one message must follow the other.
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
        # The time on the first worker's clock.
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
            self._travelling.arrivals.result()  # wait: its bytes belong to the state
        return {**super().own_state(), "start": self._start, "own_part": self._own_part}

    def load_own_state(self, state: dict[str, Any]) -> None:
        super().load_own_state(state)
        self._start.copy_(state["start"])
        self._own_part.copy_(state["own_part"])

    def close(self) -> None:
        # All workers end at the same point, so the exchange under way completes. The process may
        # train another run.
        self._thread.shutdown()
        super().close()

    def _agree(self) -> None:
        """Wait until the current exchange ends, make its outer step, and load the resulting
        parameters, which all workers share.
        """
        self._land(is_last=True)
        self._last_arrival = float("-inf")
        self._start.copy_(self._anchor.parameters)
        self._vector.parameters.copy_(self._anchor.parameters)

    def _travel(self, own: Tensor) -> Arrivals:
        with torch.cuda.stream(self._stream):
            arrivals = self._meet(own)
            spent = self._timed_exchange()  # this waits for the GPU, too
            return replace(arrivals, spent=self.gather(torch.tensor(spent, dtype=torch.float64)))

    def _land(self, is_last: bool = False) -> bool:
        """Wait until the current exchange ends, then make the outer optimizer's step with the
        summed outer gradient.

        Return False if there is no current exchange.
        """
        landing, self._travelling = self._travelling, None
        if landing is None:
            return False
        arrivals = landing.arrivals.result()
        self._outer_optimizer.step()
        waited_until = landing.waited_until
        self._last_arrival = float(arrivals.arrived.max())
        if is_last:  # nothing computes meanwhile: this wait belongs to the round
            released = self.gather(torch.tensor([time.monotonic()], dtype=torch.float64))
            arrivals = replace(arrivals, released=self._on_first_clock(released[:, 0]))
            waited_until = self._last_arrival
        self._close_round(landing.epoch, landing.number, arrivals, waited_until)
        return True

    def _planned_weight(self) -> float:
        """Return the weight of this worker's parameter change in the workers' mean, computed from
        planned numbers of examples and steps.

        The numbers of examples that workers really took are not known yet.
        """
        shares = ((share.num_examples, share.num_steps) for share in self.shares)
        examples, steps = torch.tensor(list(shares), dtype=torch.float64).unbind(dim=1)
        return self._weight(self.members, examples, steps)

    def _look_ahead(self, outer_gradient: Tensor) -> None:
        """Set this worker's model to the parameters that an outer step by `outer_gradient` would
        give, without making this step. The epoch's next round begins with these parameters.
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
    """Return a worker's DiLoCo strategy, whose exchange overlaps with steps if `strategy.overlap`
    is true.
    """
    return (EagerDiLoCo if strategy.overlap else DiLoCo)(config, strategy, place, paths)
