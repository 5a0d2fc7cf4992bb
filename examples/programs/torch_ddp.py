"""A plain training script, torch with DistributedDataParallel, with five lines for bsweep;
torch_ddp_before.py is the same without them.

bsweep run program=own launch=torchrun local_batch=16,32 num_workers=1,2 optimizer.lr=0.05 \
    epochs=3 "program.command='python examples/programs/torch_ddp.py \
    --batch {local_batch} --lr {lr} --seed {seed}'"
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bsweep

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def digits() -> tuple[TensorDataset, TensorDataset]:
    table = torch.from_numpy(np.loadtxt(DIGITS, delimiter=",", dtype=np.float32))
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    if "RANK" not in os.environ:  # without torchrun: one worker
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    run = bsweep.join(num_test=360, num_classes=10)
    dist.init_process_group("gloo")
    torch.manual_seed(given.seed)
    train, test = digits()
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
    sampler: DistributedSampler[object] = DistributedSampler(train, seed=given.seed)
    loader = DataLoader(train, batch_size=given.batch, sampler=sampler, drop_last=True)
    for epoch in run.epochs():
        sampler.set_epoch(epoch)
        for images, labels in run.steps(loader):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            outputs, labels = net(test.tensors[0]), test.tensors[1]
        loss = cross_entropy(outputs, labels).item()
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        print(f"epoch {epoch}: test loss {loss:.3f}, test accuracy {accuracy:.3f}")
        run.evaluated(test_loss=loss, test_accuracy=accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
