"""The base class of all TensorFlow strategies: devices, model, optimizer, a compiled step, metrics and probes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from scalebench.core.probe_record import Profile
from scalebench.core.spec import RunSpec
from scalebench.strategies import recording
from scalebench.strategies.base import BACKWARD, OPTIMIZER, LossPart, NotMeasured, Strategy, refuse_other_weights
from scalebench.strategies.tensorflow import batches, devices, optimizer, profiling, user_model
from scalebench.strategies.tensorflow.batches import DevicePart, TfBatch
from scalebench.strategies.tensorflow.cluster import WorkerGroup
from scalebench.strategies.tensorflow.model import NetworkModel, read_weights
from scalebench.strategies.tensorflow.user_model import UserModel
from scalebench.workloads import metrics, networks, records, user_code
from scalebench.workloads.network import Network
from scalebench.workloads.source import Source
from scalebench.workloads.weights import initial_weights

Tensors = list[tf.Tensor]  # of one replica or device, such as the sum of its losses and then its gradients


def _timestamp_after(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Return the seconds since the epoch when all tensors are computed. Without run_independently, tf.function would
    run the timestamps one after the other in program order, as it does with all stateful operations."""
    with tf.device("/CPU:0"), tf.control_dependencies(tensors):
        now = tf.timestamp()
    now.graph.experimental_acd_manager.run_independently(now.op)
    return now


class Exchange:
    """An exchange between devices by itself: each call runs a compiled function on the buffers once.

    The buffers are arguments: TensorFlow would compute sums of constants when it compiles the function, which it frees
    only at some later time.
    """

    def __init__(self, run: Callable[[Any], Any], buffers: Any) -> None:
        self.run, self.buffers = tf.function(run, jit_compile=False, autograph=False), buffers

    def __call__(self) -> None:
        self.run(self.buffers)


