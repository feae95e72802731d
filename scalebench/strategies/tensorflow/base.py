"""The base class of all TensorFlow strategies: devices, model, optimizer, a compiled training step and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import LossPart, refuse_other_weights
from scalebench.strategies.tensorflow import batches, devices, optimizer, profiling, user_model
from scalebench.strategies.tensorflow.batches import DevicePart, TfBatch
from scalebench.strategies.tensorflow.cluster import WorkerGroup
from scalebench.strategies.tensorflow.model import NetworkModel, read_weights
from scalebench.strategies.tensorflow.probes import DeviceResult, TensorFlowProbes
from scalebench.strategies.tensorflow.user_model import UserModel
from scalebench.workloads import metrics, networks, records, user_code
from scalebench.workloads.network import Network
from scalebench.workloads.source import Source
from scalebench.workloads.weights import initial_weights


class TensorFlowStrategy(TensorFlowProbes):
    """One replica of the model on one device, without synchronization; subclasses add it."""

    model: NetworkModel | UserModel
    devices: list[str]
    workers: WorkerGroup | None = None

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._loss = optimizer.loss_function(spec.config.model.loss)
        self._functions: dict[bool, Callable[..., tf.Tensor]] = {}  # by syncs_gradients

    def join(self) -> None:
        """Join the other processes, if there are any, as by `self.workers`. `self.devices` is already set."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which model and optimizer are created."""
        return nullcontext()

    def setup(self) -> None:
        settings = self.spec.config
        if user_code.is_user_model(settings.model):
            user_model.refuse_unsupported(settings)
        self.devices = devices.configure_devices(self.spec.device, self.place)
        compute_dtype = devices.configure_precision(settings.train.precision, self.devices[0])
        if settings.train.data_format != "default":
            # Keep the configured memory layout: on GPUs TensorFlow's layout optimizer would change it.
            tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
        self.join()  # before the first operation, which fixes TensorFlow's set of devices
        if settings.train.data_format == "nchw":
            devices.check_channels_first(self.devices[0], compute_dtype)
        tf.random.set_seed(settings.seed + self.place.rank)  # for dropout; initial weights come from numpy
        with self.scope():
            self.model = self._build_model(compute_dtype)
            self.optimizer = self.create_base_optimizer()
            if settings.train.precision == "float16":  # dynamic loss scaling keeps small gradients from underflowing
                self.optimizer = optimizer.SummingLossScaleOptimizer(self.optimizer)
            self.optimizer.build(self.model.trainable_variables)
        if isinstance(self.model, UserModel) and self.spec.processes > 1 and not self.spec.services:
            label, weights = user_code.label_function(settings.model, "keras"), read_weights(self.model).values()
            refuse_other_weights(weights, label, "Keras", self.broadcast, self.sum_over_group)
        self._compute_part_loss, self._compute_part_gradients = self.compute_part_loss, self.compute_part_gradients
        if settings.train.compile == "default":  # one replica on one device at a time: XLA ignores device placement
            self._compute_part_loss = tf.function(self.compute_part_loss, jit_compile=True, autograph=False)
            self._compute_part_gradients = tf.function(self.compute_part_gradients, jit_compile=True, autograph=False)
        self._forward = tf.function(self.forward, input_signature=[self._part_spec()[0]], autograph=False)
        for device, peak in zip(self.devices, self.peak_memory_bytes(), strict=False):
            if peak is not None:  # setup may have had more than a step has, such as initial weights beside their copies
                tf.config.experimental.reset_memory_stats(device.removeprefix("/"))

    def create_base_optimizer(self) -> Any:
        """Create the optimizer without loss scaling; it is not built yet."""
        return optimizer.create_optimizer(self.spec.config.train, self.spec.learning_rate)

    def node_devices(self, network: Network) -> dict[str, str]:
        """Return the device of each node by name, if they are not all on the device of `scope`."""
        return {}

    def input_devices(self) -> list[str]:
        """Return the devices that the parts of a batch are copied to, one part to each."""
        return self.devices

    def feed(self, source: Source) -> Iterable[TfBatch]:
        settings = self.spec.config.dataset
        return batches.feed_batches(source, self.input_devices(), settings.feed, settings.prefetch)

    def step(self, batch: TfBatch) -> LossPart | None:
        self.keep_batch(batch)
        return LossPart(self.step_function()(batch.parts, batch.global_samples), batch.samples)

    def step_function(self) -> Callable[..., tf.Tensor]:
        """Return the compiled step, with or without gradient synchronization: (parts, global samples) -> loss sum."""
        if self.syncs_gradients not in self._functions:
            self._functions[self.syncs_gradients] = tf.function(
                self.compute_step, input_signature=self.step_signature(), jit_compile=False, autograph=False
            )
        return self._functions[self.syncs_gradients]

    def compute_step(self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """Train one step on the parts of all devices; return the sum of the losses over their samples."""
        (part,) = parts
        return self.replica_step(*part, global_samples)

    def replica_step(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Train one replica's step. Gradients summed over the replicas are those of the mean over the global batch."""
        loss_sum, gradients = self.compute_gradients(inputs, targets, global_samples)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss_sum

    def compute_gradients(
        self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return (sum of the losses, gradients of this replica's share of the mean loss) for one replica's samples."""
        parts, mean_over = self.spec.config.train.accumulate, self.loss_divisor(inputs, global_samples)
        if parts == 1:
            return self._compute_part_gradients(inputs, targets, mean_over)

        def process_part(inputs: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
            loss_sum, gradients = self._compute_part_gradients(inputs, targets, mean_over)
            return [loss_sum, *gradients]

        shapes = [(), *(variable.shape for variable in self.model.trainable_variables)]
        loss_sum, *gradients = optimizer.accumulate_parts(process_part, inputs, targets, parts, shapes)
        return loss_sum, gradients

    def compute_loss(self, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Run one replica's forward pass in training mode; return the sum of the losses over its samples."""
        parts = self.spec.config.train.accumulate
        if parts == 1:
            return self._compute_part_loss(inputs, targets)
        (loss_sum,) = optimizer.accumulate_parts(
            lambda *part: [self._compute_part_loss(*part)], inputs, targets, parts, [()]
        )
        return loss_sum

    def compute_part_gradients(
        self, inputs: tf.Tensor, targets: tf.Tensor, mean_over: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Compute gradients like `compute_gradients`, for samples that are processed at once."""
        weights = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch([weight for weight in weights if tf.is_tensor(weight)])  # the tape watches variables by itself
            loss_sum = self.compute_part_loss(inputs, targets)
            loss = self.optimizer.scale_loss(loss_sum / mean_over)
        return loss_sum, optimizer.dense_gradients(tape.gradient(loss, weights), weights)

    def compute_part_loss(self, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Compute the loss like `compute_loss`, for samples that are processed at once."""
        return tf.reduce_sum(self._loss(self.model(inputs, training=True), targets))

    def compute_per_device(
        self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor, backward: bool
    ) -> list[DeviceResult]:
        """Compute the loss, and with `backward` the gradients, on every device, without synchronization."""
        (part,) = parts
        if backward:
            return [DeviceResult(*self.compute_gradients(*part, global_samples))]
        return [DeviceResult(self.compute_loss(*part), [])]

    def set_learning_rate(self, rate: float) -> None:
        optimizer.set_learning_rate(self.optimizer, rate)

    def loss_divisor(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Return the number of samples that the loss is averaged over."""
        return global_samples

    def forward(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the model's outputs, for validation."""
        return self.model(inputs, training=False)

    def synchronize(self) -> None:
        devices.synchronize()

    def broadcast(self, value: float) -> float:
        return value if self.workers is None else self.workers.sum([value if self.place.rank == 0 else 0.0])[0]

    def sum_over_group(self, values: list[float]) -> list[float]:
        """Return the sums of the values over the processes, all of which must call this."""
        return values if self.workers is None else self.workers.sum(values)

    def backend_used(self) -> str | None:
        if self.spec.gpus == 1:
            return None
        return profiling.observe_backend(self.train, self.step_function(), self.last_batch)

    def evaluate(self, source: Source) -> dict[str, float]:
        model, train, forward = self.spec.config.model, self.spec.config.train, self._forward
        if self.spec.config.dataset.dtype == records.RECORD:
            forward = lambda inputs: self._forward(batches.to_tensors(inputs))  # noqa: E731
        if train.accumulate > 1:  # a full batch may not fit on the device
            forward = partial(batches.apply_in_slices, forward, -(-self.spec.batch_per_device // train.accumulate))
        with tf.device(self.devices[0]):
            ordered = batches.read_with_tensorflow(source).in_order()
            return metrics.measure_outputs(
                model, lambda inputs: np.array(forward(inputs)), ordered, self.sum_over_group
            )

    def settings_used(self) -> dict[str, str]:
        function = self.step_function().get_concrete_function()
        fixed_layout = self.spec.config.train.data_format != "default"
        return profiling.settings_used(function, self.devices[0], fixed_layout)

    def num_params(self) -> int:
        return sum(math.prod(variable.shape) for variable in self.model.trainable_variables)

    def parameters(self) -> dict[str, Any]:
        return read_weights(self.model)

    def flops_per_sample(self) -> float | None:
        return self.model.flops_per_sample if isinstance(self.model, UserModel) else None

    def peak_memory_bytes(self) -> list[int | None]:
        return [devices.peak_memory_bytes(device) for device in self.devices]

    def state_bytes(self) -> list[int | None]:
        """Return the bytes of weights, moving statistics and optimizer variables on the device that holds them, 0 for a
        device that holds none. Gradients exist only within the compiled step and are not kept between steps."""
        return [*devices.variable_bytes(self.devices, [*self.model.variables, *self.optimizer.variables])]

    def versions(self) -> dict[str, str]:
        import keras

        build = tf.sysconfig.get_build_info()
        libraries = {name: build[f"{name}_version"] for name in ("cuda", "cudnn") if f"{name}_version" in build}
        return {"tensorflow": tf.__version__, "keras": keras.__version__, **libraries}

    def _build_model(self, compute_dtype: str) -> NetworkModel | UserModel:
        """Build the model with its initial weights, which are equal on all ranks, and for scalebench's own networks in
        all frameworks."""
        model_spec, config = self.spec.config.model, self.spec.config
        if user_code.is_user_model(model_spec):
            model = user_model.build_user_model(config, compute_dtype, self.place.rank)
            optional_count = model_spec.params is None
        else:
            network, optional_count = networks.build_network(model_spec), False
            model = NetworkModel(
                network,
                initial_weights(((a.name, a.shape, a.init) for a in network.arrays), config.seed),
                data_format="nhwc" if config.train.data_format == "default" else config.train.data_format,
                compute_dtype=compute_dtype,
                dropout=config.train.dropout,
                node_devices=self.node_devices(network),
            )
        params = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        if params != model_spec.params and not optional_count:
            raise RuntimeError(f"{model_spec.name} has {params} parameters here and {model_spec.params} in the config")
        return model

    def step_signature(self) -> list[Any]:
        """Return the signature of the compiled step."""
        return [(self._part_spec(),) * len(self.input_devices()), tf.TensorSpec((), tf.float32)]

    def _part_spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Return the specs of inputs and targets for any number of samples, so that no batch retraces the step."""
        model, dataset = self.spec.config.model, self.spec.config.dataset
        target_dtype = tf.int64 if dataset.classes is not None else tf.float32
        return (
            batches.input_specs(self.spec.config, None)
            if dataset.dtype == records.RECORD
            else tf.TensorSpec((None, *model.input_shape), tf.as_dtype(dataset.dtype)),
            tf.TensorSpec((None, *model.target_shape), target_dtype),
        )
