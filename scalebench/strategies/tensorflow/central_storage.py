"""Strategies with a single copy of the weights, on the CPU, the first device, or spread over all devices: devices read
the weights there, and the gradients of all devices are summed there. tf.distribute.experimental.CentralStorageStrategy
is one of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle
from typing import Any

import keras
import tensorflow as tf

from scalebench.strategies import refusals
from scalebench.strategies.base import never_measured
from scalebench.strategies.tensorflow import batches, optimizer
from scalebench.strategies.tensorflow.base import Exchange, TensorFlowStrategy, Tensors
from scalebench.strategies.tensorflow.batches import DevicePart
from scalebench.strategies.tensorflow.devices import create_buffer
from scalebench.strategies.tensorflow.mirrored import Replicated
from scalebench.workloads import user_code

SYNC_SCOPE = "sum_of_gradients"  # name scope of the operations that carry gradients between devices


def sum_gradients(per_device: Sequence[Tensors], targets: Sequence[str]) -> list[tf.Tensor]:
    """Sum each gradient over the devices, gradient i on the device i of `targets`, which are repeated where there are
    fewer. `per_device`: the same gradients from every device."""
    sums = []
    with tf.name_scope(SYNC_SCOPE):
        for parts, target in zip(zip(*per_device, strict=True), cycle(targets), strict=False):
            with tf.device(target):
                sums.append(tf.add_n(parts) if len(parts) > 1 else parts[0])
    return sums


def all_reduce_gradients(per_device: Sequence[Tensors], devices: Sequence[str], target: str) -> list[tf.Tensor]:
    """Sum like `sum_gradients`, by one NCCL all-reduce per gradient, whose result is then copied to `target`."""
    if len(devices) == 1:
        return sum_gradients(per_device, [target])
    sums = []
    for number, parts in enumerate(zip(*per_device, strict=True)):
        results = []
        for device, part in zip(devices, parts, strict=True):
            with tf.device(device), tf.name_scope(SYNC_SCOPE):
                settings = {"num_devices": len(devices), "shared_name": f"{SYNC_SCOPE}_{number}"}
                results.append(tf.raw_ops.NcclAllReduce(input=part, reduction="sum", **settings))
        # All of them must run: a pruned one would make the others wait forever.
        with tf.control_dependencies(results), tf.device(target):
            sums.append(tf.identity(results[0]))
    return sums


class SingleCopyStrategy(TensorFlowStrategy):
    """The base of strategies with one copy of the weights, whose synchronization is part of every step."""

    parameter_device: str
    sync_scope = SYNC_SCOPE

    def setup(self) -> None:
        super().setup()
        # The gradients are sums already. Keras' all-reduce over one replica, the process, would hold up all updates for
        # the last gradient, and take each gradient through the parameter device.
        optimizer.set_gradient_reduction(self.optimizer, on=False)

    @abstractmethod
    def reduce_gradients(self, per_device: Sequence[Tensors]) -> list[tf.Tensor]:
        """Sum each gradient over the devices, on the device that has the weights."""

    def update_weights(self, per_device: Sequence[Tensors], variables: Sequence[Any]) -> None:
        """Update the weights with the sums of these gradients."""
        sums = self.reduce_gradients(per_device)
        with tf.device(self.parameter_device):
            self.optimizer.apply(sums, variables)

    set_gradient_sync = never_measured("has one copy of the weights, with which every step begins and ends")

    def create_exchange(self, sizes: list[int]) -> Exchange:
        """Send buffers of these sizes from every device, and their sums back to all of them."""

        def run(buffers: list[list[tf.Tensor]]) -> list[tf.Tensor]:
            sums, copies = self.reduce_gradients(buffers), []
            for device in self.devices:
                with tf.device(device):
                    copies += [tf.identity(total) for total in sums]
            return copies

        return Exchange(run, [[create_buffer(device, size) for size in sizes] for device in self.devices])


class CentralStorage(SingleCopyStrategy, Replicated):
    """CentralStorageStrategy over all devices of one process. After every step, moving statistics become the mean over
    the replicas."""

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads full batches and splits them over its devices

    def setup(self) -> None:
        refusals.refuse(refusals.central_storage_rule(self.spec, self.options))
        super().setup()
        if user_code.is_user_model(self.spec.config.model):  # only the built model shows whether it has state
            has_state = bool(self.model.moving_statistics or self.model.random_states)
            refusals.refuse(refusals.accumulated_state_rule(self.spec.config, has_state))

    def join(self) -> None:
        self.parameter_device = "/CPU:0" if self.options.parameter_device == "cpu" else self.devices[0]
        self.strategy = tf.distribute.experimental.CentralStorageStrategy(self.devices, self.parameter_device)

    def scope(self) -> AbstractContextManager[Any]:
        return self._spread_scope() if self.options.parameter_device == "spread" else super().scope()

    @contextmanager
    def _spread_scope(self) -> Iterator[None]:
        """Create each variable on the device with the fewest bytes of variables so far, the first of equals, as
        ParamServerDeviceSetter of tf_cnn_benchmarks does. Slots of the optimizer are beside their weights. With
        float16, Keras unscales all gradients on the first device."""
        anchors, loads = [batches.copy_to_device((0.0,), device)[0] for device in self.devices], [0] * self.spec.gpus

        def create_on_least_loaded(create: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
            if settings.get("colocate_with") is not None:
                return create(**settings)
            least = loads.index(min(loads))
            variable = create(**settings | {"colocate_with": anchors[least]})
            loads[least] += variable.dtype.size * variable.shape.num_elements()
            return variable

        with self.strategy.scope(), tf.variable_creator_scope(create_on_least_loaded):
            yield

    def compute_step(self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """Compute gradients on the replicas, and apply each once on the device that has its weights.

        If the replicas called the optimizer, TensorFlow would sum on the CPU wherever the weights are, and copy the
        sums to the parameter device by way of the first replica's device.
        """
        results = self.compute_per_device(parts, global_samples, backward=True)
        self.update_weights([gradients for _, *gradients in results], self.model.trainable_variables)
        return tf.add_n([loss_sum for loss_sum, *_ in results])

    def compute(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor, backward: bool) -> Tensors:
        """Have each replica copy the weights to its device only once for all accumulated parts."""
        if self.spec.config.train.accumulate == 1:
            return super().compute(inputs, targets, global_samples, backward)
        trained = self.model.trainable_variables
        copies = [tf.identity(variable) for variable in trained]
        with keras.StatelessScope(state_mapping=list(zip(trained, copies, strict=True))) as scope:
            results = super().compute(inputs, targets, global_samples, backward)
        for variable in self.model.moving_statistics:  # the scope has only recorded assignments
            variable.assign(scope.get_current_value(variable))
        return results

    def reduce_gradients(self, per_device: Sequence[Tensors]) -> list[tf.Tensor]:
        return sum_gradients(per_device, [variable.value.device for variable in self.model.trainable_variables])
