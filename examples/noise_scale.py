"""The gradient noise scale of a plain training loop: the two lines with `monitor` are all that it
takes.

python examples/noise_scale.py
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bsweep
from bsweep.data.digits import read_digits

torch.manual_seed(0)
images, labels = read_digits()
digits = TensorDataset(images.flatten(1) / 16, labels)
loader = DataLoader(digits, batch_size=32, shuffle=True, drop_last=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

monitor = bsweep.NoiseScale(model, every=3)
for epoch in range(3):
    for batch in loader:
        monitor.step(batch)
        inputs, targets = batch
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    print(f"epoch {epoch}: {monitor}")
