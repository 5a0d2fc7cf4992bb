"""The models that bsweep can train; a model, or a family of models such as timm's, has a module of
its own.

A model is built from its card, the number of classes and the shape of an example. `initial` returns
a run's `torch.nn.Module` with its initial values, the same on all workers. `outlined` returns the
model without the values of its parameters. `blocks` and `pieces` return its parts. `check_model`
checks before anything starts that a model fits the data. `try_model` computes the loss of made-up
examples if the model or the data are the user's own.

A model must not know how it is trained: neither the strategy, nor the batch, nor that there are
other workers.
"""

from __future__ import annotations

import fnmatch
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from bsweep.config.capabilities import Capabilities
from bsweep.config.card import load_object
from bsweep.config.groups import ModelConfig
from bsweep.config.models import LibraryConfig
from bsweep.config.run import RunConfig
from bsweep.config.user_code import UserCode, line_of
from bsweep.config.values import ConfigError
from bsweep.core.gpus import num_gpus
from bsweep.core.torch_private import private
from bsweep.core.words import counted, excerpt, first_of
from bsweep.data.info import DataInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from bsweep.data.dataset import Dataset
    from bsweep.numerics.objective import Objective

_MOST_TRIED = 8  # made-up examples, unless the model needs a whole batch


def build(config: ModelConfig, *, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return the model that a card describes, freshly initialised.

    For examples of `shape` (C, H, W), the model maps images (B, C, H, W) to logits
    (B, num_classes). A language model maps tokens (B, T) to logits (B, T, num_classes). A model
    with its own objective may return what that objective takes.
    """
    model: nn.Module = load_object(config.builds)(config, num_classes=num_classes, shape=shape)
    return model


def initial(
    config: RunConfig,
    dataset: Dataset,
    device: torch.device,
    dtype: torch.dtype,
) -> nn.Module:
    """Return a run's model with its initial parameters, drawn with the run's seed or read from its
    file of pretrained weights.

    Args:
        config: The configuration of the run.
        dataset: The data that the model trains on.
        device: The device of the model; the meta device for a model without values.
        dtype: The type of its parameters.
    """
    import torch

    torch.manual_seed(config.seed)
    shape = tuple(dataset.train.inputs.shape[1:])
    if device.type == "meta":
        model = outlined.__wrapped__(config.model, dataset.num_classes, shape)  # that nobody shares
    else:
        model = build(config.model, num_classes=dataset.num_classes, shape=shape)
        if weights := _pretrained(config.model, dataset.num_classes, shape):
            model.load_state_dict(weights, strict=False)
    convert(model.to(device), dtype)
    layout = memory_format(config, model)
    for tensor in (*model.parameters(), *model.buffers()):
        # The module's own `to` would fail for 5-dimensional tensors. Copies have no gaps, as parts
        # of larger tensors have, and repeat no elements, as expanded ones do.
        form = layout if tensor.dim() == 4 else torch.preserve_format
        tensor.data = tensor.data.clone(memory_format=form)
    for module in model.modules():
        if isinstance(module, private("batchnorm")) and module.momentum is not None:
            module.num_batches_tracked = (
                None  # Nothing reads this counter, and it costs an operation per layer and step.
            )
    return model


def convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert a model's floating-point tensors to `dtype`, which is float32 or float64. Complex
    tensors stay complex: the module's own `to` would drop their imaginary part.
    """
    import torch

    if dtype == torch.float64:
        model.double()
    else:
        model.float()


def memory_format(config: RunConfig, model: nn.Module) -> torch.memory_format:
    """Return the memory format of a run's 4-dimensional tensors: that of `channels_last` or, with
    `channels_last=auto`, channels last if the model has 2-d convolutions.

    It is contiguous if the strategy stores no tensors channels last.
    """
    import torch

    is_channels_last = config.channels_last
    if is_channels_last == "auto":
        has_convolutions = any(isinstance(module, torch.nn.Conv2d) for module in model.modules())
        is_channels_last = has_convolutions and config.strategy.can.stores_channels_last
    return torch.channels_last if is_channels_last else torch.contiguous_format


def blocks(card: ModelConfig, model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model, in the order of its modules: the parts that a strategy which
    splits the model handles one at a time.

    They are those that the card names. If it names none, they are the outermost modules that have
    at most a quarter of the model's parameters each, and modules without further modules in them.

    Args:
        card: The card of the model.
        model: The model.

    Raises:
        ConfigError: If the model has no module of a name that the card gives, or if this is a list
            of modules.
    """
    import torch

    if not card.names_of_blocks:
        return list(_small_enough(model, _num_parameters(model) / 4))
    chosen: set[int] = set()
    for pattern in card.names_of_blocks:
        modules = modules_named(model, pattern)
        if not modules:
            outermost = ", ".join(name for name, _ in model.named_children())
            raise ConfigError(
                f"model.blocks has {pattern}, but no module of the model has such a name: use "
                f"names of its modules, with * for a part of a name, such as those of {outermost}."
            )
        if any(type(module).forward is torch.nn.Module.forward for module in modules):
            raise ConfigError(
                f"model.blocks has {pattern}, which is a list of modules and computes nothing "
                f"itself: use {pattern}.* for its modules."
            )
        chosen |= {id(module) for module in modules}
    return [module for module in model.modules() if id(module) in chosen]


def modules_named(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Return the modules of a model whose names match a pattern, in which `*` stands for any
    characters between two dots.
    """
    return [module for name, module in model.named_modules() if _matches(name, pattern)]


def _matches(name: str, pattern: str) -> bool:
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatch.fnmatchcase, names, patterns))


