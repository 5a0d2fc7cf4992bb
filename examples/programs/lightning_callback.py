"""A Lightning script with the callback for bsweep; pip install 'bsweep[lightning]'.

bsweep run program=own launch=torchrun local_batch=16,32 num_workers=1,2 optimizer.lr=0.05 \
    epochs=3 "program.command='python examples/programs/lightning_callback.py'"
"""

import os
from pathlib import Path

import numpy as np
import torch
from lightning import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bsweep
from bsweep.external.adapters.lightning import BsweepCallback

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def digits() -> tuple[TensorDataset, TensorDataset]:
    table = torch.from_numpy(np.loadtxt(DIGITS, delimiter=",", dtype=np.float32))
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


class Digits(LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10)
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        outputs = self.net(images)
        accuracy = (outputs.argmax(1) == labels).float().mean()
        self.log("val_loss", cross_entropy(outputs, labels), sync_dist=True)
        self.log("val_accuracy", accuracy, sync_dist=True)


def main() -> None:
    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)
    callback = BsweepCallback(run, saves=True)
    seed_everything(run.seed)
    train, test = digits()
    num_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp" if run.num_workers > 1 else "auto",
        devices=num_local,
        num_nodes=run.num_workers // num_local,
        max_epochs=run.num_epochs,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    loader = DataLoader(train, batch_size=run.local_batch, shuffle=True, drop_last=True)
    tests = DataLoader(test, batch_size=180 // run.num_workers)
    trainer.fit(Digits(run.lr or 0.05), loader, tests, ckpt_path=callback.checkpoint)


if __name__ == "__main__":
    main()
