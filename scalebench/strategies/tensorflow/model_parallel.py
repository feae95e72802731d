"""Model parallelism in one process: the layers of one model are split into stages, one per device, by tf.device.

Also the optimizers of the stages, and the tensors that are sent between stages (observed in the traced graph and the
profiler).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice, pairwise
from typing import Any

import keras
import tensorflow as tf

from scalebench.core.result import StageRecord
from scalebench.strategies import refusals
from scalebench.strategies.base import never_measured
from scalebench.strategies.tensorflow import devices, optimizer, profiling
from scalebench.strategies.tensorflow.base import Exchange, TensorFlowStrategy, Tensors
from scalebench.strategies.tensorflow.batches import DevicePart
from scalebench.strategies.tensorflow.model import NetworkModel
from scalebench.workloads import partition
from scalebench.workloads.network import Network
from scalebench.workloads.partition import NetworkStage

SEND_EVENT = ":_Send"  # where a tensor leaves a device, TensorFlow inserts such an operation below its name


def stage_transfers(function: Any) -> list[tf.Tensor]:
    """Return the tensors that are read on another device, once per reading device, in the order of the forward pass and
    then of the backward pass. Scalars (loss, learning rate) and fed samples and targets are left out."""
    transfers: dict[tuple[str, tf.DeviceSpec], tf.Tensor] = {}
    for operation in function.graph.get_operations():
        target = _operation_device(operation)
        for tensor in operation.inputs:
            source = _operation_device(tensor.op)
            # An operation without a device is placed with the variable that it reads or the value that it is fed.
            both_placed = source.device_type is not None and target.device_type is not None
            if both_placed and source != target and tensor.shape.rank != 0 and tensor.dtype != tf.resource:
                transfers.setdefault((tensor.name, target), tensor)
    return list(transfers.values())


def _operation_device(operation: tf.Operation) -> tf.DeviceSpec:
    spec = tf.DeviceSpec.from_string(operation.device)
    return tf.DeviceSpec(device_type=spec.device_type, device_index=spec.device_index)


class StageOptimizers:
    """An optimizer per device, created and run on it, with the interface of one optimizer; it does not scale losses.

    A single Keras optimizer would pass all gradients through one operation, which sums them over replicas, and run its
    step on the first device: gradients and weights of the others would be copied there and back in every step.
    """

    def __init__(self, create: Callable[[], optimizer.DecayingOptimizer]) -> None:
        self._create = create
        self.by_device: dict[str, optimizer.DecayingOptimizer] = {}

    @property
    def variables(self) -> list[keras.Variable]:
        return [variable for each in self.by_device.values() for variable in each.variables]

    def build(self, variables: Iterable[keras.Variable]) -> None:
        groups: dict[str, list[keras.Variable]] = {}
        for variable in variables:
            groups.setdefault(variable.value.device, []).append(variable)
        for device, group in groups.items():
            with tf.device(device):
                self.by_device[device] = self._create()
                self.by_device[device].build(group)

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]) -> None:
        pairs = list(zip(gradients, variables, strict=True))
        for device, device_optimizer in self.by_device.items():
            local = [(gradient, variable) for gradient, variable in pairs if variable.value.device == device]
            with tf.device(device):
                device_optimizer.apply(*zip(*local, strict=True))

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def set_learning_rate(self, rate: float) -> None:
        for device_optimizer in self.by_device.values():
            optimizer.set_learning_rate(device_optimizer, rate)


def first_elements(arrays: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Return the first element of each array. TensorFlow copies a function's results to the first device, which takes
    time, and prunes what is not returned."""
    elements = []
    for array in map(tf.convert_to_tensor, arrays):
        with tf.device(array.device):
            elements.append(tf.reshape(array, [-1])[0])
    return elements


