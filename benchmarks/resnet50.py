"""resnet50 at 224 pixels, batch 4, two threads: scalebench in both frameworks, against keras.applications in a plain
loop and the graph of tf_cnn_benchmarks in a session of TensorFlow 1.

Target: at least as fast as either. Each in a process of its own, alternating, so that thread pools do not interfere.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.spread import format_ratios
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import RunSpec, read_spec, write_spec
from scalebench.runner.worker import exit_without_cleanup, pin_to_cpus
from scalebench.strategies import registry
from scalebench.workloads import datasets

ROUNDS = int(os.environ.get("BENCHMARK_LAUNCHES", "5"))
OTHERS = ("keras.applications", "TensorFlow 1 graph")
OURS = ("bare_torch", "bare_tensorflow")
SETTINGS = "gpus=1 model=resnet50 train.batch_per_device=4 dataset.size=64 dataset.dtype=float32 dataset.feed=fixed"
WARMUP_STEPS, STEPS = 3, 12
WEIGHT_DECAY, MOVING_DECAY = 0.00004, 0.999  # of tf_cnn_benchmarks


def main() -> None:
    rates: dict[str, list[float]] = {name: [] for name in (*OURS, *OTHERS)}
    with tempfile.TemporaryDirectory() as name:
        folders = {strategy: _prepare(Path(name), strategy) for strategy in OURS}
        for number in range(ROUNDS):
            for kind in rates if number % 2 else reversed(rates):  # alternate which is first
                rates[kind].append(images_per_s(kind, folders.get(kind, folders[OURS[0]])))
    for kind, measured in rates.items():
        print(f"{kind}: {', '.join(f'{rate:.2f}' for rate in measured)} images/s", flush=True)
    for kind, other in itertools.product(OURS, OTHERS):
        print(f"{kind} / {other}: {format_ratios(rates[kind], rates[other])}", flush=True)


def _prepare(root: Path, strategy: str) -> Path:
    overrides = [f"strategy={strategy}", "hardware.cpus_per_device=2", *SETTINGS.split()]
    spec = resolve(compose_config(overrides))
    datasets.prepare(spec.config)
    folder = root / strategy
    folder.mkdir()
    write_spec(spec, folder)
    return folder


def images_per_s(kind: str, folder: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.resnet50", kind, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return float(done.stdout.split()[-1])


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


def graph(spec: RunSpec) -> Callable[[], object]:
    """Return a function that runs one step of a TensorFlow 1 graph, layer by layer as tf_cnn_benchmarks builds it.

    That is scripts/tf_cnn_benchmarks of tensorflow/benchmarks@00197155 with --device=cpu --data_format=NHWC
    --model=resnet50: fused batch normalization without a scale, L2 loss of all weights, synthetic images in a
    variable, one session.run for each step.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    rng = np.random.default_rng(0)
    images = v1.get_variable("images", initializer=rng.uniform(-1, 1, (spec.global_batch, 224, 224, 3)).astype("f"))
    labels = v1.get_variable("labels", initializer=rng.integers(0, 1000, spec.global_batch).astype("i"))
    logits = tf.matmul(_resnet50(tf.identity(images)), v1.get_variable("dense", (2048, 1000)))
    logits += v1.get_variable("bias", initializer=np.zeros(1000, "f"))
    weights = [variable for variable in v1.trainable_variables() if variable.name[:6] not in ("images", "labels")]
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.identity(labels), logits))
    loss += WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(variable) for variable in weights])
    optimizer = v1.train.GradientDescentOptimizer(spec.config.train.learning_rate)
    train = tf.group(optimizer.minimize(loss, var_list=weights), *v1.get_collection(v1.GraphKeys.UPDATE_OPS))
    threads = spec.places[0].threads
    settings = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    session = v1.Session(config=settings)
    session.run(v1.global_variables_initializer())
    return lambda: session.run([train, loss])


def _resnet50(values: Any) -> Any:
    """Return the pooled features of images; the first convolution of a block has its stride."""
    import tensorflow as tf

    values = tf.nn.max_pool2d(_convolve(values, 64, 7, 2), 3, 2, "SAME")
    for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for number in range(blocks):
            step = stride if number == 0 else 1
            shortcut = values if number else _convolve(values, 4 * width, 1, step, activate=False)
            values = _convolve(_convolve(values, width, 1, step), width, 3, 1)
            values = tf.nn.relu(shortcut + _convolve(values, 4 * width, 1, 1, activate=False))
    return tf.reduce_mean(values, (1, 2))


def _convolve(values: Any, filters: int, size: int, stride: int, activate: bool = True) -> Any:
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.variable_scope(None, default_name="conv"):
        kernel = v1.get_variable("kernel", (size, size, int(values.shape[-1]), filters))
        shift = v1.get_variable("shift", initializer=np.zeros(filters, "f"))
        average, variance = (
            v1.get_variable(name, initializer=np.full(filters, value, "f"), trainable=False)
            for name, value in (("mean", 0), ("variance", 1))
        )
    values = tf.nn.conv2d(values, kernel, stride, "SAME")
    values, batch_mean, batch_variance = v1.nn.fused_batch_norm(values, np.ones(filters, "f"), shift, epsilon=0.001)
    for moving, value in ((average, batch_mean), (variance, batch_variance)):
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moving.assign_sub((moving - value) * (1 - MOVING_DECAY)))
    return tf.nn.relu(values) if activate else values


def work(kind: str, folder: str) -> None:
    """Print images/s of one way of training."""
    spec = read_spec(Path(folder))
    pin_to_cpus(spec.places[0].cpus)
    step = {"keras.applications": plain, "TensorFlow 1 graph": graph}.get(kind, ours)(spec)
    for _ in range(WARMUP_STEPS):
        step()
    seconds = []
    for _ in range(STEPS):
        begin_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin_s)
    print(spec.global_batch / statistics.median(seconds))


if __name__ == "__main__":
    work(*sys.argv[1:])
    exit_without_cleanup(0)
