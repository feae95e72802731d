"""How long each stage of a model works by itself: forward and backward on its device, with what it gets in training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from scalebench.adapters.tensorflow import devices
from scalebench.adapters.tensorflow.feeding import Part
from scalebench.adapters.tensorflow.network import NetworkModel
from scalebench.workloads.partition import NetworkStage

REPEATS = 5  # after a first one, which traces
Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def seconds(model: NetworkModel, cut: Sequence[NetworkStage], part: Part, loss: Loss) -> list[float]:
    """Of each stage in turn, the median; the other devices have nothing to do. Moves moving statistics."""
    inputs, targets = part
    with model.device(cut[-1].output):
        targets = tf.identity(targets)
    return [
        _timed(_alone(model, stage, loss if stage is cut[-1] else None), read, targets)
        for stage, read in zip(cut, _read(model, cut, inputs), strict=True)
    ]


def _read(model: NetworkModel, cut: Sequence[NetworkStage], inputs: tf.Tensor) -> list[tf.Tensor]:
    """What each stage reads, on the device of the stage."""

    def forward(inputs: tf.Tensor) -> list[tf.Tensor]:
        outputs = model.begun(inputs)
        model.through(model.network.nodes[1:], outputs, training=True)
        return [outputs[stage.source.name] for stage in cut]

    here = []
    for stage, read in zip(cut, tf.function(forward, jit_compile=False, autograph=False)(inputs), strict=True):
        with model.device(stage.nodes[0]):
            here.append(tf.identity(read))
    return here


def _alone(model: NetworkModel, stage: NetworkStage, loss: Loss | None) -> Callable[..., Any]:
    """(what the stage reads, targets) -> a number of each gradient that it finds. `loss`: of the last stage; the others
    begin with the gradients of their outputs, for which ones stand."""
    arrays = [array for node in stage.nodes for array in node.arrays if array.trainable]
    weights = [model.variable_of[array.name].value for array in arrays]

    def run(read: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        outputs = {stage.source.name: read}
        model.through(stage.nodes, outputs, training=True)
        with model.device(stage.output):
            y = outputs[stage.output.name]
            ends = y if loss is None else tf.reduce_sum(loss(tf.cast(y, tf.float32), targets))
            begins = tf.ones_like(ends)
        wanted = weights if stage.index == 0 else [read, *weights]  # nobody wants those of the samples
        return one_of_each(found for found in tf.gradients(ends, wanted, grad_ys=begins) if found is not None)

    return tf.function(run, jit_compile=False, autograph=False)


def one_of_each(arrays: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Their first numbers. What a function gives back goes to the first device, which takes time, and what it does not
    give back is not computed."""
    found = []
    for array in map(tf.convert_to_tensor, arrays):
        with tf.device(array.device):
            found.append(tf.reshape(array, [-1])[0])
    return found


def _timed(run: Callable[..., Any], read: tf.Tensor, targets: tf.Tensor) -> float:
    found = []
    for _ in range(REPEATS + 1):
        devices.synchronize()
        start = time.perf_counter()
        run(read, targets)
        devices.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])