class TensorFlowModelParallel(TensorFlowStrategy):
    """Model parallelism over all devices of one process, each with one stage. A batch passes through the stages as a
    unit, so that one device works while the others wait."""

    model: NetworkModel
    network_stages: list[NetworkStage]

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads full batches for the first stage

    def setup(self) -> None:
        refusals.refuse(refusals.tensorflow_stages_rule(self.spec, self.options))
        super().setup()

    def node_devices(self, network: Network) -> dict[str, str]:
        costs = partition.COUNTED_COSTS[self.options.split](network)
        self.network_stages = partition.split_into_stages(network, len(self.devices), costs)
        pairs = zip(self.network_stages, self.devices, strict=True)
        by_node = {node.name: device for stage, device in pairs for node in stage.nodes}
        return {network.input.name: self.devices[0], **by_node}

    def create_base_optimizer(self) -> Any:
        return StageOptimizers(super().create_base_optimizer)

    def set_learning_rate(self, rate: float) -> None:
        self.optimizer.set_learning_rate(rate)

    def input_devices(self) -> list[str]:
        """Return the first device, which gets the samples; the step copies their targets to the last device."""
        return self.devices[:1]

    def sum_losses(self, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        outputs = self.model(inputs, training=True)
        with tf.device(self.devices[-1]):
            return tf.reduce_sum(self._loss(outputs, targets))

    def compute_part(self, inputs: tf.Tensor, targets: tf.Tensor, mean_over: tf.Tensor, backward: bool) -> Tensors:
        """Compute gradients with tf.gradients, which places their operations with those of the forward pass; a tape
        would place them all on the first device."""
        loss_sum, gradients = self.sum_losses(inputs, targets), []
        if not backward:
            return [loss_sum]
        with tf.device(self.devices[-1]):
            loss = self.optimizer.scale_loss(loss_sum / mean_over)
        weights = [variable.value for variable in self.model.trainable_variables]
        for weight, gradient in zip(weights, tf.gradients(loss, weights), strict=True):
            with tf.device(weight.device):
                gradients += optimizer.dense_gradients([gradient], [weight])
        return [loss_sum, *gradients]

    def compute_per_device(
        self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor, backward: bool
    ) -> list[Tensors]:
        """Return one result for all devices, including their stage transfers; gradients stay on their devices."""
        ((loss_sum, *gradients),) = super().compute_per_device(parts, global_samples, backward)
        return [[loss_sum, *first_elements(gradients)]]

    set_gradient_sync = never_measured("has one model over all devices: no step is without what its stages pass on")
    local_step = never_measured("has stages that wait for the one before")

    def message_sizes(self) -> list[int]:
        """Return the bytes of the activations between stages for a global batch, then those of their gradients."""
        batch = self.spec.global_batch
        return [
            math.prod(batch if size is None else size for size in tensor.shape) * tensor.dtype.size
            for tensor in stage_transfers(self.step_function().get_concrete_function())
        ]

    def create_exchange(self, sizes: list[int]) -> Exchange:
        """Copy buffers of these sizes from device to device, one after the other: forward, back, and again."""
        forward = list(pairwise(self.devices))
        back = [(target, source) for source, target in reversed(forward)]
        hops = list(islice(cycle([*forward, *back]), len(sizes)))

        def run(buffers: list[tf.Tensor]) -> list[tf.Tensor]:
            copies: list[tf.Tensor] = []
            for buffer, (source, target) in zip(buffers, hops, strict=True):
                with tf.device(source), tf.control_dependencies(copies[-1:]):
                    sent = tf.identity(buffer)
                with tf.device(target):
                    copies.append(tf.identity(sent))
            return copies

        sources = [source for source, _ in hops]
        return Exchange(run, [devices.create_buffer(*each) for each in zip(sources, sizes, strict=False)])

    def backend_used(self) -> str | None:
        """Train two more steps; return copy if one of the stage transfers was sent. Spoils the weights."""
        names = {tensor.op.name for tensor in stage_transfers(self.step_function().get_concrete_function())}
        lines, _ = profiling.record_steps(self.train, self.last_batch)
        events = [event.name for line in lines for event in line.events if event.name.endswith(SEND_EVENT)]
        sent = {event.partition(":")[0].rpartition("/")[0] for event in events}  # stage/Relu of stage/Relu/_29:_Send
        return "copy" if names & sent else None

    def stages(self) -> list[StageRecord]:
        """Return the stages, without their times: TensorFlow runs a step as one function of all devices."""
        stages = self.network_stages if len(self.network_stages) > 1 else []
        item_bytes = self.model.activation_dtype.size * self.spec.global_batch
        return [
            StageRecord(
                index=stage.index,
                stages=len(stages),
                replica=0,
                first=stage.nodes[0].name,
                last=stage.output.name,
                parameter_bytes=stage.parameter_bytes,
                micro_batches=1,
                sent_bytes=None if stage is stages[-1] else math.prod(stage.output.shape) * item_bytes,
            )
            for stage in stages
        ]
