"""Words for settings and their values, which titles, legends and sentences show in place of the
names in the configuration.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from bsweep.analysis import columns
from bsweep.analysis.loaded import Study, ends_in_rounds
from bsweep.analysis.numbers import setting_text
from bsweep.core.words import counted

_NAMES = {
    "per_worker": "per worker",
    "cifar10": "CIFAR-10",
    "resnet18": "ResNet-18",
    "vgg16": "VGG-16",
    "tiny_cnn": "tiny CNN",
    "llama_tiny": "tiny LLaMA",
    "llama_150m": "LLaMA 150M",
    "sgd": "SGD",
    "adamw": "AdamW",
    "lars": "LARS",
    "lamb": "LAMB",
}
# The parts of a variant's name in words. A part that follows a strategy's name begins with a comma.
_OF_VARIANTS = {
    "single": "one worker alone",
    "horovod": "Horovod",
    "ddp": "DDP",
    "allreduce": "all-reduce",
    "allreduce native": "native all-reduce",
    "allreduce ring": "ring all-reduce",
    "allreduce tree": "tree all-reduce",
    "parameter_server": "parameter server",
    "sharded": "sharded",
    "tensor": "tensor",
    "pipeline": "pipeline",
    "local_sgd": "local SGD",
    "diloco": "DiLoCo",
    "pipedream": "PipeDream",
    "deepspeed": "DeepSpeed",
    "native": ", native",
    "ring": ", ring",
    "tree": ", tree",
    "replicas": ", replicas",
    "forward": ", ZeRO-3",
    "step": ", ZeRO-2",
    "blocks": ", gathered by blocks",
    "model": ", gathered at once",
    "gpipe": ", GPipe",
    "1f1b": ", 1F1B",
    "interleaved_1f1b": ", interleaved 1F1B",
    "interleaved_zero_bubble": ", interleaved zero bubble",
    "zbv": ", ZBV",
    "dualpipev": ", DualPipeV",
    "microbatches": ", micro-batches",
    "cuts": ", cuts",
    "vertical_sync": ", vertical sync",
    "stage": ", ZeRO stage",
    "adasum": ", Adasum",
    "layer": ", by layer",
    "layer_round_robin": ", by layer in turn",
    "memory": ", by memory",
    "hashed_chunks": ", hashed chunks",
    "synchronous": ", synchronous",
    "asynchronous": ", asynchronous",
    "stale_synchronous": ", stale-synchronous",
    "staleness": ", staleness",
    "sync_every": ", synchronised every",
    "colocated": ", with the workers",
    "fednova": ", FedNova",
    "fp32": ", fp32",
    "fp16": ", fp16",
    "bf16": ", bf16",
    "topk": ", top-k",
    "dgc": ", DGC",
    "qsgd": ", QSGD",
    "powersgd": ", PowerSGD",
    "powersgd_rank": ", PowerSGD of rank",
    "uniform": ", uniform",
    "batch_by_flops": ", batch by FLOP/s",
    "batch_by_memory": ", batch by memory",
    "steps_by_flops": ", steps by FLOP/s",
    "steps_by_speed": ", steps by speed",
    "hybrid": ", hybrid",
    "network_aware": ", network-aware",
    "fixed": ", fixed batch",
    "schedule": ", batch by schedule",
    "factor": ", factor",
    "every_epochs": ", epochs between changes",
    "seesaw": ", Seesaw's rate",
    "raise_instead_of_decay": ", batch raised instead of decay",
    "noise_scale": ", batch by noise scale",
    "norm_test": ", batch by norm test",
    "cabs": ", batch by CABS",
    "goodput": ", batch by goodput",
    "hysteresis": ", hysteresis",
    "theta": ", theta",
    "min_global_batch": ", global batch at least",
    "max_global_batch": ", global batch at most",
    "max_local_batch": ", local batch at most",
}
_KNOWN = re.compile(rf"(?<!\S)(?:{'|'.join(sorted(_OF_VARIANTS, key=len, reverse=True))})(?!\S)")


def words(name: str, value: object) -> str:
    """Return a setting's value in the words of a figure's legend, such as `4 workers`, with the
    setting's name unless the value alone is clear.

    Args:
        name: The column of the setting, such as `strategy`.
        value: The setting's value.

    Returns:
        The words, such as `4 workers`.
    """
    text = setting_text(value)
    if name == "variant":
        return _variant(text)
    return columns.legend(name, _NAMES.get(text, columns.spoken(name, text)))


def evaluated_part(runs: pd.DataFrame) -> str:
    """Return in words on which examples the runs of a study were evaluated while they trained.

    Args:
        runs: The table `Study.runs`.

    Returns:
        `test`; or `validation` for runs with `data.validation_share`; or `test or validation`.
    """
    shares = runs.get("data.validation_share", pd.Series(np.nan, index=runs.index))
    has_share = pd.to_numeric(shares, errors="coerce").notna()
    if not has_share.any():
        return "test"
    return "validation" if has_share.all() else "test or validation"


def heading(runs: pd.DataFrame, name: str) -> str:
    """Return the heading of a column of the given runs in words, such as `test accuracy`.

    Args:
        runs: The table `Study.runs`.
        name: The column, such as `test_accuracy`.

    Returns:
        The heading. For a test score it names the evaluated examples, as in `validation accuracy`.
    """
    text = columns.heading(name)
    is_score = name.removesuffix("_ratio") in ("test_accuracy", "test_loss", "best_median")
    return text.replace("test", evaluated_part(runs)) if is_score else text


def applies(name: str, value: object) -> bool:
    """Return False for a dotted setting, such as `model.target`, that a cell does not have or that
    is null in it; a cell's name leaves such a setting out.

    Args:
        name: The column of the setting.
        value: The setting's value in a table of cells.
    """
    return "." not in name or value != "none"


def length_of(study: Study) -> str:
    """Return in words how long the completed runs of a study trained, such as `3 epochs`; empty if
    their lengths differ or none is known.

    The length is the planned epochs. If any run of the study may end with a round, it is the rounds
    that the runs trained, such as `10 rounds`.

    Args:
        study: The study.

    Returns:
        The length in words, or an empty text.
    """
    if ends_in_rounds(study):
        lengths = study.rounds.groupby("run_id")["round"].max().unique()
        return counted(lengths[0], "round") if len(lengths) == 1 else ""
    runs = study.runs[study.runs["status"] == "completed"]
    is_shorter = (runs["epochs"] < runs["planned_epochs"]).fillna(False).any()  # by its target
    lengths = runs["planned_epochs"].dropna().unique()
    return counted(lengths[0], "epoch") if len(lengths) == 1 and not is_shorter else ""


def _variant(text: str) -> str:
    """Return a variant's name in words, such as `local SGD, synchronised every 4`."""
    text = _KNOWN.sub(lambda found: _OF_VARIANTS[found[0]], text)
    text = re.sub(r"num_servers (\d+)", lambda found: f", {counted(found[1], 'server')}", text)
    text = re.sub(r"every_steps (\d+)", lambda found: f", every {counted(found[1], 'step')}", text)
    return columns.spoken("variant", text.replace(" ,", ",")).strip(", ")
