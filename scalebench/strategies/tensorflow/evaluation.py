"""Validation: sums over the samples of this process, put together over the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from scalebench.workloads.source import Source

Forward = Callable[[Any], tf.Tensor]
Sum = Callable[[list[float]], list[float]]


def mean_squared_errors(forward: Forward, source: Source, targets: Sequence[str], over_group: Sum) -> dict[str, float]:
    """{'mse': over all outputs, 'mse_<target>': of one, where they have names}, over all samples of all processes.

    `forward` gives the model's outputs for numpy inputs. `over_group` adds up numbers over the processes, all of
    which have to call this.
    """
    sums, samples = np.zeros(1), 0
    for batch in source.in_order():
        errors = (forward(batch.inputs).numpy() - batch.targets).reshape(batch.samples, -1)
        sums = sums + np.square(errors, dtype=np.float64).sum(0)
        samples += batch.samples
    *totals, count = over_group([*sums.tolist(), float(samples)])
    named = {f"mse_{name}": total / count for name, total in zip(targets, totals, strict=True)} if targets else {}
    return {"mse": sum(totals) / count / len(totals), **named}


def in_slices(forward: Forward, samples: int, inputs: Any) -> tf.Tensor:
    """`forward` of at most so many samples at a time."""
    return tf.concat([forward(inputs[first : first + samples]) for first in range(0, len(inputs), samples)], 0)


def classification(forward: Forward, source: Source, over_group: Sum) -> dict[str, float]:
    """{'cross_entropy': mean over the samples, 'accuracy': share of them whose largest output is the right one}; of a
    sample with several labels the mean over them."""
    sums, samples = np.zeros(2), 0
    for batch in source.in_order():
        outputs = forward(batch.inputs)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.targets, outputs).numpy()
        right = outputs.numpy().argmax(-1) == batch.targets
        means = [each.reshape(batch.samples, -1).mean(1, dtype=np.float64) for each in (losses, right)]
        sums += [mean.sum() for mean in means]
        samples += batch.samples
    entropy, right_sum, count = over_group([*sums.tolist(), float(samples)])
    return {"cross_entropy": entropy / count, "accuracy": right_sum / count}
