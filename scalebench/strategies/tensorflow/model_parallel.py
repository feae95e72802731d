"""Model parallelism in one process: the layers of one model in sequence over its devices, by tf.device.

What goes from device to device within one update of a model that is cut into stages, read off the traced graph and
the profiler.

An optimizer for the weights of each device, made and run there; together they are used as one.

A single one of Keras would put all gradients through one operation, to add them up over replicas, and its steps, which
name no device, on the first one: the gradients and weights of the others would go there and back in every update.

How long each stage of a model works by itself: forward and backward on its device, with what it gets in training.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from scalebench.core.errors import InputError
from scalebench.core.result import StageRecord
from scalebench.strategies.base import Loop, NotMeasured, Unsupported
from scalebench.strategies.tensorflow import central_storage, devices, observed, optimizer
from scalebench.strategies.tensorflow import optimizer as training
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import Part
from scalebench.strategies.tensorflow.model import NetworkModel
from scalebench.strategies.tensorflow.probes import Share
from scalebench.workloads import partition, user_code
from scalebench.workloads.network import Network
from scalebench.workloads.partition import NetworkStage

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
    events = observed.profiled(lambda: train(observed.Replay(batch)))
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


class StageOptimizers:
    """What the strategies use of an optimizer, but for a scale of the loss."""

    def __init__(self, make: Callable[[], training.Decaying]) -> None:
        self._make = make
        self.of_device: dict[str, training.Decaying] = {}

    @property
    def variables(self) -> list[keras.Variable]:
        return [variable for one in self.of_device.values() for variable in one.variables]

    def build(self, variables: Iterable[keras.Variable]) -> None:
        of_device: dict[str, list[keras.Variable]] = {}
        for variable in variables:
            of_device.setdefault(variable.value.device, []).append(variable)
        for device, own in of_device.items():
            with tf.device(device):
                self.of_device[device] = self._make()
                self.of_device[device].build(own)

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]) -> None:
        pairs = list(zip(gradients, variables, strict=True))
        for device, device_optimizer in self.of_device.items():
            own = [(gradient, variable) for gradient, variable in pairs if variable.value.device == device]
            with tf.device(device):
                device_optimizer.apply(*zip(*own, strict=True))

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def set_learning_rate(self, rate: float) -> None:
        for device_optimizer in self.of_device.values():
            training.set_learning_rate(device_optimizer, rate)


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


COSTS: dict[str, Callable[[Network], list[float]]] = {
    "flops": partition.node_training_flops,
    "size": partition.node_parameter_bytes,
}


@dataclass
class ModelParallelOptions:
    """Where the model is cut."""

    split: str = "flops"  # flops | size


class ModelParallel(TensorFlowStrategy):
    """All devices of one process, each with a stage of the one model. A batch goes through them whole, so that one
    device works while the others wait."""

    Options = ModelParallelOptions
    model: NetworkModel
    cut: list[NetworkStage]
    _exchange: tuple[list[int], InTurn] | None = None

    def shard(self) -> tuple[int, int]:
        return 0, 1  # whole batches go in at the first stage

    def setup(self) -> None:
        self._refuse()
        super().setup()

    def device_of(self, network: Network) -> dict[str, str]:
        try:
            self.cut = partition.split_into_stages(network, len(self.devices), COSTS[self.options.split](network))
        except InputError as reason:
            raise Unsupported(str(reason)) from None
        found = {
            node.name: device for stage, device in zip(self.cut, self.devices, strict=True) for node in stage.nodes
        }
        return {network.input.name: self.devices[0], **found}

    def plain_optimizer(self) -> Any:
        return StageOptimizers(super().plain_optimizer)

    def set_learning_rate(self, rate: float) -> None:
        self.optimizer.set_learning_rate(rate)

    def feed_devices(self) -> list[str]:
        """Of the samples; their targets go on to the last device within the update."""
        return self.devices[:1]

    def part_loss(self, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        outputs = self.model(inputs, training=True)
        with tf.device(self.devices[-1]):
            return tf.reduce_sum(self._loss(outputs, targets))

    def part_gradients(
        self, inputs: tf.Tensor, targets: tf.Tensor, mean_over: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """By tf.gradients, which leaves each gradient's operations where those of the forward pass are; a tape would
        have them all on the first device."""
        loss_sum = self.part_loss(inputs, targets)
        with tf.device(self.devices[-1]):
            loss = self.optimizer.scale_loss(loss_sum / mean_over)
        weights = [variable.value for variable in self.model.trainable_variables]
        gradients = []
        for weight, found in zip(weights, tf.gradients(loss, weights), strict=True):
            with tf.device(weight.device):
                gradients += optimizer.dense([found], [weight])
        return loss_sum, gradients

    def each_device(self, parts: tuple[Part, ...], global_samples: tf.Tensor, back: bool) -> list[Share]:
        """All devices have one share, with what their stages pass on; the gradients stay where they are."""
        ((loss_sum, gradients),) = super().each_device(parts, global_samples, back)
        return [Share(loss_sum, one_of_each(gradients))]

    def set_gradient_sync(self, on: bool) -> None:
        raise NotMeasured(
            f"{self.spec.config.strategy.name} has one model over all devices, and there is no update without what its "
            f"stages pass on"
        )

    def message_sizes(self) -> list[int]:
        """The activations at the cuts, and behind them their gradients, of a whole global batch."""
        return [self._bytes(tensor) for tensor in tensors(self._traced())]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        if len(self.devices) == 1:  # nobody to pass anything on to
            return
        if self._exchange is None or self._exchange[0] != sizes:
            self._exchange = sizes, InTurn(self.devices, sizes)
        self._exchange[1]()

    def local_step(self, batch: Any) -> list[float]:
        raise NotMeasured("each stage waits for the one before it; `stages` of the record tells how long each works")

    def backend_used(self) -> str | None:
        return observed_backend(self.train, self._traced(), self.last_batch)

    def stages(self) -> list[StageRecord]:
        """Seconds are of the last batch of the training, whose size it may be that it does not share."""
        if len(self.cut) == 1:
            return []
        work_s: list[float] | list[None] = [None] * len(self.cut)
        if self.last_batch is not None:
            work_s = seconds(self.model, self.cut, self.last_batch.parts[0], self._loss)
        return [self._record(stage, seconds) for stage, seconds in zip(self.cut, work_s, strict=True)]

    def _record(self, stage: NetworkStage, work_s: float | None) -> StageRecord:
        sent_bytes = math.prod(stage.output.shape) * self.model.computes_in.size * self.spec.global_batch
        held = [array for node in stage.nodes for array in node.arrays if array.trainable]
        return StageRecord(
            index=stage.index,
            stages=len(self.cut),
            replica=0,
            first=stage.nodes[0].name,
            last=stage.output.name,
            parameter_bytes=sum(4 * math.prod(array.shape) for array in held),
            micro_batches=1,
            sent_bytes=None if stage is self.cut[-1] else sent_bytes,
            work_s=work_s,
        )

    def _traced(self) -> Any:
        return self.update_function().get_concrete_function()

    def _bytes(self, tensor: tf.Tensor) -> int:
        """Of a tensor over the samples of a global batch."""
        shape = [self.spec.global_batch if size is None else size for size in tensor.shape]
        return math.prod(shape) * tensor.dtype.size

    def _refuse(self) -> None:
        settings, name = self.spec.config, self.spec.config.strategy.name
        if user_code.is_user_model(settings.model):
            raise Unsupported(
                f"{name} cuts networks of scalebench's own, and a Keras model of yours does not say where it can be cut"
            )
        central_storage.refuse_compiler(settings)
        if settings.train.accumulate > 1:
            raise Unsupported(
                f"{name} passes a batch on whole: the parts of train.accumulate would be added up on the first device, "
                f"where the gradients of all stages would go; leave it out"
            )
        if settings.train.precision == "float16":
            raise Unsupported(
                f"{name} has no train.precision=float16, for which Keras looks all gradients over on the first device; "
                f"use bfloat16"
            )
