"""A plain training script, torch with Horovod, with six lines for bsweep.

bsweep run program=own launch=horovodrun optimizer.lr=0.05 local_batch=16,32 num_workers=1,2 \
    epochs=3 "program.command='python examples/programs/horovod_torch.py'"
"""

from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bsweep

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def digits() -> tuple[TensorDataset, TensorDataset]:
    table = torch.from_numpy(np.loadtxt(DIGITS, delimiter=",", dtype=np.float32))
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def main() -> None:
    hvd.init()
    run = bsweep.join(num_test=360, num_classes=10)
    torch.manual_seed(run.seed)
    train, test = digits()
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr or 0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sampler: DistributedSampler[object] = DistributedSampler(
        train, hvd.size(), hvd.rank(), seed=run.seed
    )
    loader = DataLoader(train, batch_size=run.local_batch, sampler=sampler, drop_last=True)
    for epoch in run.epochs():
        sampler.set_epoch(epoch)
        losses = []
        for images, labels in run.steps(loader):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = hvd.allreduce(torch.tensor(losses).mean(), name="train_loss").item()
        run.log(train_loss=mean)
        with torch.no_grad():
            outputs, labels = model(test.tensors[0]), test.tensors[1]
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        run.evaluated(test_loss=cross_entropy(outputs, labels).item(), test_accuracy=accuracy)
    hvd.shutdown()


if __name__ == "__main__":
    main()
