"""The strategy `tensor`: the workers of a replica compute parts of each large layer for the same
examples, by torch's `parallelize_module` (tensor parallelism; Megatron-LM, Shoeybi et al., arXiv
1909.08053).

The model brings a plan of its layers. A layer by columns is followed by one by rows, whose outputs
are summed over the workers of the replica. Layers that the plan does not name are computed by each
of these workers alike, so their gradients are equal. Gradients are summed between replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import loss_parallel

from bsweep.config.split_strategies import TensorConfig
from bsweep.core.torch_private import private
from bsweep.models import plans
from bsweep.numerics.vector import layout, part_of
from bsweep.strategies.ddp import InEachPass, exchange_lost
from bsweep.strategies.splitting import Parts, Split


class TensorParallel(Split, InEachPass):
    card: TensorConfig

    def vector(self, model: nn.Module) -> Parts:
        self.reports_sums = self.part_index == 0
        if self.card.replicas > 1:
            self.division = f"{self.card.replicas} replicas"  # of which each draws its own numbers
        # What passes send, by the shape of their inputs, and what the optimizer sends for norms.
        self._sent: dict[torch.Size | None, SentBytes] = {}
        slices, mesh = layout(model), self.mesh(model)
        self._shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        plans.apply(plans.build(self.config.model, model), model, mesh["part"], self.receive)
        self.receive(model.modules())
        # Cross-entropy of logits of which each worker has some, and its backward pass.
        self._for_losses = ExitStack()
        self._for_losses.enter_context(loss_parallel())
        model.register_forward_pre_hook(self._count_pass)
        # The optimizer sees DTensors alone. Those of undivided layers share the memory of the
        # model's own tensors and of their gradients.
        named = dict(model.named_parameters())
        whole = {name: tensor for name, tensor in named.items() if not isinstance(tensor, DTensor)}
        for name, tensor in whole.items():
            same = DTensor.from_local(tensor.data, mesh["part"], [Replicate()], run_check=False)
            named[name] = nn.Parameter(same, tensor.requires_grad)
        vector = Parts(slices, named)
        for name, tensor in whole.items():
            gradient = named[name].grad
            tensor.grad = None if gradient is None else part_of(gradient)
        return vector

    @contextmanager
    def during_pass(self, *, is_last: bool) -> Iterator[None]:
        with super().during_pass(is_last=is_last), ExitStack() as self._counting:
            yield

    def step(self) -> None:
        if self.see_part:
            self.see_part(self._vector.gradients)
        self.sum_between_replicas(self._vector.gradients)
        with exchange_lost(), ExitStack() as counting:
            self._watch(None, counting)
            self._optimizer.step()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        whole = super().weights(model)
        return {name: tensor.view(self._shapes[name]) for name, tensor in whole.items()}

    def close(self) -> None:
        self._for_losses.close()
        super().close()

    def _count_pass(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if model.training:
            self._watch(inputs[0].shape, self._counting)

    def _watch(self, shape: torch.Size | None, counting: ExitStack) -> None:
        """Count what is sent until `counting` ends. It is the same each time for inputs of the same
        shape, so only the first time is watched. The optimizer has no shape.
        """
        if shape not in self._sent:
            self._sent[shape] = counting.enter_context(SentBytes(self.num_parts))
        sent = self._sent[shape]
        counting.callback(lambda: self.count(sent.num_bytes, sent.num_bytes))


class SentBytes(private("dispatch_mode")):  # type: ignore[misc]
    """A context that counts the bytes of torch's functional collectives in its block, which also
    DTensors call.

    It sees each operation and so costs time. An all-reduce is counted as a ring.
    """

    def __init__(self, num_workers: int) -> None:
        """Begin with no bytes.

        Args:
            num_workers: The number of workers that take part in each collective.
        """
        super().__init__()
        self.num_bytes = 0
        others = num_workers - 1
        self._share_sent = {
            "all_reduce": 2 * others / num_workers,
            "all_gather_into_tensor": others,
            "reduce_scatter_tensor": others / num_workers,
            "all_to_all_single": others / num_workers,
        }

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if DTensor in types:
            return NotImplemented  # its own operations follow
        namespace, _, name = function.name().partition("::")
        if namespace == "_c10d_functional" and name.rstrip("_") in self._share_sent:
            sent: Tensor = args[0]
            num_bytes = sent.numel() * sent.element_size()
            self.num_bytes += round(self._share_sent[name.rstrip("_")] * num_bytes)
        return function(*args, **(kwargs or {}))
