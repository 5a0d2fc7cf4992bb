"""A script with a DeepSpeed engine and the adapter for bsweep; pip install 'bsweep[deepspeed]'.

bsweep run program=own launch=torchrun local_batch=16,32 num_workers=1,2 optimizer.lr=0.05 \
    epochs=3 "program.command='python examples/programs/deepspeed_engine.py'"
"""

from pathlib import Path

import deepspeed
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bsweep
from bsweep.external.adapters.deepspeed import resume, save, settings, steps

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def digits() -> tuple[TensorDataset, TensorDataset]:
    table = torch.from_numpy(np.loadtxt(DIGITS, delimiter=",", dtype=np.float32))
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8) / 16, table[:, -1].long()
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def main() -> None:
    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(run.seed)
    train, test = digits()
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=run.lr or 0.05, momentum=0.9)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=settings(run))
    resume(run, engine)
    sampler: DistributedSampler[object] = DistributedSampler(train, seed=run.seed)
    loader = DataLoader(train, batch_size=run.local_batch, sampler=sampler, drop_last=True)
    for epoch in run.epochs():
        sampler.set_epoch(epoch)
        for images, labels in steps(run, engine, loader):
            outputs = engine(images.to(engine.device))
            engine.backward(cross_entropy(outputs, labels.to(engine.device)))
            engine.step()
        with torch.no_grad():
            outputs, labels = net(test.tensors[0].to(engine.device)).cpu(), test.tensors[1]
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        run.evaluated(test_loss=cross_entropy(outputs, labels).item(), test_accuracy=accuracy)
        save(run, engine)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
