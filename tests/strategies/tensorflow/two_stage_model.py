"""A model over two devices, samples for it, and the device of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from scalebench.strategies.tensorflow.batches import TfBatch

NAME = "model_parallel_tensorflow"
TWO = (f"strategy={NAME}", "gpus=2", "scaling=strong", "train.global_batch=10", "train.dropout=false")
RESNET = ("model=resnet20_cifar10", "dataset=cifar10_synthetic")


def batches(one: Any, sizes: tuple[int, ...]) -> list[TfBatch]:
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


def on(device: str) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index