def _small_enough(model: nn.Module, most: float) -> Iterator[nn.Module]:
    import torch

    for module in model.children():
        if num := _num_parameters(module):
            computes = type(module).forward is not torch.nn.Module.forward
            if computes and (num <= most or not list(module.children())):
                yield module
            else:
                yield from _small_enough(module, most)


def _num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def pieces(card: ModelConfig, model: nn.Module) -> list[tuple[str, nn.Sequential]]:
    """Return the pieces of a model with their names: modules that compute the model's outputs if
    they are applied one after another.

    They come from the function that the card names, from the model's own method `pieces`, or from
    the model itself if it is an `nn.Sequential`. Each has trained parameters: a module without any,
    such as a pooling layer, belongs to the piece before it.

    Args:
        card: The card of the model.
        model: The model, whose modules the pieces share.

    Raises:
        ConfigError: If the model has no pieces, or not each parameter is in exactly one of them.
    """
    import torch

    words = _named(card)
    if card.pieces:
        named = load_object(card.pieces)(model)
    elif callable(method := getattr(model, "pieces", None)):
        named = method()
    elif type(model).forward is torch.nn.Sequential.forward:
        named = model.named_children()
    else:
        raise ConfigError(
            f"{words} cannot be cut into stages, because nothing says which of its modules are "
            "applied one after another. Use model=resnet18, vgg16, tiny_cnn, llama_tiny or "
            "llama_150m, make your own model an nn.Sequential without a forward of its own, or "
            "give it a method pieces() that returns a list of (name, module)."
        )
    merged: list[tuple[str, nn.Sequential]] = []
    for name, piece in named:
        if merged and not (_is_trained(piece) and _is_trained(merged[-1][1])):
            merged[-1][1].append(piece)
        else:
            merged.append((name, torch.nn.Sequential(piece)))
    homes = Counter(id(tensor) for _, piece in merged for tensor in piece.parameters())
    for name, tensor in model.named_parameters():
        if tensor.requires_grad and homes[id(tensor)] != 1:
            raise ConfigError(
                f"{words} cannot be cut into stages: the parameter {name} is in "
                f"{homes[id(tensor)]} of its pieces, which must share nothing and leave nothing "
                "out. Make one piece of the modules that use it."
            )
    return merged


