"""A Keras 3 script, with JAX below, and the callback for bsweep; pip install 'bsweep[keras,jax]'.

bsweep run program=own launch=torchrun local_batch=16,32 num_workers=1,2 optimizer.lr=0.05 \
    epochs=3 "program.command='python examples/programs/keras_callback.py'"
"""

import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np

import bsweep
from bsweep.external.adapters.keras import BsweepCallback

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def main() -> None:
    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)
    if run.num_workers > 1:
        port = int(os.environ["MASTER_PORT"]) + 1  # torchrun itself listens at MASTER_PORT
        address = f"{os.environ['MASTER_ADDR']}:{port}"
        keras.distribution.initialize(address, run.num_workers, run.rank)
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
    keras.utils.set_random_seed(run.seed)

    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1) / 16, table[:, -1].astype(np.int32)
    num_mine = 1437 // run.global_batch * run.local_batch
    mine = slice(run.rank, 1437, run.num_workers)
    model = keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(run.lr or 0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images[mine][:num_mine],
        labels[mine][:num_mine],
        batch_size=run.local_batch,
        epochs=run.num_epochs,
        validation_data=(images[1437:], labels[1437:]),
        validation_batch_size=120,
        callbacks=[BsweepCallback(run, num_examples=num_mine)],
        verbose=0,
    )


if __name__ == "__main__":
    main()
