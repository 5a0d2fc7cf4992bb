"""The file `final.pt` of a run's folder: the trained weights, the shape of an example, and the
classes, mean and deviation of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from bsweep import models
from bsweep.config import user_code
from bsweep.config.run import RunConfig
from bsweep.config.saved import read_config
from bsweep.core import tensor_files
from bsweep.data.dataset import Dataset
from bsweep.runlog.files import RunPaths


def write(weights: Mapping[str, Tensor], dataset: Dataset, path: Path) -> None:
    """Write the weights of a trained model, the shape of its examples, and the classes, the mean
    and the standard deviation of its data to a file.

    Args:
        weights: The trained parameters and the buffers, by name.
        dataset: The data that the model was trained on.
        path: The file.

    Raises:
        OSError, RuntimeError: If the file cannot be written.
    """
    copies = {
        name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()
    }
    tensor_files.write_tensors(
        {
            "weights": copies,
            "shape": list(dataset.train.inputs.shape[1:]),
            "num_classes": dataset.num_classes,
            "classes": list(dataset.classes),
            "mean": None if dataset.mean is None else dataset.mean.cpu(),
            "std": None if dataset.std is None else dataset.std.cpu(),
        },
        path,
    )


def load_model(run_folder: str | Path) -> nn.Module:
    """Return the trained model of a run that kept its weights (`keep_weights=true`), on the CPU and
    in evaluation mode.

    If the model is the user's own code, the copy in the run's folder is imported, as when a run
    resumes: load only folders that you trust. The model takes what it was trained on. If
    `torch.load(RUN/final.pt)` has a `mean` and a `std`, these are images: numbers in [0, 1] from
    which `mean` is subtracted and which are then divided by `std`.

    Args:
        run_folder: The run's folder, such as `results/mine/b64_w2_horovod_s0-1a2b3c4d`.

    Returns:
        The model.

    Raises:
        ValueError: If the folder has no weights, if they are damaged, or if the copy of the user's
            own model was changed.
    """
    paths = RunPaths(Path(run_folder))
    if not paths.final.is_file():
        raise ValueError(
            f"{paths.final}: there is no such file. Only a completed run with keep_weights=true "
            "has it: train the point with keep_weights=true in another study."
        )
    config = read_config(paths.config)
    content = tensor_files.read_tensors(paths.final)
    if content is None:
        raise ValueError(f"{paths.final} is damaged: train the point again in another study.")
    # The model alone: the optimizer's package may be newer by now.
    user_code.load_saved(RunConfig(model=config.model), paths.own)
    shape, num_classes = tuple(content["shape"]), content["num_classes"]
    model = models.build(config.model, num_classes=num_classes, shape=shape)
    dtypes = {value.dtype for value in content["weights"].values() if value.is_floating_point()}
    models.convert(model, max(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32))
    # `models.initial` removes BatchNorm's num_batches_tracked, so the file has no such tensors. The
    # strict load accepts this because a plain dict has no `_metadata`: torch takes it for the state
    # of an old BatchNorm, which had no counter, and keeps the new model's.
    model.load_state_dict(content["weights"])
    return model.eval()