def refuse_other_outputs(
    parts: Sequence[tuple[str, nn.Module]],
    model: nn.Module,
    inputs: Tensor,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Raise ConfigError if the pieces of a model do not compute what the model computes. The model
    is in training mode afterwards.

    Args:
        parts: The pieces.
        model: The model itself.
        inputs: The inputs of some examples.
        autocast: The context of forward passes.
    """
    import torch

    model.eval()
    with torch.no_grad(), autocast():
        expected, outputs = model(inputs), inputs
        for name, piece in parts:
            outputs = piece(outputs)
            if not isinstance(outputs, torch.Tensor):
                raise ConfigError(
                    f"piece {name} of the model returned a {type(outputs).__name__}: pieces of a "
                    "model that is cut into stages pass one tensor to the next."
                )
    model.train()
    is_same_shape = outputs.shape == expected.shape
    if not (is_same_shape and torch.allclose(outputs, expected, rtol=1e-2, atol=1e-3)):
        raise ConfigError(
            "the pieces of the model, applied one after another, do not compute what the model "
            "computes. Correct its method pieces(), or make it an nn.Sequential."
        )


def _is_trained(module: nn.Module) -> bool:
    return any(tensor.requires_grad for tensor in module.parameters())


def check_model(config: RunConfig, num_classes: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError if a check finds that the model of a run cannot be trained on the run's
    data, or that the run's strategy cannot divide or cut it.

    If the model's card does not say whether the model has BatchNorm, the module itself is examined.

    Raises:
        ValueError: If the model cannot be built, does not fit the data, or needs larger batches.
    """
    config.model.check_num_classes(num_classes)
    outline = functools.partial(outlined, config.model, num_classes, shape)
    can = config.strategy.can
    if can.splits_layers:
        from bsweep.models import plans  # imports torch

        plans.check(config.model, outline(), config.strategy.num_parts(config.num_workers))
    if can.gathers_blocks and config.strategy.num_parts(config.num_workers) > 1:
        _refuse_shared(config, outline())
    if can.cuts_model:
        names = [name for name, _ in pieces(config.model, outline())]
        if problems := list(config.strategy.problems_of_pieces(names, config.num_workers)):
            raise ConfigError(*problems)
    if config.model.has_batchnorm is not None:
        return

    if config.model.names_of_blocks:
        blocks(config.model, outline())
    _pretrained(config.model, num_classes, shape)
    if any(isinstance(module, private("batchnorm")) for module in outline().modules()):
        problems = list(config.model.lone_examples(config))
        if problems:
            raise ConfigError(*problems)


def _refuse_shared(config: RunConfig, model: nn.Module) -> None:
    """Raise ConfigError if modules of two blocks share a parameter, of which each block would train
    its own. What is in no block counts as one more.
    """
    chosen = {id(block) for block in blocks(config.model, model)}
    names = {name for name, module in model.named_modules() if id(module) in chosen}
    homes: dict[int, set[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        path = name.split(".")
        above = (".".join(path[:number]) for number in range(len(path) - 1, 0, -1))
        home = next((block for block in above if block in names), "")
        homes.setdefault(id(tensor), set()).add(home)
        if len(homes[id(tensor)]) > 1:
            raise ConfigError(
                f"strategy={config.strategy.name}: modules of two blocks of the model share the "
                f"weight {name}, and each block would train its own. Use strategy.wrap=model."
            )


def _pretrained(
    card: ModelConfig, num_classes: int, shape: tuple[int, ...]
) -> Mapping[str, Tensor]:
    """Return the pretrained weights of a model by name; none if its card names no file of them.

    Raises:
        ConfigError: If the file cannot be read or does not fit.
    """
    if not isinstance(card, LibraryConfig) or card.weights is None:
        return {}
    from bsweep.models import library  # imports torch

    return library.fitting(card, num_classes, shape)


@functools.cache  # A sweep asks for every point.
def outlined(config: ModelConfig, num_classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return the model that a card describes on torch's meta device, with its layers but without
    values of its parameters.
    """
    import torch

    # A model of the user's own is built on the CPU. GPUs' generators are left alone, because a
    # process that starts workers must not touch a GPU.
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                model = build(config, num_classes=num_classes, shape=shape)
        except NotImplementedError:
            # Some models, such as torchvision's RegNets, read values while they are built.
            model = build(config, num_classes=num_classes, shape=shape)
    return _without_values(model)


def _without_values(model: nn.Module) -> nn.Module:
    """Move a model to the meta device. Parameters that several modules have stay one, which they do
    not with the module's own `to`.
    """
    first: dict[int, str] = {}
    shared: list[tuple[str, str]] = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared.append((name, first.setdefault(id(parameter), name)))
    model.to("meta")
    for name, other in shared:
        if name != other:
            module, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(module), attribute, model.get_parameter(other))
    return model


def try_model(config: RunConfig, info: DataInfo) -> None:
    """Raise ValueError if the model or the data are the user's own, and a trial on made-up examples
    shows that the model cannot learn from the data.

    A shipped model is tried without values, and the user's own module on the CPU. An error of
    building the model or of its forward pass counts only if the run trains on this machine's CPU.
    A model that fails on a few examples is tried on a whole batch: it may need, for example, a
    multiple of 16. Torch's random numbers in this process stay what they are.

    Raises:
        ValueError: If the model cannot take such examples, or its outputs do not fit their labels.
    """
    if config.model.learns_from is None or config.data.consists_of == "anything":
        runs_here = not config.launch.named_hosts and not num_gpus(config.device)
        whole = max(config.local_batches)
        problems = []
        for number in dict.fromkeys((min(_MOST_TRIED, whole), whole)):
            problem = _problem_with(config.model, info, number, runs_here, config.strategy.can)
            if problem is None:
                return
            problems.append(problem)
        # The first problem is the same for all larger batches of a sweep.
        raise ConfigError(excerpt(problems[0], "the model's error"))


@functools.cache  # a sweep asks for every point
def _problem_with(
    card: ModelConfig, info: DataInfo, number: int, refuses_errors: bool, can: Capabilities
) -> str | None:
    """Return why a model cannot learn from `number` examples of a data set, be evaluated on them,
    or be cut, divided or trained as the strategy does, whose capabilities are `can`; None if a
    trial finds no reason, or if the trial fails where workers may have other hardware.
    """
    import torch

    from bsweep.numerics import objective

    words = _named(card)
    examples = f"{counted(number, 'example')} of shape {list(info.shape)}"
    labels = f"labels of shape {list(info.label_shape)}" if info.label_shape else "classes"
    device = torch.device("cpu" if card.learns_from is None else "meta")
    with torch.random.fork_rng(devices=[]), device:
        inputs, targets = made_up(info, number)
        try:
            model = build(card, num_classes=info.num_classes, shape=info.shape)
            outputs = model(inputs)
            if can.cuts_model and device.type == "cpu":
                refuse_other_outputs(pieces(card, model), model, inputs)
            if can.splits_layers and device.type == "cpu":
                from bsweep.models import plans

                plans.refuse_between(card, model, inputs)
            evaluated = model.eval()(inputs)
        except ConfigError as error:
            return str(error)
        except Exception as error:
            return (
                f"{words} cannot take {examples}: {_in_a_line(error)}. Choose a model for "
                "such examples, or correct the model."
                if refuses_errors
                else None
            )
        try:
            goal = objective.build(model, targets)
            goal.check(outputs, targets, info.num_classes)
            if problem := _problem_in_evaluation(goal, outputs, evaluated, targets, info):
                return f"{words}, tried in evaluation mode on {examples}: {problem}"
            if can.needs_each_gradient:
                reached = have_gradient(model, [goal.loss(outputs, targets)])
                if unused := [name for name, is_reached in reached.items() if not is_reached]:
                    return (
                        f"{words}: no gradient reaches {first_of(unused)}, and this strategy needs "
                        "one for each trained parameter. Remove what the model does not use, "
                        "freeze it by requires_grad=False, or use strategy=allreduce."
                    )
        except Exception as error:
            return f"{words}, tried on {examples} with {labels}: {error}"
    return None


def _named(card: ModelConfig) -> str:
    """Return the words that choose a model."""
    return f"model.target={card.target}" if isinstance(card, UserCode) else f"model={card.name}"


def _problem_in_evaluation(
    objective: Objective, outputs: Any, evaluated: Any, targets: Tensor, info: DataInfo
) -> str | None:
    """Return why a model's outputs in evaluation mode do not fit; None if they do.

    Args:
        objective: The model's objective.
        outputs: What the model returned in training mode, which fits.
        evaluated: What it returned in evaluation mode.
        targets: The targets of the examples.
        info: The data set.
    """
    try:
        objective.check(evaluated, targets, info.num_classes)
    except Exception as error:
        return str(error)
    if objective.own_score or evaluated.shape == outputs.shape:
        return None
    return (
        f"the model returned a tensor of shape {list(evaluated.shape)}, but {list(outputs.shape)} "
        "in training mode: return as many logits in both."
    )


def have_gradient(model: nn.Module, outputs: Sequence[Tensor]) -> dict[str, bool]:
    """Return for the name of each trained parameter True if any of some outputs depends on it."""
    import torch

    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    gradients = torch.autograd.grad(outputs, [*trained.values()], allow_unused=True)
    return {name: gradient is not None for name, gradient in zip(trained, gradients, strict=True)}


def made_up(info: DataInfo, number: int) -> tuple[Tensor, Tensor]:
    """Return made-up inputs and targets of examples, of a data set's shapes and types."""
    import torch

    labels = (number, *info.label_shape)
    return (
        torch.zeros(number, *info.shape, dtype=torch.long)
        if info.inputs == "tokens"
        else torch.randn(number, *info.shape),
        torch.randn(labels) if info.is_regression else torch.zeros(labels, dtype=torch.long),
    )


def _in_a_line(error: Exception) -> str:
    """Return an error's type and message in one line, with the line of the user's own code if the
    error was raised there.
    """
    message = " ".join(str(error).split()).rstrip(".")
    line = line_of(error)
    return f"{type(error).__name__}: {message}" + (f" ({line})" if line else "")
