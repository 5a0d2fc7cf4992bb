"""The gradient noise scale of a plain training loop: the two lines with `monitor` are all that it
takes.

python scripts/examples/noise_scale.py
"""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bsweep

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
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
