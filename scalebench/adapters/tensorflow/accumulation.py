"""`train.accumulate`: the samples of one update on one device in parts, one after the other, and what they give added
up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

OfPart = Callable[[tf.Tensor, tf.Tensor], list[tf.Tensor]]
Shape = Sequence[int]


def summed(
    of_part: OfPart, inputs: tf.Tensor, targets: tf.Tensor, parts: int, shapes: Sequence[Shape]
) -> list[tf.Tensor]:
    """The sums over the parts of what `of_part` gives for each: float32, of these shapes.

    Parts differ by at most one sample, and there are as many as samples where there are fewer of these. It is a loop of
    the graph that does one turn at a time, so that no two parts' activations are in memory together, and no number of
    samples or parts traces anything anew.
    """
    samples = tf.shape(inputs)[0]
    count = tf.minimum(parts, samples)
    share, rest = samples // count, samples % count

    def turn(number: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        start = number * share + tf.minimum(number, rest)
        stop = start + share + tf.cast(number < rest, tf.int32)
        found = of_part(inputs[start:stop], targets[start:stop])
        return number + 1, [total + one for total, one in zip(sums, found, strict=True)]

    nothing = tf.constant(0), [tf.zeros(shape) for shape in shapes]
    _, sums = tf.while_loop(lambda number, sums: number < count, turn, nothing, parallel_iterations=1)
    return list(sums)
