"""What goes from device to device within one update of a model that is cut into stages, read off the traced graph and
the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

from scalebench.adapters.tensorflow import evidence
from scalebench.strategy import Loop

SENT = "_Send"  # the operation that TensorFlow puts where a tensor leaves a device; it has the tensor's name in front


def tensors(function: Any) -> list[tf.Tensor]:
    """The tensors that operations on another device read, one for each such device, in the order of the forward pass
    and then of the backward pass.

    Left out are single numbers (the loss, the learning rate), and what is fed in: samples and targets.
    """
    found: dict[tuple[str, tf.DeviceSpec], tf.Tensor] = {}
    for operation in function.graph.get_operations():
        there = _device(operation)
        for tensor in operation.inputs:
            if _crosses(tensor, there):
                found.setdefault((tensor.name, there), tensor)
    return list(found.values())


def observed_backend(train: Callable[[Loop], None], function: Any, batch: Any) -> str | None:
    """copy, if two more updates on `batch` were seen to send such a tensor on; None: nothing. Spoils the weights."""
    if batch is None:
        raise RuntimeError("backend_used replays the last batch of the training, and there was no training")
    names = {tensor.op.name for tensor in tensors(function)}
    events = evidence.profiled(lambda: train(evidence.Replay(batch)))
    return "copy" if names & sent(events) else None


def sent(events: set[str]) -> set[str]:
    """Names of the operations whose outputs left their device: 'stage/Relu/_29:_Send' is of stage/Relu."""
    return {event.partition(":")[0].rpartition("/")[0] for event in events if event.endswith(f":{SENT}")}


class InTurn:
    """Buffers of these sizes taken from device to device, one after the other: forward, then back, then anew."""

    def __init__(self, devices: Sequence[str], sizes_bytes: Sequence[int]) -> None:
        forward = list(pairwise(devices))
        hops = [*forward, *((there, here) for here, there in reversed(forward))]
        self._ways = [hops[number % len(hops)] for number in range(len(sizes_bytes))]
        self._buffers = []
        for (here, _), size in zip(self._ways, sizes_bytes, strict=True):
            with tf.device(here):
                self._buffers.append(tf.zeros(max(1, size // 4)))
        self._run = tf.function(self._taken, jit_compile=False, autograph=False)

    def __call__(self) -> None:
        self._run(self._buffers)

    def _taken(self, buffers: list[tf.Tensor]) -> list[tf.Tensor]:
        arrived: list[tf.Tensor] = []
        for buffer, (here, there) in zip(buffers, self._ways, strict=True):
            with tf.device(here), tf.control_dependencies(arrived[-1:]):
                leaves = tf.identity(buffer)
            with tf.device(there):
                arrived.append(tf.identity(leaves))
        return arrived


def _crosses(tensor: tf.Tensor, there: tf.DeviceSpec) -> bool:
    """What names no device is put where the variable is that it reads, or follows what it is fed."""
    here = _device(tensor.op)
    named = here.device_type is not None and there.device_type is not None
    return named and here != there and tensor.shape.rank != 0 and tensor.dtype != tf.resource


def _device(operation: tf.Operation) -> tf.DeviceSpec:
    spec = tf.DeviceSpec.from_string(operation.device)
    return tf.DeviceSpec(device_type=spec.device_type, device_index=spec.device_index)
