"""Handwritten digits with a LightningModule and the Trainer."""
import argparse
import os
import time

import bsweep  # bsweep
import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from bsweep.external.adapters.lightning import BsweepCallback  # bsweep
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
        )
        self.examples = 0
        self.seconds = 0.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        self.examples += len(y) * self.trainer.world_size
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        accuracy = (self.net(x).argmax(1) == y).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    def on_train_epoch_start(self):
        self.started = time.perf_counter()

    def on_validation_start(self):
        if not self.trainer.sanity_checking:
            self.seconds += time.perf_counter() - self.started


class PrintAccuracy(L.Callback):
    def on_validation_end(self, trainer, module):
        if trainer.is_global_zero and not trainer.sanity_checking:
            accuracy = trainer.callback_metrics["val_accuracy"].item()
            print(f"step {trainer.global_step} examples {module.examples} accuracy {accuracy:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    run = bsweep.join(num_test=360, num_classes=10)  # bsweep
    L.seed_everything(args.seed, workers=True)

    data = torch.from_numpy(np.loadtxt(os.environ["DIGITS"], delimiter=",", dtype=np.float32))
    x, y = data[:, :64].reshape(-1, 1, 8, 8) / 16.0, data[:, 64].long()
    train = DataLoader(TensorDataset(x[:1437], y[:1437]), batch_size=args.batch, shuffle=True, num_workers=2)
    test = DataLoader(TensorDataset(x[1437:], y[1437:]), batch_size=120)

    devices = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=args.epochs,
        callbacks=[PrintAccuracy(), BsweepCallback(run)],  # bsweep
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    module = Digits(args.lr)
    trainer.fit(module, train, test)
    if trainer.is_global_zero:
        print(f"total steps {trainer.global_step} examples {module.examples} "
              f"seconds {module.seconds:.3f} examples/s {module.examples / module.seconds:.1f}")


if __name__ == "__main__":
    main()
