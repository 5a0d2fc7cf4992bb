"""Plans of tensor parallelism: how the large layers of a model are divided among workers that
compute the same examples together.

A plan is one of torch's `parallelize_module`: names of modules, with `*` for any characters between
two dots, and a style for each. Styles that torch lacks are here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

from bsweep.config.card import load_object
from bsweep.config.groups import ModelConfig
from bsweep.config.values import ConfigError
from bsweep.models import have_gradient, modules_named

Plan = dict[str, ParallelStyle]


class ColumnsOfEach(ParallelStyle):
    """The style of a linear layer whose outputs consist of several equal parts, such as queries,
    keys and values. Each worker computes a share of every part.

    The inputs are the same on all workers. The weight becomes a DTensor with one dimension more,
    whose elements are in the same order.
    """

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Linear), module
        for name, tensor in list(module.named_parameters()):
            of_parts = tensor.detach().unflatten(0, (self.num_parts, -1))
            share = distribute_tensor(of_parts, device_mesh, [Shard(1)])
            module.register_parameter(name, nn.Parameter(share, tensor.requires_grad))
        columns = functools.partial(_columns_of_each, module, device_mesh)
        module.forward = columns  # type: ignore[method-assign]
        return module


def _columns_of_each(module: nn.Linear, mesh: DeviceMesh, x: Tensor) -> Tensor:
    """Return this worker's share of a layer's outputs. In the backward pass, the gradient of the
    inputs is summed over workers.
    """
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    shares = [
        tensor.to_local().flatten(0, 1)  # of the weight, and of the bias if there is one
        for tensor in module.parameters()
        if isinstance(tensor, DTensor)
    ]
    return F.linear(x.to_local(grad_placements=[Partial()]), *shares)


class ShareOfDropout(ParallelStyle):
    """The style of a dropout layer between layers by columns and by rows.

    Each worker draws the random numbers of all workers' values and uses its own. So values are
    dropped as on one worker, and the random numbers of all workers of a replica stay the same.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Dropout), module
        drop = functools.partial(_drop_share, module, device_mesh)
        module.forward = drop  # type: ignore[method-assign]
        return module


def _drop_share(module: nn.Dropout, mesh: DeviceMesh, x: Tensor) -> Tensor:
    if not module.training or not module.p:
        return x
    whole = x.new_ones(*x.shape[:-1], mesh.size() * x.shape[-1])
    return x * F.dropout(whole, module.p).chunk(mesh.size(), dim=-1)[mesh.get_local_rank()]


def build(card: ModelConfig, model: nn.Module) -> Plan:
    """Return the plan of a model.

    Args:
        card: The card of the model.
        model: The model.

    Raises:
        ConfigError: If the user's own model has no plan.
    """
    plan: Plan = load_object(card.tensor_plan)(model)
    return plan


def apply(
    plan: Plan,
    model: nn.Module,
    mesh: DeviceMesh,
    receive: Callable[[Iterable[nn.Module]], None],
) -> None:
    """Divide the layers of a model among the workers of a mesh, which call this together.

    Args:
        plan: The plan of the model.
        model: The model.
        mesh: The workers, with one dimension.
        receive: Gives the tensors of modules the same values on all workers.
    """
    for module in model.modules():
        if getattr(module, "inplace", False):
            # Autograd forbids to overwrite the outputs of a divided layer.
            module.inplace = False  # type: ignore[assignment]
    for pattern, style in plan.items():
        for module in modules_named(model, pattern):
            receive([module])
            parallelize_module(module, mesh, style)


