"""Handwritten digits, a fixed number of steps over random batches; DDP when WORLD_SIZE > 1."""
import argparse
import os
import sys
import time

import bsweep  # bsweep
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn


def load():
    data = torch.from_numpy(np.loadtxt(os.environ["DIGITS"], delimiter=",", dtype=np.float32))
    x, y = data[:, :64] / 16.0, data[:, 64].long()
    return x[:1437], y[:1437], x[1437:], y[1437:]


def endless(x, y, batch, generator):
    while True:
        order = torch.randperm(len(x), generator=generator)
        for i in range(0, len(x) - batch + 1, batch):
            pick = order[i:i + batch]
            yield x[pick], y[pick]


def progress(step):
    sys.stderr.write(f"\r{step} steps")
    sys.stderr.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)  # bsweep
    world = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    if world > 1:
        dist.init_process_group("gloo")

    torch.manual_seed(args.seed)
    x_train, y_train, x_test, y_test = load()
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()

    # every rank draws its own batches
    generator = torch.Generator().manual_seed(args.seed * 1000 + rank)
    batches = endless(x_train, y_train, args.batch, generator)

    step = 0
    examples = 0
    elapsed = 0.0
    t0 = time.perf_counter()
    for xb, yb in run.steps(batches):  # bsweep
        loss = criterion(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        elapsed += time.perf_counter() - t0
        step += 1
        examples += len(xb) * world
        if rank == 0:
            progress(step)
        if step % 40 == 0 and rank == 0:
            with torch.no_grad():
                accuracy = (net(x_test).argmax(1) == y_test).float().mean().item()
            print(f"step {step} examples {examples} accuracy {accuracy:.4f}")
            run.evaluated(test_accuracy=accuracy)  # bsweep
        t0 = time.perf_counter()

    if rank == 0:
        sys.stderr.write("\n")
        print(f"total steps {step} examples {examples} seconds {elapsed:.3f} examples/s {examples / elapsed:.1f}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
