"""A script with Hugging Face's Trainer and the callback for bsweep; pip install
'bsweep[transformers]'.

bsweep run program=own launch=torchrun optimizer.lr=0.005 local_batch=16,32 num_workers=1,2 \
    epochs=3 "program.command='python examples/programs/transformers_trainer.py'"
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments, set_seed

import bsweep
from bsweep.external.adapters.transformers import BsweepCallback, arguments

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def digits() -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    table = torch.from_numpy(np.loadtxt(DIGITS, delimiter=",", dtype=np.float32))
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    examples = [
        {"images": image, "labels": label} for image, label in zip(images, labels, strict=True)
    ]
    return examples[:1437], examples[1437:]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10)
        )

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.net(images)
        return {"loss": cross_entropy(outputs, labels), "logits": outputs}


def accuracy(predicted: Any) -> dict[str, float]:
    right = predicted.predictions.argmax(1) == predicted.label_ids
    return {"accuracy": float(right.mean())}


def main() -> None:
    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)
    set_seed(run.seed)
    train, test = digits()
    trainer = Trainer(
        Net(),
        TrainingArguments(**arguments(run), use_cpu=True, report_to="none"),
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=accuracy,
        callbacks=[BsweepCallback(run)],
    )
    trainer.train(resume_from_checkpoint=run.resumed_from is not None)


if __name__ == "__main__":
    main()
