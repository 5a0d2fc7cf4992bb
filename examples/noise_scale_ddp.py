"""As `noise_scale.py`, of several workers in DistributedDataParallel.

torchrun --nproc-per-node 2 examples/noise_scale_ddp.py
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bsweep
from bsweep.data.digits import read_digits

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = read_digits()
digits = TensorDataset(images.flatten(1) / 16, labels)
sampler: DistributedSampler[int] = DistributedSampler(digits, drop_last=True)
loader = DataLoader(digits, batch_size=32, sampler=sampler, drop_last=True)
network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

monitor = bsweep.NoiseScale(model, every=3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        monitor.step(batch)
        inputs, targets = batch
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    print(f"epoch {epoch}, rank {dist.get_rank()}: {monitor}")
dist.destroy_process_group()
