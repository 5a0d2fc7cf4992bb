"""The strategy `deepspeed`: DeepSpeed's own ZeRO (Rajbhandari et al., arXiv 1910.02054). Its engine
sums the gradients, divides the state and updates the parameters.

Stage 1 divides the optimizer's state among the workers, stage 2 the gradients too, stage 3 the
parameters too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import deepspeed
import deepspeed.ops
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsweep.config.split_strategies import DeepSpeedConfig
from bsweep.core.checksums import sha256_of
from bsweep.numerics import optim
from bsweep.numerics.vector import Flat, Vector, layout
from bsweep.runlog.checkpoint_files import Checkpoint
from bsweep.runlog.errors import worker_lost
from bsweep.runlog.records import Traffic
from bsweep.strategies.base import ExchangeLog
from bsweep.strategies.ddp import InEachPass, exchange_lost
from bsweep.strategies.groups import TorchStrategy

_MOST_IN_BUCKET = 500_000_000  # DeepSpeed's default
_FOLDER, _TAG = "deepspeed", "last"  # of the engine's files in a checkpoint


class DeepSpeed(TorchStrategy, InEachPass):
    card: DeepSpeedConfig
    averages = True

    def vector(self, model: nn.Module) -> Vector:
        self._model = model
        return _Held(model)

    def prepare(self, vector: Flat, optimizer: Optimizer) -> None:
        assert isinstance(vector, _Held)
        self._vector, self._optimizer = vector, optimizer
        deepspeed.utils.logger.setLevel("WARNING")
        # It would compile a sum in shared memory for CPUs first, which takes minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        settings = {
            "train_micro_batch_size_per_gpu": 1,  # for its own reports alone
            "managed_gradient_accumulation": False,  # each step of the engine ends a step here
            "zero_optimization": {
                "stage": self.card.stage,
                # Memory of so many elements is taken, even for a smaller model.
                "reduce_bucket_size": min(_MOST_IN_BUCKET, vector.num_parameters),
            },
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        with worker_lost():
            self._engine, *_ = deepspeed.initialize(
                model=self._model, optimizer=optimizer, config=settings
            )
        zero = self._engine.optimizer
        vector.copies = (
            zero.fp32_partitioned_groups_flat
            if self.card.stage == 3
            else zero.single_partition_of_fp32_groups
        )

    def wrap(self, model: nn.Module) -> nn.Module:
        return cast(nn.Module, self._engine)

    def step(self) -> None:
        with exchange_lost():
            self._engine.step()

    def rehearse(self) -> None:
        groups = self._optimizer.param_groups
        with optim.set_within(groups, "lr", [0.0] * len(groups)):
            self.step()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        parameters, is_divided = list(model.parameters()), self.card.stage == 3
        with worker_lost(), deepspeed.zero.GatheredParameters(parameters, enabled=is_divided):
            return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}

    def save_elsewhere(self, checkpoint: Checkpoint) -> dict[str, str]:
        folder = checkpoint.folder / _FOLDER
        with worker_lost():
            self._engine.save_checkpoint(str(folder), tag=_TAG)
        self.gather(torch.zeros(1, dtype=torch.float64))  # all have written
        if self.rank:
            return {}
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(checkpoint.folder)): sha256_of(path) for path in files}

    def load_elsewhere(self, checkpoint: Checkpoint) -> bool:
        with worker_lost():
            loaded, _ = self._engine.load_checkpoint(str(checkpoint.folder / _FOLDER), tag=_TAG)
        return loaded is not None

    def traffic(self) -> Traffic:
        self.meter = ExchangeLog()
        return Traffic()  # the engine does not say what it sends

    def close(self) -> None:
        self._engine.destroy()
        super().close()


class _Held(Vector):
    """The parameters of a model that DeepSpeed divides and updates itself.

    `copies` are those of what this worker updates. The engine keeps the gradients.
    """

    by_tensor = True

    def __init__(self, model: nn.Module) -> None:
        named: dict[str, Any] = dict(model.named_parameters())
        self.slices = layout(model)
        self.tensors = tuple(named[piece.name] for piece in self.slices)
        self.copies: Sequence[Tensor] = self.tensors
        self.num_parameters = self.slices[-1].stop

    @property
    def held(self) -> Sequence[Tensor]:
        return [tensor.detach() for tensor in self.copies]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.held)

    def zero_gradients(self) -> None:
        """Do nothing: the engine drops them at the end of its step."""
