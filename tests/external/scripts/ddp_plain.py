"""Handwritten digits with plain DDP. torchrun --nproc-per-node=2 ddp_plain.py --batch-size=32"""
import argparse
import os
import tempfile
import time

import bsweep  # bsweep
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="per process and step")
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()

digits = os.path.abspath(os.environ["DIGITS"])
os.chdir(tempfile.mkdtemp(prefix="digits-"))    # checkpoints go here

run = bsweep.join(accumulation_steps=args.accumulate, num_test=360, num_classes=10)  # bsweep
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

data = torch.from_numpy(np.loadtxt(digits, delimiter=",", dtype=np.float32))
x, y = data[:, :64].reshape(-1, 1, 8, 8) / 16.0, data[:, 64].long()
train_set = TensorDataset(x[:1437], y[:1437])
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=args.batch_size // args.accumulate, sampler=sampler, num_workers=2, persistent_workers=True)

model = DistributedDataParallel(nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20))


def evaluate():
    model.eval()
    with torch.no_grad():
        predicted = model.module(x[1437:]).argmax(1)
    model.train()
    return (predicted == y[1437:]).float().mean().item()


def forward_backward(xb, yb):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(xb), yb)
    (loss / args.accumulate).backward()


step = examples = 0
seconds = 0.0
started = time.perf_counter()
for epoch in run.epochs():  # bsweep
    sampler.set_epoch(epoch)
    for i, (xb, yb) in enumerate(run.steps(loader)):  # bsweep
        examples += len(xb) * world
        if (i + 1) % args.accumulate and i + 1 < len(loader):
            with model.no_sync():
                forward_backward(xb, yb)
            continue
        forward_backward(xb, yb)
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()
        step += 1
        if step % 50 == 0:
            seconds += time.perf_counter() - started
            if rank == 0:
                accuracy = evaluate()
                print(f"step {step} examples {examples} accuracy {accuracy:.4f}", flush=True)
                run.evaluated(test_accuracy=accuracy)  # bsweep
                torch.save({"model": model.module.state_dict(), "step": step}, "last.pt")
            started = time.perf_counter()
seconds += time.perf_counter() - started
if rank == 0:
    print(f"total steps {step} examples {examples} seconds {seconds:.3f} examples/s {examples / seconds:.1f}")
dist.destroy_process_group()