class TensorFlowStrategy(Strategy):
    """One replica of the model on one device, without synchronization; subclasses add it. The step is a compiled
    function of the batch parts of all devices of its process."""

    model: NetworkModel | UserModel
    devices: list[str]
    workers: WorkerGroup | None = None
    last_batch: Any = None  # of the training, a full one, as `feed` yielded it
    syncs_gradients = True
    sync_scope = ""  # in the names of the operations that sum gradients over devices
    _host: tuple[Any, list[batches.HostArrays]] | None = None  # a batch, and its parts in host memory
    _exchange: tuple[list[int], Exchange] | None = None  # for messages of these bytes

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._loss = optimizer.loss_function(spec.config.model.loss)
        self.compiled: dict[str, Callable[..., Any]] = {}  # traced when first called

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
        self._compute_part: dict[bool, Callable[..., list[tf.Tensor]]] = {
            backward: partial(self.compute_part, backward=backward) for backward in (False, True)
        }
        if settings.train.compile == "default":  # one replica on one device at a time: XLA ignores device placement
            for backward, function in self._compute_part.items():
                self._compute_part[backward] = tf.function(function, jit_compile=True, autograph=False)
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
        return self._compile_once("step" if self.syncs_gradients else "step without sync", self.compute_step)

    def _compile_once(self, key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if key not in self.compiled:
            settings = {"input_signature": self.step_signature(), "jit_compile": False, "autograph": False}
            self.compiled[key] = tf.function(function, **settings)
        return self.compiled[key]

    def compute_step(self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """Train one step on the parts of all devices; return the sum of the losses over their samples."""
        (part,) = parts
        return self.replica_step(*part, global_samples)

    def replica_step(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Train one replica's step. Gradients summed over the replicas are those of the mean over the global batch."""
        loss_sum, *gradients = self.compute(inputs, targets, global_samples, backward=True)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss_sum

    def compute(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor, backward: bool) -> Tensors:
        """Return the sum of the losses of one replica's samples in training mode, and with `backward` the gradients of
        this replica's share of the mean loss."""
        shapes = [(), *(variable.shape for variable in self.model.trainable_variables if backward)]
        mean_over, compute_part = self.loss_divisor(inputs, global_samples), self._compute_part[backward]
        return optimizer.accumulate_parts(
            lambda *part: compute_part(*part, mean_over), inputs, targets, self.spec.config.train.accumulate, shapes
        )

    def compute_part(self, inputs: tf.Tensor, targets: tf.Tensor, mean_over: tf.Tensor, backward: bool) -> Tensors:
        """Compute like `compute`, for samples that are processed at once."""
        if not backward:
            return [self.sum_losses(inputs, targets)]
        weights = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch([weight for weight in weights if tf.is_tensor(weight)])  # the tape watches variables by itself
            loss_sum = self.sum_losses(inputs, targets)
            loss = self.optimizer.scale_loss(loss_sum / mean_over)
        return [loss_sum, *optimizer.dense_gradients(tape.gradient(loss, weights), weights)]

    def sum_losses(self, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(self._loss(self.model(inputs, training=True), targets))

    def compute_per_device(
        self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor, backward: bool
    ) -> list[Tensors]:
        """Compute as `compute` does on every device, without synchronization; all work at the same time, as in
        training."""
        (part,) = parts
        return [self.compute(*part, global_samples, backward)]

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
            return metrics.measure_outputs(
                model, lambda inputs: np.array(forward(inputs)), source.in_order(), self.sum_over_group
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

    def keep_batch(self, batch: Any) -> None:
        """Keep a batch of the training for the probes, unless it is smaller than before, as an epoch's last one is."""
        if self.last_batch is None or batch.samples >= self.last_batch.samples:
            self.last_batch = batch

    def to_step_batch(self, batch: Any) -> TfBatch:
        """Return a batch of `feed` in the form that the step takes."""
        placed: TfBatch = batch
        return placed

    def create_exchange(self, sizes: list[int]) -> Exchange:
        """Return the synchronization of a step with messages of these bytes."""
        raise self.not_measured("has no exchange of its own")

    def run_isolated_sync(self, sizes: list[int]) -> None:
        if self._exchange is None or self._exchange[0] != sizes:
            self._exchange = sizes, self.create_exchange(sizes)
        if self.spec.gpus > 1:  # else nothing is exchanged
            self._exchange[1]()

    def partial_step(self, batch: Any, until: str) -> None:
        """Run a separate compiled function on all devices of the process, as the plain loop does even if Keras' fit
        trains. The forward pass updates moving statistics, and TensorFlow fuses more of its operations if no backward
        pass needs the intermediate results."""
        batch = self.to_step_batch(batch)
        if until == OPTIMIZER:
            self.step_function()(batch.parts, batch.global_samples)
            return

        def run(parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> list[Tensors]:
            # The gradients are returned, since TensorFlow prunes operations whose results are unused.
            return self.compute_per_device(parts, global_samples, until == BACKWARD)

        self._compile_once(until, run)(batch.parts, batch.global_samples)

    def local_step(self, batch: Any) -> list[float]:
        """Return the seconds until each device has its gradients."""
        if len(self.devices) == 1:
            raise NotMeasured(
                "there is one device in this process: its steps without the exchange measure how long it works"
            )
        batch = self.to_step_batch(batch)
        seconds, *_ = self._compile_once("local", self._time_devices)(batch.parts, batch.global_samples)
        return [float(duration) for duration in seconds.numpy()]

    def _time_devices(self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> Any:
        """Compute the results of all devices; return the seconds until each had finished, and what they depend on.

        A GPU's kernels are only queued when their operations return. So a marker is computed behind all of them in the
        device's queue, and the time is taken when the marker has arrived on the host. The markers are returned, like
        the gradients: TensorFlow prunes a result that is used only as a control dependency. The samples in them prevent
        constant folding.
        """
        start, inputs = _timestamp_after([]), []
        with tf.control_dependencies([start]):
            for device, part in zip(self.input_devices(), parts, strict=True):
                with tf.device(device):
                    inputs.append(tf.nest.map_structure(tf.identity, part))  # one sample may have several tensors
        results, ends, markers = self.compute_per_device(tuple(inputs), global_samples, True), [], []
        for loss_sum, *gradients in results:
            with tf.device(loss_sum.device), tf.control_dependencies(gradients):
                on_device = loss_sum + global_samples
            with tf.device("/CPU:0"):
                markers.append(on_device * global_samples)
            ends.append(_timestamp_after(markers[-1:]))
        with tf.device("/CPU:0"):
            seconds = tf.stack(ends) - start
        return seconds, markers, results

    def copy_batch(self, batch: Any) -> None:
        if self.spec.device == "cpu":
            super().copy_batch(batch)
        if self._host is None or self._host[0] is not batch:
            self._host = batch, batches.copy_to_host(self.to_step_batch(batch))
        for device, arrays in zip(self.input_devices(), self._host[1], strict=True):
            batches.copy_to_device(arrays, device)

    def message_sizes(self) -> list[int]:
        """Return the bytes of each gradient or pack of gradients that is summed over devices, as one of them sends it.
        Where there is one copy of the weights, these return in as many bytes."""
        return profiling.reduction_message_bytes(self.step_function().get_concrete_function(), self.sync_scope)

    def profile(self, steps: int, trace: Path | None) -> Profile:
        lines, step_s = profiling.record_steps(self.train, self.last_batch, steps)
        if trace is not None:
            recording.write_chrome_trace(trace, lines, f"rank {self.place.rank}")
        on_gpus = "GPU" in self.devices[0]
        sums = profiling.reduction_operations(self.step_function().get_concrete_function(), self.sync_scope)
        return profiling.summarize_profile(lines, steps, step_s, {operation.name for operation in sums}, on_gpus)
