"""Handwritten digits with tf_keras: model.fit under MultiWorkerMirroredStrategy."""
import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import bsweep  # bsweep
import numpy as np
import tensorflow as tf
import tf_keras
from bsweep.external.adapters.keras import BsweepCallback  # bsweep


class Report(tf_keras.callbacks.Callback):
    def __init__(self, train_size, chief):
        super().__init__()
        self.train_size = train_size
        self.chief = chief
        self.steps = 0
        self.examples = 0
        self.seconds = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.ended = time.perf_counter()

    def on_test_begin(self, logs=None):
        self.seconds += self.ended - self.started
        self.examples += self.train_size

    def on_epoch_end(self, epoch, logs=None):
        if self.chief:
            print(f"step {self.steps} examples {self.examples} accuracy {logs['val_accuracy']:.4f}", flush=True)


def load_digits():
    data = np.loadtxt(os.environ["DIGITS"], delimiter=",", dtype=np.float32)
    x = data[:, :64].reshape(-1, 8, 8, 1) / 16.0
    y = data[:, 64].astype(np.int64)
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def build_model(lr):
    model = tf_keras.Sequential([
        tf_keras.layers.Input((8, 8, 1)),
        tf_keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        tf_keras.layers.MaxPooling2D(),
        tf_keras.layers.Flatten(),
        tf_keras.layers.Dense(64, activation="relu"),
        tf_keras.layers.Dense(10),
    ])
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=tf_keras.optimizers.Adam(lr), loss=loss, metrics=["accuracy"])
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32, help="batch size per worker")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    run = bsweep.join(num_train=1437, num_test=360, num_classes=10)  # bsweep
    strategy = tf.distribute.MultiWorkerMirroredStrategy()    # before any other TensorFlow operation
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})
    tf_keras.utils.set_random_seed(args.seed)

    train, test = load_digits()
    batch = args.batch * strategy.num_replicas_in_sync
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    train_set = tf.data.Dataset.from_tensor_slices(train).shuffle(1437, seed=args.seed).batch(batch)
    test_set = tf.data.Dataset.from_tensor_slices(test).batch(180)

    with strategy.scope():
        model = build_model(args.lr)

    report = Report(len(train[0]), chief=task["index"] == 0)
    model.fit(train_set.with_options(options), epochs=args.epochs, verbose=0,
              validation_data=test_set.with_options(options), callbacks=[report, BsweepCallback(run, num_examples=1437 // run.num_workers)])  # bsweep
    if report.chief:
        print(f"total steps {report.steps} examples {report.examples} seconds {report.seconds:.3f} "
              f"examples/s {report.examples / report.seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
