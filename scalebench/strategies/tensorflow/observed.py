"""What really carried the gradients, read off the traced graph and the profiler and not off the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from scalebench.strategies.base import Loop, LossPart
from scalebench.strategies.tensorflow import xplane
from scalebench.strategies.tensorflow.precision import graphs

UPDATES = 2  # the first may still set something up
COLLECTIVES = ("CollectiveReduceV2", "CollectiveReduceV3", "CollectiveReduce", "NcclAllReduce")
NCCL_SIGNS = ("ncclDevKernel", "ncclKernel", "NcclAllReduce")  # its kernels, or TensorFlow's operation over it


class Replay:
    """A Loop that hands out one batch so many times."""

    def __init__(self, batch: Any, updates: int = UPDATES) -> None:
        self._batch, self._left = batch, updates

    def __iter__(self) -> Iterator[Any]:
        while self._left:
            yield self._batch

    def done(self, part: LossPart | None) -> bool:
        self._left -= 1
        return self._left == 0


def exchanges(function: Any) -> list[tf.Operation]:
    """Operations of a traced update that add up over devices, one of each message.

    A collective is one operation on every device, of which the first device's stand for all; without collectives
    it is an AddN whose addends come from several devices. Single numbers are left out: the sum of the losses, and
    whether the gradients are finite.
    """
    operations = [operation for graph in graphs(function.graph) for operation in graph.get_operations()]
    operations = [operation for operation in operations if operation.inputs and operation.inputs[0].shape.rank != 0]
    collectives = [operation for operation in operations if operation.type in COLLECTIVES]
    if collectives:
        return [operation for operation in collectives if operation.device == collectives[0].device]
    return [op for op in operations if op.type == "AddN" and len({addend.device for addend in op.inputs}) > 1]


def compiler(function: Any) -> str:
    """xla where a traced update hands a part of its work to it, else none."""
    calls = (op for graph in graphs(function.graph) for op in graph.get_operations() if "PartitionedCall" in op.type)
    return "xla" if any(_compiled_by_xla(call) for call in calls) else "none"


def _compiled_by_xla(call: tf.Operation) -> bool:
    try:
        return bool(call.get_attr("_XlaMustCompile"))
    except ValueError:  # it has no such attribute
        return False


def message_bytes(function: Any) -> list[int]:
    """Bytes of each message of one update, as one device sends it."""
    addends = [operation.inputs[0] for operation in exchanges(function)]
    return [addend.shape.num_elements() * addend.dtype.size for addend in addends]


def observed_backend(train: Callable[[Loop], None], function: Any, batch: Any) -> str | None:
    """nccl, ring or copy, whichever two more updates on `batch` were seen to use; None: nothing. Spoils the weights."""
    if batch is None:
        raise RuntimeError("backend_used replays the last batch of the training, and there was no training")
    wanted = {operation.name: operation.type for operation in exchanges(function.get_concrete_function())}
    events = profiled(lambda: train(Replay(batch)))
    if any(sign in event for event in events for sign in NCCL_SIGNS):
        return "nccl"
    ran = {wanted[name] for name in wanted if any(is_of(event, name) for event in events)}
    if ran & set(COLLECTIVES):
        return "ring"
    return "copy" if ran else None


def is_of(event: str, name: str) -> bool:
    """Whether it is that operation's; one of an inlined function has the call's name in front."""
    ran = event.partition(":")[0]
    return ran == name or ran.endswith(f"/{name}")


def profiled(action: Callable[[], None]) -> set[str]:
    """Names of all events while `action` ran; those of operations are 'name:type'."""
    with xplane.recorded() as lines:
        action()
    return {event.name for line in lines for event in line.events}


class AllReduce:
    """The gradients' all-reduce alone, on buffers of the given sizes on every replica."""

    def __init__(self, strategy: tf.distribute.Strategy, sizes_bytes: list[int]) -> None:
        # Arguments and not constants, which would be added up once, when the function is compiled.
        self._buffers = [
            strategy.experimental_distribute_values_from_function(
                lambda context, size=size: tf.zeros(max(1, size // 4))
            )
            for size in sizes_bytes
        ]

        @tf.function
        def run(buffers: list[Any]) -> Any:
            return [strategy.experimental_local_results(one) for one in strategy.run(_summed, (buffers,))]

        self._run = run

    def __call__(self) -> None:
        self._run(self._buffers)


def _summed(buffers: list[tf.Tensor]) -> list[tf.Tensor]:
    # The identity gives a tensor that came from outside a device, without which the sum has no destination.
    here = [tf.identity(buffer) for buffer in buffers]
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)
