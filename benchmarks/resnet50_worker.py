"""`python -m benchmarks.resnet50_worker KIND FOLDER`: images/s of one way of training resnet50, on standard output."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scalebench.core.spec import RunSpec, read_spec
from scalebench.runner.worker import exit_without_cleanup, pin_to_cpus
from scalebench.strategies import registry
from scalebench.workloads import datasets

WARMUP_STEPS, STEPS = 3, 12


def ours(spec: RunSpec) -> Callable[[], object]:
    """Return a function that trains one step of the strategy, and waits for it."""
    strategy = registry.load_strategy(spec.config.strategy.name)(spec, 0)
    train, _ = datasets.open_sources(spec, *strategy.shard())
    strategy.setup()
    batches = iter(strategy.feed(train))

    def step() -> None:
        strategy.step(next(batches))
        strategy.synchronize()

    return step


def plain(spec: RunSpec) -> Callable[[], object]:
    """Return a function that trains one step of keras.applications.ResNet50 in the loop of the tutorials."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(spec.places[0].threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    settings = spec.config.train
    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    optimizer = keras.optimizers.SGD(settings.learning_rate, momentum=0.9 if settings.optimizer == "momentum" else 0.0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rng = np.random.default_rng(0)
    inputs = tf.constant(rng.uniform(-1, 1, (spec.global_batch, 224, 224, 3)).astype(np.float32))
    targets = tf.constant(rng.integers(0, 1000, spec.global_batch))

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return lambda: float(step())


def main(kind: str, folder: str) -> None:
    spec = read_spec(Path(folder))
    pin_to_cpus(spec.places[0].cpus)
    step = plain(spec) if kind == "keras.applications" else ours(spec)
    for _ in range(WARMUP_STEPS):
        step()
    seconds = []
    for _ in range(STEPS):
        begin_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin_s)
    print(spec.global_batch / statistics.median(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
    exit_without_cleanup(0)
