"""A plain training script, torch with DistributedDataParallel, with five lines for bsweep.

bsweep run program=own program.command='python scripts/examples/programs/torch_ddp.py --lr {lr}' \
    optimizer.lr=0.05 local_batch=16,32,64 num_workers=1,2 launch=torchrun study=script
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bsweep


def digits() -> tuple[TensorDataset, TensorDataset]:
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 16
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    arguments = parser.parse_args()

    run = bsweep.join(num_test=360, num_classes=10)
    dist.init_process_group("gloo")
    torch.manual_seed(run.seed)
    train, test = digits()
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    sampler: DistributedSampler[object] = DistributedSampler(train, seed=run.seed)
    loader = DataLoader(train, batch_size=run.local_batch, sampler=sampler, drop_last=True)
    for epoch in run.epochs():
        sampler.set_epoch(epoch)
        for images, labels in run.steps(loader):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            outputs, labels = net(test.tensors[0]), test.tensors[1]
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        run.evaluated(test_loss=cross_entropy(outputs, labels).item(), test_accuracy=accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
