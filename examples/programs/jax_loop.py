"""A plain JAX script with the adapter for bsweep; pip install 'bsweep[jax]'.

bsweep run program=own launch=torchrun local_batch=16,32 num_workers=1,2 optimizer.lr=0.1 \
    epochs=3 "program.command='python examples/programs/jax_loop.py'"
"""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bsweep
from bsweep.external.adapters.jax import steps

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"
Params = dict[str, jax.Array]


def outputs_of(params: Params, images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ params["first"] + params["bias"])
    return hidden @ params["last"]


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(outputs_of(params, images))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


@jax.jit
def train_step(
    params: Params, images: jax.Array, labels: jax.Array, lr: float
) -> tuple[Params, jax.Array]:
    loss, gradient = jax.value_and_grad(loss_of)(params, images, labels)
    return jax.tree.map(lambda value, slope: value - lr * slope, params, gradient), loss


def main() -> None:
    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)
    if run.num_workers > 1:
        port = int(os.environ["MASTER_PORT"]) + 1  # torchrun itself listens at MASTER_PORT
        host = os.environ["MASTER_ADDR"]
        jax.distributed.initialize(f"{host}:{port}", run.num_workers, run.rank)
    mesh = Mesh(jax.devices(), "workers")
    shared, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("workers",)))

    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int32)
    keys = jax.random.split(jax.random.key(run.seed), 2)
    params = {
        "first": 0.1 * jax.random.normal(keys[0], (64, 128)),
        "bias": jnp.zeros(128),
        "last": 0.1 * jax.random.normal(keys[1], (128, 10)),
    }
    params = jax.device_put(params, shared)

    def batches(epoch: int) -> Iterator[tuple[jax.Array, jax.Array]]:
        order = np.random.default_rng((run.seed, epoch)).permutation(1437)
        mine = order[run.rank :: run.num_workers]
        for first in range(0, 1437 // run.global_batch * run.local_batch, run.local_batch):
            chosen = mine[first : first + run.local_batch]
            batch = images[chosen], labels[chosen]
            yield tuple(jax.make_array_from_process_local_data(split, part) for part in batch)

    def state() -> Params:
        return params

    for epoch in run.epochs():
        losses = []
        for batch in steps(run, batches(epoch), state, examples=run.local_batch):
            params, loss = train_step(params, *batch, run.lr or 0.1)
            losses.append(loss)
        local = jax.tree.map(np.asarray, params)
        outputs = outputs_of(local, images[1437:])
        run.log(train_loss=float(np.mean([float(loss) for loss in losses])))
        run.evaluated(
            test_loss=float(loss_of(local, images[1437:], labels[1437:])),
            test_accuracy=float((outputs.argmax(1) == labels[1437:]).mean()),
        )


if __name__ == "__main__":
    main()
