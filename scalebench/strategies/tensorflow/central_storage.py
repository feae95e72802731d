"""tf.distribute.experimental.CentralStorageStrategy: one copy of the weights, on the CPU or on the first device.

One copy of the weights, on one device: gradients of all devices are added up there, weights come from there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from scalebench.core.spec import Config
from scalebench.strategies.base import OPTIMIZER, NotMeasured, Unsupported
from scalebench.strategies.tensorflow import observed
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import Part
from scalebench.strategies.tensorflow.mirrored import Replicated
from scalebench.workloads import networks, user_code

SCOPE = "sum_of_gradients"  # in the names of the operations that carry gradients between devices
Tensors = Sequence[tf.Tensor]
Sum = Callable[[Sequence[Tensors]], list[tf.Tensor]]


def refuse_compiler(config: Config) -> None:
    """Unsupported where XLA is asked for."""
    if config.train.compile:
        raise Unsupported(
            f"{config.strategy.name} is one program over several devices, and train.compile=true would put it all on "
            f"one of them, without a word from XLA"
        )


def refuse_parts(config: Config) -> None:
    """Unsupported where an update is to be computed in parts."""
    if config.train.accumulate > 1:
        raise Unsupported(
            f"{config.strategy.name} computes the samples of an update at once, a tower of its graph for each device; "
            f"leave out train.accumulate, or take strategy=mirrored"
        )


def no_switch(config: Config) -> NotMeasured:
    """Why the exchange cannot be switched off."""
    return NotMeasured(
        f"{config.strategy.name} has one copy of the weights, and there is no update without the gradients' way to it"
    )


def added_up(of_devices: Sequence[Tensors], device: str) -> list[tf.Tensor]:
    """The sum over the devices of each gradient, on `device`. `of_devices`: the same gradients from every device."""
    with tf.device(device), tf.name_scope(SCOPE):
        return [tf.add_n(parts) if len(parts) > 1 else parts[0] for parts in zip(*of_devices, strict=True)]


def all_reduced(of_devices: Sequence[Tensors], devices: Sequence[str], device: str) -> list[tf.Tensor]:
    """As added_up, by one NCCL all-reduce for each gradient, whose result is then taken to `device`."""
    if len(devices) == 1:
        return added_up(of_devices, device)
    sums = []
    for number, parts in enumerate(zip(*of_devices, strict=True)):
        results = []
        for own, part in zip(devices, parts, strict=True):
            with tf.device(own), tf.name_scope(SCOPE):
                results.append(_nccl_sum(part, len(devices), f"{SCOPE}_{number}"))
        # All of them have to run, or those that do wait for ever.
        with tf.control_dependencies(results), tf.device(device):
            sums.append(tf.identity(results[0]))
    return sums


def _nccl_sum(part: tf.Tensor, devices: int, name: str) -> tf.Tensor:
    return tf.raw_ops.NcclAllReduce(input=part, reduction="sum", num_devices=devices, shared_name=name)


def message_bytes(function: Any) -> list[int]:
    """Bytes of each gradient of one traced update, as one device sends it.

    Every other device sends as many, and the weights come the other way in as many bytes again; samples, outputs,
    losses and moving statistics are not counted.
    """
    addends = [operation.inputs[0] for operation in observed.exchanges(function) if SCOPE in operation.name]
    return [addend.shape.num_elements() * addend.dtype.size for addend in addends]


class RoundTrip:
    """The exchange of one update alone: buffers of these sizes from every device, their sums back to all of them."""

    def __init__(self, devices: Sequence[str], sizes_bytes: Sequence[int], total: Sum) -> None:
        self._buffers = [self._on(device, sizes_bytes) for device in devices]

        @tf.function(jit_compile=False)
        def run(buffers: list[list[tf.Tensor]]) -> list[tf.Tensor]:
            sums = total(buffers)
            back = []
            for device in devices:
                with tf.device(device):
                    back += [tf.identity(one) for one in sums]
            return back

        self._run = run

    def __call__(self) -> None:
        self._run(self._buffers)

    @staticmethod
    def _on(device: str, sizes_bytes: Sequence[int]) -> list[tf.Tensor]:
        with tf.device(device):
            return [tf.zeros(max(1, size // 4)) for size in sizes_bytes]


class OneCopy(TensorFlowStrategy):
    """The exchange of a strategy whose weights are in one place."""

    _round_trip: tuple[list[int], RoundTrip] | None = None

    @abstractmethod
    def total(self, of_devices: Sequence[Tensors]) -> list[tf.Tensor]:
        """The sum over the devices of each gradient, where the weights are."""

    def set_gradient_sync(self, on: bool) -> None:
        raise no_switch(self.spec.config)

    def message_sizes(self) -> list[int]:
        """As central.message_bytes says."""
        return message_bytes(self.update_function().get_concrete_function())

    def carriers(self) -> set[str]:
        return {name for name in super().carriers() if SCOPE in name}

    def partial_step(self, batch: Any, until: str) -> None:
        """The weights come to the devices on the forward pass."""
        if until == OPTIMIZER:
            raise no_switch(self.spec.config)
        super().partial_step(batch, until)

    def run_isolated_sync(self, sizes: list[int]) -> None:
        if len(self.devices) == 1:  # nobody to exchange with, and nothing is exchanged
            return
        if self._round_trip is None or self._round_trip[0] != sizes:
            self._round_trip = sizes, RoundTrip(self.devices, sizes, self.total)
        self._round_trip[1]()


@dataclass
class CentralStorageOptions:
    """Where the weights are."""

    parameter_device: str = "cpu"  # cpu | first


class CentralStorage(OneCopy, Replicated):
    """All devices of one process. Moving statistics are the mean over the replicas' after every update."""

    Options = CentralStorageOptions

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads whole batches, and deals them out to its devices

    def setup(self) -> None:
        model = self.spec.config.model
        refuse_compiler(self.spec.config)
        if user_code.is_user_model(model):
            super().setup()  # only then is it known what it has
            self._refuse_parts(bool(self.model.moving or self.model.drawing))
        else:
            self._refuse_parts(any(not array.trainable for array in networks.build_network(model).arrays))
            super().setup()

    def _refuse_parts(self, keeps_state: bool) -> None:
        settings = self.spec.config
        if settings.train.accumulate > 1 and keeps_state:
            raise Unsupported(
                f"{settings.strategy.name} puts moving statistics together after every forward pass, which it cannot "
                f"do within an update: leave out train.accumulate, or take a model without batch normalisation"
                + (", or dropout" if user_code.is_user_model(settings.model) else "")
            )

    def join(self) -> None:
        known = {"cpu": "/CPU:0", "first": self.devices[0]}
        self.parameter_device = known[self.options.parameter_device]
        self.strategy = tf.distribute.experimental.CentralStorageStrategy(self.devices, self.parameter_device)

    def update(self, parts: tuple[Part, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """The replicas find the gradients, and the update is made once, where the weights are.

        An optimizer called by the replicas would have the sums formed on the CPU wherever the weights are, and take
        them to the parameter device by way of the first replica's.
        """
        loss_sums, gradients = self.strategy.run(self.gradients, (*self.dealt_out(parts), global_samples))
        of_gradients = [self.strategy.experimental_local_results(gradient) for gradient in gradients]
        sums = self.total(list(zip(*of_gradients, strict=True)))
        with tf.device(self.parameter_device):
            self.optimizer.apply(sums, self.model.trainable_variables)
        return tf.add_n(self.strategy.experimental_local_results(loss_sums))

    def gradients(
        self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """With weights that come to the device once, into however many parts its samples are cut."""
        if self.spec.config.train.accumulate == 1:
            return super().gradients(inputs, targets, global_samples)
        here = [(variable, tf.identity(variable)) for variable in self.model.trainable_variables]
        with keras.StatelessScope(state_mapping=here):
            return super().gradients(inputs, targets, global_samples)

    def total(self, of_devices: Sequence[Tensors]) -> list[tf.Tensor]:
        return added_up(of_devices, self.parameter_device)
