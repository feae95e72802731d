"""Overrides that many tests share, a model over two devices and samples for it, and how far replicas are apart."""

import numpy as np
import tensorflow as tf

from scalebench.strategies.tensorflow.batches import TfBatch
from scalebench.workloads.network import Network

BARE = ("strategy=bare_tensorflow", "gpus=1")
MIRRORED = ("strategy=mirrored", "gpus=2")
FIT = "strategy.options.loop=fit"
IMAGES = ("model=resnet20_cifar10", "dataset=cifar10_synthetic", "train.dropout=false")
SMALL_IMAGES = (*IMAGES, "model.params=null")  # with the fixture `small_network`
SMALL_PARAMS = (27 * 4 + 4) + 8 + (36 * 6 + 6) + 12 + (24 * 11 + 11)
BYTES = 4 * 153_441  # of the gradients of the materials CNN
TWO = ("strategy=model_parallel_tensorflow", "gpus=2", "scaling=strong", "train.global_batch=10", "train.dropout=false")
RESNET = ("model=resnet20_cifar10", "dataset=cifar10_synthetic")


def build_small_network(model):
    """Build what there is of everything: two convolutions, normalised, and a layer behind them."""
    net = Network("small", tuple(model.input_shape))
    x = net.relu(net.batch_norm(net.conv(net.input, "conv1", 4, 3, 4), "bn1"))
    net.dense(net.flatten(net.batch_norm(net.conv(x, "conv2", 6, 3, 4), "bn2")), "dense", model.outputs)
    return net


def batches(one, sizes):
    """Of made-up samples; the last ones of an epoch are fewer."""
    rng, config, found = np.random.default_rng(0), one.spec.config, []
    for size in sizes:
        inputs = rng.normal(size=(size, *config.model.input_shape)).astype(np.float32)
        targets = rng.normal(size=(size, *config.model.target_shape)).astype(np.float32)
        if config.dataset.classes is not None:
            inputs = rng.integers(0, 255, inputs.shape).astype(np.uint8)
            targets = rng.integers(0, config.dataset.classes, size)
        found.append(
            one.to_step_batch(TfBatch(((tf.constant(inputs), tf.constant(targets)),), size, tf.constant(float(size))))
        )
    return found


def on(device):
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index


def replica_weights(one):
    local = getattr(getattr(one, "strategy", None), "experimental_local_results", lambda value: [value])
    return [copy.numpy() for variable in one.model.trained for copy in local(variable.value)]


def apart(one):
    """Return the largest difference between the weights of two replicas."""
    weights = replica_weights(one)
    return max(float(np.abs(a - b).max()) for a, b in zip(weights[::2], weights[1::2], strict=True))
