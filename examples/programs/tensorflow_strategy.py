"""A TensorFlow script with the callback for bsweep, on several workers by
`MultiWorkerMirroredStrategy`; pip install tensorflow tf_keras bsweep.

bsweep run program=own launch=torchrun local_batch=16,32 num_workers=1,2 optimizer.lr=0.05 \
    epochs=3 "program.command='python examples/programs/tensorflow_strategy.py'"
"""

from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras

import bsweep
from bsweep.external.adapters.keras import BsweepCallback

DIGITS = Path(__file__).resolve().parents[2] / "src/bsweep/data/digits.csv.gz"


def main() -> None:
    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(run.seed)
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1) / 16, table[:, -1].astype(int)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Conv2D(32, 3, activation="relu", input_shape=(8, 8, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.SGD(run.lr or 0.05, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    num_train = 1437 - 1437 % run.global_batch  # all steps are full
    model.fit(  # its batch size is that of all workers
        images[:num_train],
        labels[:num_train],
        batch_size=run.global_batch,
        epochs=run.num_epochs,
        validation_data=(images[1437:], labels[1437:]),
        callbacks=[BsweepCallback(run, num_examples=num_train // run.num_workers)],
        verbose=0,
    )


if __name__ == "__main__":
    main()
