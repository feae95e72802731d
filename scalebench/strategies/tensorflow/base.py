"""What all TensorFlow strategies share: devices, model, optimizer, one weighted update, metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import LossPart
from scalebench.strategies.tensorflow import batches, devices, evaluation, observed, optimizer, precision, user_model
from scalebench.strategies.tensorflow import optimizer as training
from scalebench.strategies.tensorflow.batches import Part, TfBatch
from scalebench.strategies.tensorflow.model import NetworkModel, read_weights
from scalebench.strategies.tensorflow.probes import Probed, Share
from scalebench.strategies.tensorflow.user_model import OwnModel
from scalebench.workloads import networks, user_code
from scalebench.workloads.network import Network
from scalebench.workloads.source import Source
from scalebench.workloads.weights import initial_weights


class TensorFlowStrategy(Probed):
    """One replica of the model on one device. By itself it talks to nobody; subclasses say how they do."""

    model: NetworkModel | OwnModel
    devices: list[str]

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self.exchanging = True
        self._loss = training.loss(spec.config.model.loss)
        self._functions: dict[bool, Callable[..., tf.Tensor]] = {}  # by whether gradients are exchanged

    def join(self) -> None:
        """Meet the other processes, where there are any; `devices` are known."""

    def scope(self) -> AbstractContextManager[Any]:
        """Where model and optimizer are made."""
        return nullcontext()

    def setup(self) -> None:
        settings = self.spec.config
        if user_code.is_user_model(settings.model):
            user_model.refuse(settings)
        self.devices = devices.configure(self.spec.device, self.place)
        computes_in = precision.choose(settings.train.precision, self.devices[0])
        if settings.train.data_format != "default":
            precision.keep_layout()
        self.join()  # before the first operation, which settles what TensorFlow's devices are
        if settings.train.data_format == "nchw":
            precision.check_channels_first(self.devices[0], computes_in)
        tf.random.set_seed(settings.seed + self.place.rank)  # of dropout; weights come from numpy
        with self.scope():
            self.model = self._build(computes_in)
            self.optimizer = precision.scaled(self.plain_optimizer(), settings.train.precision)
            self.optimizer.build(self.model.trainable_variables)
        if isinstance(self.model, OwnModel) and self.spec.processes > 1 and not self.spec.services:
            user_model.check_alike(self.model, settings, self.broadcast, self.group_sum)
        self._part_loss, self._part_gradients = self.part_loss, self.part_gradients
        if settings.train.compile:  # of one replica, on one device: XLA takes no notice of several
            self._part_loss = tf.function(self.part_loss, jit_compile=True, autograph=False)
            self._part_gradients = tf.function(self.part_gradients, jit_compile=True, autograph=False)
        self._forward = tf.function(self.forward, input_signature=[self._part_spec()[0]], autograph=False)

    def plain_optimizer(self) -> Any:
        """The optimizer by itself, without what lower precisions need, and not built yet."""
        return training.optimizer(self.spec.config.train, self.spec.learning_rate)

    def device_of(self, network: Network) -> dict[str, str]:
        """Of nodes of the network by name, where they are not all on the device of `scope`."""
        return {}

    def feed_devices(self) -> list[str]:
        """Where the parts of a batch are put, one on each."""
        return self.devices

    def feed(self, source: Source) -> Iterable[TfBatch]:
        settings = self.spec.config.dataset
        return batches.batches(source, self.feed_devices(), settings.feed, settings.prefetch)

    def step(self, batch: TfBatch) -> LossPart | None:
        self.last_batch = batch
        return LossPart(self.update_function()(batch.parts, batch.global_samples), batch.samples)

    def update_function(self) -> Callable[..., tf.Tensor]:
        """The compiled update, with or without the exchange: (parts, samples of the global batch) -> loss sum."""
        if self.exchanging not in self._functions:
            self._functions[self.exchanging] = tf.function(
                self.update, input_signature=self.signature(), jit_compile=False, autograph=False
            )
        return self._functions[self.exchanging]

    def update(self, parts: tuple[Part, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """One update from the parts of all devices; the sum of the losses over their samples."""
        (part,) = parts
        return self.update_replica(*part, global_samples)

    def update_replica(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """One replica's update. Gradients added up over the replicas are those of the mean over the global batch."""
        loss_sum, gradients = self.gradients(inputs, targets, global_samples)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss_sum

    def gradients(
        self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """(sum of the losses, gradients of their share of the mean) over one replica's samples."""
        parts, mean_over = self.spec.config.train.accumulate, self.loss_samples(inputs, global_samples)
        if parts == 1:
            return self._part_gradients(inputs, targets, mean_over)

        def of_part(inputs: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
            loss_sum, gradients = self._part_gradients(inputs, targets, mean_over)
            return [loss_sum, *gradients]

        shapes = [(), *(variable.shape for variable in self.model.trainable_variables)]
        loss_sum, *gradients = optimizer.summed(of_part, inputs, targets, parts, shapes)
        return loss_sum, gradients

    def training_loss(self, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """The forward pass of one replica in training: the sum of the losses over its samples."""
        parts = self.spec.config.train.accumulate
        if parts == 1:
            return self._part_loss(inputs, targets)
        return optimizer.summed(lambda *part: [self._part_loss(*part)], inputs, targets, parts, [()])[0]

    def part_gradients(
        self, inputs: tf.Tensor, targets: tf.Tensor, mean_over: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """As `gradients`, of samples that are computed at once."""
        weights = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch([weight for weight in weights if tf.is_tensor(weight)])  # variables are by themselves
            loss_sum = self.part_loss(inputs, targets)
            loss = self.optimizer.scale_loss(loss_sum / mean_over)
        return loss_sum, training.dense(tape.gradient(loss, weights), weights)

    def part_loss(self, inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """As `training_loss`, of samples that are computed at once."""
        return tf.reduce_sum(self._loss(self.model(inputs, training=True), targets))

    def each_device(self, parts: tuple[Part, ...], global_samples: tf.Tensor, back: bool) -> list[Share]:
        """What every device of this process finds out by itself: its loss and, if `back`, its gradients."""
        (part,) = parts
        return [Share(*self.gradients(*part, global_samples)) if back else Share(self.training_loss(*part), [])]

    def set_learning_rate(self, rate: float) -> None:
        training.set_learning_rate(self.optimizer, rate)

    def loss_samples(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """How many samples the loss is a mean over."""
        return global_samples

    def model_type(self) -> type[NetworkModel] | type[OwnModel]:
        return OwnModel if user_code.is_user_model(self.spec.config.model) else NetworkModel

    def forward(self, inputs: tf.Tensor) -> tf.Tensor:
        """The model's outputs, for validation."""
        return self.model(inputs, training=False)

    def synchronize(self) -> None:
        devices.synchronize()

    def broadcast(self, value: float) -> float:
        return value

    def group_sum(self, values: list[float]) -> list[float]:
        """Sums over the processes."""
        return values

    def backend_used(self) -> str | None:
        return None

    def evaluate(self, source: Source) -> dict[str, float]:
        wanted, train, forward = self.spec.config.model, self.spec.config.train, self._forward
        if train.accumulate > 1:  # a batch at once may be too much for the device
            forward = partial(evaluation.in_slices, forward, -(-self.spec.batch_per_device // train.accumulate))
        with tf.device(self.devices[0]):
            if wanted.loss == "cross_entropy":
                return evaluation.classification(forward, source, self.group_sum)
            return evaluation.mean_squared_errors(forward, source, wanted.targets, self.group_sum)

    def settings_used(self) -> dict[str, str]:
        function = self.update_function().get_concrete_function()
        kept = self.spec.config.train.data_format != "default"
        return precision.of_update(function, self.devices[0], kept) | {"compiler": observed.compiler(function)}

    def num_params(self) -> int:
        return sum(math.prod(variable.shape) for variable in self.model.trainable_variables)

    def parameters(self) -> dict[str, Any]:
        return read_weights(self.model)

    def peak_memory_bytes(self) -> list[int | None]:
        return [devices.peak_memory_bytes(device) for device in self.devices]

    def state_bytes(self) -> list[int | None]:
        """Weights, moving statistics and the optimizer's variables, where they really are; 0 on a device that keeps
        nothing. Gradients live within the compiled update, and none is kept from one to the next."""
        return [*devices.kept_bytes(self.devices, [*self.model.variables, *self.optimizer.variables])]

    def versions(self) -> dict[str, str]:
        import keras

        build = tf.sysconfig.get_build_info()
        found = {"tensorflow": tf.__version__, "keras": keras.__version__}
        return found | {name: build[f"{name}_version"] for name in ("cuda", "cudnn") if f"{name}_version" in build}

    def _build(self, computes_in: str) -> NetworkModel | OwnModel:
        """The model with the weights that every rank starts from, and with a network of ours every framework."""
        wanted, own = self.spec.config.model, user_code.is_user_model(self.spec.config.model)
        model = self._built_own(computes_in) if own else self._built_network(computes_in)
        found = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        if found != wanted.params and not (own and wanted.params is None):
            raise RuntimeError(f"{wanted.name} has {found} parameters here and {wanted.params} in the config")
        return model

    def _built_own(self, computes_in: str) -> OwnModel:
        return user_model.build(self.spec.config, computes_in, self.place.rank, self.model_type())

    def _built_network(self, computes_in: str) -> NetworkModel:
        settings = self.spec.config
        network = networks.build_network(settings.model)
        layout = "nhwc" if settings.train.data_format == "default" else settings.train.data_format
        return self.model_type()(
            network,
            initial_weights(((a.name, a.shape, a.init) for a in network.arrays), settings.seed),
            data_format=layout,
            compute_dtype=computes_in,
            dropout=settings.train.dropout,
            device_of=self.device_of(network),
        )

    def signature(self) -> list[Any]:
        """What the update takes."""
        return [(self._part_spec(),) * len(self.feed_devices()), tf.TensorSpec((), tf.float32)]

    def _part_spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Inputs and targets of any number of samples, so that no batch traces the update again."""
        wanted = self.spec.config.model
        labels = tf.int64 if self.spec.config.dataset.classes is not None else tf.float32
        return (
            tf.TensorSpec((None, *wanted.input_shape), tf.as_dtype(self.spec.config.dataset.dtype)),
            tf.TensorSpec((None, *wanted.target_shape), labels),
        )
