"""The strategy `tensor`: the workers of a replica compute parts of each large layer for the same
examples, by torch's `parallelize_module` (tensor parallelism; Megatron-LM, Shoeybi et al., arXiv
1909.08053).

The model brings a plan of its layers. A layer by columns is followed by one by rows, whose outputs
are summed over the workers of the replica. Layers that the plan does not name are computed by each
of these workers alike, so their gradients are equal. Gradients are summed between replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import loss_parallel

from bsweep.config.splitting import TensorConfig
from bsweep.models import plans
from bsweep.numerics.vector import layout, part_of
from bsweep.runlog.errors import worker_lost
from bsweep.strategies.ddp import InEachPass, exchange_lost
from bsweep.strategies.groups import Wire, native
from bsweep.strategies.sent_bytes import SentBytes
from bsweep.strategies.splitting import Parts, Split


class TensorParallel(Split, InEachPass):
    card: TensorConfig

    def vector(self, model: nn.Module) -> Parts:
        self.reports_sums = self.part == 0
        # What passes send, by the shape of their inputs, and what the optimizer sends for norms.
        self._sent: dict[torch.Size | None, SentBytes] = {}
        slices, mesh = layout(model), self.mesh(model)
        self._shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        group = mesh.get_group("replica")
        self._between = Wire(group, self.replica, self.num_replicas, self.count)
        plans.apply(plans.of(self.config.model, model), model, mesh["part"], self.receive)
        self.receive(model.modules())
        # Cross-entropy of logits of which each worker has some, and its backward pass.
        self._for_losses = ExitStack()
        self._for_losses.enter_context(loss_parallel())
        model.register_forward_pre_hook(self._count_pass)
        # The optimizer sees DTensors alone. Those of undivided layers share the memory of the
        # model's own tensors and of their gradients.
        named = dict(model.named_parameters())
        whole = {name: own for name, own in named.items() if not isinstance(own, DTensor)}
        for name, own in whole.items():
            same = DTensor.from_local(own.data, mesh["part"], [Replicate()], run_check=False)
            named[name] = nn.Parameter(same, own.requires_grad)
        vector = Parts(slices, named)
        for name, own in whole.items():
            gradient = named[name].grad
            own.grad = None if gradient is None else part_of(gradient)
        return vector

    @contextmanager
    def during_pass(self, *, is_last: bool) -> Iterator[None]:
        with super().during_pass(is_last=is_last), ExitStack() as self._counting:
            yield

    def step(self) -> None:
        if self.see_part:
            self.see_part(self._vector.gradients)
        self._sum_between_replicas(self._vector.gradients)
        with exchange_lost(), ExitStack() as counting:
            self._watch(None, counting)
            self._optimizer.step()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        whole = super().weights(model)
        return {name: tensor.view(self._shapes[name]) for name, tensor in whole.items()}

    def close(self) -> None:
        self._for_losses.close()
        super().close()

    def _sum_between_replicas(self, gradients: Tensor) -> None:
        if self.num_replicas == 1:
            return
        is_rounded = self.card.reduce == "bf16"
        summed = gradients.bfloat16() if is_rounded else gradients
        with worker_lost():
            native(summed, self._between)
        if is_rounded:
            gradients.copy_(summed)

    def _count_pass(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if model.training:
            self._watch(inputs[0].shape, self._counting)

    def _watch(self, what: torch.Size | None, counting: ExitStack) -> None:
        """Count what is sent until `counting` ends. It is the same each time for the same `what`,
        so only the first time is watched.
        """
        if what not in self._sent:
            self._sent[what] = counting.enter_context(SentBytes(self.num_parts))
        counting.callback(self._add, self._sent[what])

    def _add(self, sent: SentBytes) -> None:
        self.count(sent.num_bytes, sent.num_bytes)
