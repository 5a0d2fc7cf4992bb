"""A script with Hugging Face Accelerate and the adapter for bsweep; pip install
'bsweep[accelerate]'.

bsweep run program=own launch=torchrun local_batch=16,32 num_workers=1,2 optimizer.lr=0.05 \
    epochs=3 "program.command='python examples/programs/accelerate_loop.py'"
"""

from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import bsweep
from bsweep.external.adapters.accelerate import mean, resume, save, steps

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def digits() -> tuple[TensorDataset, TensorDataset]:
    table = torch.from_numpy(np.loadtxt(DIGITS, delimiter=",", dtype=np.float32))
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def main() -> None:
    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(run.seed)
    train, test = digits()
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10))
    model, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=run.lr or 0.05, momentum=0.9),
        DataLoader(train, batch_size=run.local_batch, shuffle=True, drop_last=True),
    )
    resume(run, accelerator)
    for _ in run.epochs():
        losses = []
        for images, labels in steps(run, accelerator, loader):
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                losses.append(loss.item())
        run.log(train_loss=sum(losses) / len(losses), reduce="mean", mean=mean(accelerator))
        with torch.no_grad():
            outputs, labels = net(test.tensors[0]), test.tensors[1]
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        run.evaluated(test_loss=cross_entropy(outputs, labels).item(), test_accuracy=accuracy)
        save(run, accelerator)
    accelerator.end_training()


if __name__ == "__main__":
    main()