def check(card: ModelConfig, model: nn.Module, num_workers: int) -> None:
    """Raise ValueError if a model cannot be divided among workers by its plan.

    Args:
        card: The card of the model.
        model: The model, which may be on the meta device.
        num_workers: The number of workers of one replica.

    Raises:
        ConfigError: If there is no plan, or a layer of the plan is missing or cannot be divided.
    """
    every = [tensor for _, tensor in model.named_parameters(remove_duplicate=False)]
    uses = Counter(id(tensor) for tensor in every)
    problems: list[str] = []
    undividable: dict[str, list[str]] = {}
    for pattern, style in build(card, model).items():
        modules = modules_named(model, pattern)
        if not modules:
            problems.append(
                f"the plan of the model names {pattern}, but no module has such a name: correct "
                "tensor_plan."
            )
        for module in modules:
            if any(uses[id(tensor)] > 1 for tensor in module.parameters()):
                problems.append(
                    f"the plan of the model divides {pattern}, whose parameters another module "
                    "has too: leave it out of tensor_plan, or use strategy=sharded "
                    "strategy.wrap=model."
                )
            elif problem := _undividable(module, style, num_workers):
                undividable.setdefault(problem, []).append(pattern)
    for problem, patterns in undividable.items():
        named = ", ".join(dict.fromkeys(patterns))
        problems.append(f"the plan of the model divides {named}: {problem}")
    if problems:
        raise ConfigError(*problems)


def refuse_between(card: ModelConfig, model: nn.Module, inputs: Tensor) -> None:
    """Raise ConfigError if a parameter lies between layers that the plan of a model divides, so
    that each worker would compute only a share of its gradient.

    A forward pass finds the parameters on which the inputs of a layer by rows depend, other than
    through a divided layer.

    Args:
        card: The card of the model.
        model: The model.
        inputs: The inputs of some examples.
    """
    between: list[Tensor] = []

    def cut(
        style: ParallelStyle, module: nn.Module, arguments: tuple[Tensor, ...], outputs: Tensor
    ) -> Tensor:
        takes_parts = isinstance(style, RowwiseParallel) and style.input_layouts == (Shard(-1),)
        if takes_parts and arguments[0].requires_grad:
            between.append(arguments[0].sum())
        return outputs.detach()

    hooks = [
        module.register_forward_hook(functools.partial(cut, style))
        for pattern, style in build(card, model).items()
        if isinstance(style, ColwiseParallel | RowwiseParallel | ColumnsOfEach)
        for module in modules_named(model, pattern)
    ]
    model(inputs)
    for hook in hooks:
        hook.remove()
    if not between:
        return
    reached = have_gradient(model, between)
    if names := [name for name, is_reached in reached.items() if is_reached]:
        raise ConfigError(
            f"strategy=tensor: {', '.join(names)} of the model "
            f"{'lies' if len(names) == 1 else 'lie'} between layers that its plan divides, so that "
            "each worker would compute a share of the gradient. Divide other layers in "
            "tensor_plan, or use strategy=sharded."
        )


def _undividable(module: nn.Module, style: ParallelStyle, num_workers: int) -> str:
    """Return why the workers cannot have shares of a layer; empty if they can.

    The words of a vocabulary may be shared unevenly, values between layers may not.
    """
    if not isinstance(style, ColwiseParallel | RowwiseParallel | ColumnsOfEach):
        return ""
    is_embedding = isinstance(module, nn.Embedding) and not isinstance(style, ColumnsOfEach)
    if not is_embedding and not isinstance(module, nn.Linear):
        return f"{type(module).__name__} is no layer that {type(style).__name__} can divide."
    assert isinstance(module, nn.Linear | nn.Embedding)
    size = module.weight.shape[isinstance(style, RowwiseParallel) != is_embedding]
    parts = style.num_parts if isinstance(style, ColumnsOfEach) else 1
    may_be_uneven = (
        is_embedding
        if isinstance(style, RowwiseParallel)
        else isinstance(style, ColwiseParallel) and not style.use_local_output
    )
    if may_be_uneven:
        is_divided = (num_workers - 1) * -(-size // num_workers) < size
    else:
        is_divided = size % (num_workers * parts) == 0
    return (
        ""
        if is_divided
        else f"the {size} values cannot be divided among the {num_workers} workers of a replica. "
        "Use fewer workers, or larger strategy.replicas."
    )
