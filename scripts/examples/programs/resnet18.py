"""ResNet-18 on the digits at 32x32 as a plain script, with Horovod or DDP: the training that
`bsweep run data=digits model=resnet18` does, without augmentation. `scripts/programs_proof.py`
compares the two.

bsweep run program=own program.command='python scripts/examples/programs/resnet18.py horovod' \
    optimizer.lr=0.01 local_batch=32,64 num_workers=1,2 study=script
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bsweep
from bsweep.core.torchvision_shim import import_torchvision
from bsweep.data.digits import read_digits


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test set, with images (N, 3, 32, 32)."""
    greys, labels = read_digits()
    images = F.interpolate(greys[:, None] / 16, size=(32, 32), mode="bilinear").repeat(1, 3, 1, 1)
    images = (images - images.mean()) / images.std()
    tests = torch.zeros(len(labels), dtype=torch.bool)
    tests[labels.argsort(stable=True)[::5]] = True
    return TensorDataset(images[~tests], labels[~tests]), TensorDataset(
        images[tests], labels[tests]
    )


def evaluate(model: nn.Module, test: TensorDataset) -> tuple[float, float]:
    """Return the mean loss and the accuracy on the test set."""
    images, labels = test.tensors
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(some) for some in images.split(180)])
    model.train()
    accuracy = (outputs.argmax(1) == labels).float().mean()
    return F.cross_entropy(outputs, labels).item(), accuracy.item()


def main(exchange: str) -> None:
    run = bsweep.join(num_test=360, num_classes=10)
    torch.manual_seed(run.seed)
    train, test = digits()
    model: nn.Module = import_torchvision().models.resnet18(num_classes=10)
    learning = torch.optim.SGD(model.parameters(), lr=run.lr or 0.01, momentum=0.9, fused=True)
    if exchange == "ddp":
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = learning
    else:
        import horovod.torch as hvd

        hvd.init()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(learning, model.named_parameters())
    sampler: DistributedSampler[object] = DistributedSampler(
        train, run.num_workers, run.rank, seed=run.seed
    )
    loader = DataLoader(train, run.local_batch, sampler=sampler)
    for epoch in run.epochs():
        sampler.set_epoch(epoch)
        losses: list[Tensor] = []
        for images, labels in run.steps(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        test_loss, test_accuracy = evaluate(model, test)
        run.log(train_loss=torch.stack(losses).mean().item() if losses else math.nan)
        run.evaluated(test_loss=test_loss, test_accuracy=test_accuracy)


if __name__ == "__main__":
    main(sys.argv[1])
