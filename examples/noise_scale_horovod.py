"""As `noise_scale.py`, of several workers over Horovod.

horovodrun -np 2 python examples/noise_scale_horovod.py
"""

import horovod.torch as hvd
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bsweep
from bsweep.data.digits import read_digits

hvd.init()
torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = read_digits()
digits = TensorDataset(images.flatten(1) / 16, labels)
sampler: DistributedSampler[int] = DistributedSampler(
    digits, hvd.size(), hvd.rank(), drop_last=True
)
loader = DataLoader(digits, batch_size=32, sampler=sampler, drop_last=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

monitor = bsweep.NoiseScale(model, every=3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        monitor.step(batch)
        inputs, targets = batch
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    print(f"epoch {epoch}, rank {hvd.rank()}: {monitor}")
