"""A policy that raises the batch at each milestone of a multistep schedule, instead of lowering the
learning rate (Smith et al., arXiv 1711.00489).

Multiplying the rate by gamma and dividing the batch by gamma have the same effect on the noise of
SGD, which is about proportional to lr / B. If a bound limits the batch, the rate falls by the
remaining factor. So after n milestones lr / B is about lr0 gamma^n / B0 in any case.
"""

from __future__ import annotations

from bsweep.batching.base import Changing, Decision, RoundStats


class RaiseInsteadOfDecay(Changing):
    kept = (*Changing.kept, "milestones")
    milestones = 0  # that the batch of the coming steps accounts for

    def rate_factor(self, epochs_done: float) -> float:
        # A step that begins before a milestone and ends after it keeps the rate and the batch of
        # before.
        still_counted = self._passed(epochs_done) - self.milestones
        return self.global_batch / self.configured / self.config.optimizer.gamma**still_counted

    def decide(self, stats: RoundStats) -> Decision:
        self.milestones = self._passed(stats.epochs_done)
        wanted = self.configured / self.config.optimizer.gamma**self.milestones
        reason = f"{self.milestones} milestone{'s are' if self.milestones != 1 else ' is'} passed"
        return Decision(wanted, {"milestones": self.milestones}, reason)

    def _passed(self, epochs_done: float) -> int:
        """Return the number of milestones that would have lowered the rate by now. Those within
        the warm-up do so when it ends.
        """
        o = self.config.optimizer
        if epochs_done < o.warmup_epochs:
            return 0
        return sum(epochs_done >= milestone for milestone in o.milestones)
