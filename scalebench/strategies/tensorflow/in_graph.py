"""In-graph replication as Keras 2 had it: one graph cuts a batch up, runs a tower of the model on each device, and
updates one copy of the weights. What the originals did: docs/in-graph-replication.md."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.tensorflow import central_storage, observed, optimizer
from scalebench.strategies.tensorflow.batches import Part, TfBatches
from scalebench.strategies.tensorflow.probes import Share
from scalebench.workloads.source import Source


@dataclass
class InGraphOptions:
    """Where is what. The parameter device is the one of the weights."""

    variable_device: str = "cpu"  # cpu | first
    slice_device: str = "cpu"  # each: the whole batch goes to every device, which cuts out its own | parameter | cpu
    merge_device: str = "cpu"  # parameter | cpu: where outputs and losses of the towers come together
    loss: str = "merged"  # merged: of all outputs at once | tower: of its own outputs, on its device
    reduction: str = "add"  # add: on the parameter device | nccl: all-reduce, which wants strategy.backend=nccl
    uneven: str = "last"  # last: the last tower also takes the rest of a batch | refused


class Tower(NamedTuple):
    """One device's part of an update while it is traced."""

    weights: list[tf.Tensor]  # as they came to the device
    outputs: tf.Tensor
    statistics: list[tf.Tensor]  # moving statistics after its samples
    states: list[tf.Tensor]  # of random layers, after its draws


class InGraph(central_storage.OneCopy):
    """All devices of one process, as towers of one graph."""

    Options = InGraphOptions

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        if self.options.reduction == "nccl" and spec.config.strategy.backend != "nccl":
            raise InputError("strategy.options.reduction=nccl wants strategy.backend=nccl as well")

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads whole batches, and its graph cuts them up

    def setup(self) -> None:
        central_storage.refuse_compiler(self.spec.config)
        central_storage.refuse_parts(self.spec.config)
        if self.options.reduction == "nccl" and self.spec.device == "cpu":
            raise Unsupported("strategy.options.reduction=nccl adds gradients up over NCCL, which needs GPUs; use add")
        self._check_divides(self.spec.global_batch, "a global batch")
        super().setup()

    def join(self) -> None:
        self.parameter_device = "/CPU:0" if self.options.variable_device == "cpu" else self.devices[0]
        self.merge_device = "/CPU:0" if self.options.merge_device == "cpu" else self.parameter_device

    def scope(self) -> AbstractContextManager[Any]:
        return tf.device(self.parameter_device)

    def feed_devices(self) -> list[str]:
        """Of the whole batch, before it is cut up."""
        return ["/CPU:0" if self.options.slice_device == "cpu" else self.parameter_device]

    def feed(self, source: Source) -> TfBatches:
        if source.feed != "fixed":
            self._check_divides(source.global_samples(source.steps_per_epoch - 1), "the last batch of an epoch")
        return super().feed(source)

    def update(self, parts: tuple[Part, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """A gradient tape would leave the whole backward pass on one device; tf.gradients keeps it with the forward."""
        ((inputs, targets),) = parts
        towers = self._towers(inputs)
        loss_sum = self._loss_sum(towers, targets)
        with tf.device(self.merge_device):
            loss = self.optimizer.scale_loss(loss_sum / global_samples)
        of_towers = self._gradients(loss, towers, self.devices)
        with tf.device(self.parameter_device):
            self.optimizer.apply(self.total(of_towers), self.model.trained)
            for number, variable in enumerate(self.model.moving):
                variable.assign(tf.reduce_mean(tf.stack([tower.statistics[number] for tower in towers]), 0))
            for variable, state in zip(self.model.drawing, towers[-1].states, strict=True):
                variable.assign(state)
        return loss_sum

    @staticmethod
    def _gradients(loss: tf.Tensor, towers: list[Tower], devices: Sequence[str]) -> list[list[tf.Tensor]]:
        """Of each tower's weights, all of them tensors on its device: 0 where the loss does not hang on a weight."""
        found = iter(tf.gradients(loss, [weight for tower in towers for weight in tower.weights]))
        of_towers = []
        for device, tower in zip(devices, towers, strict=True):
            with tf.device(device):
                of_towers.append(optimizer.dense([next(found) for _ in tower.weights], tower.weights))
        return of_towers

    def backend_used(self) -> str | None:
        return observed.observed_backend(self.train, self.update_function(), self.last_batch)

    def each_device(self, parts: tuple[Part, ...], global_samples: tf.Tensor, back: bool) -> list[Share]:
        """Each tower has the loss of its own outputs, also where the update merges them first: there it would wait for
        the others in the middle."""
        ((inputs, targets),) = parts
        towers, shares = self._towers(inputs), []
        for device, tower, loss_sum in zip(self.devices, towers, self._own_loss_sums(towers, targets), strict=True):
            with tf.device(device):
                loss = self.optimizer.scale_loss(loss_sum / global_samples)
            shares.append(Share(loss_sum, self._gradients(loss, [tower], [device])[0] if back else []))
        return shares

    def copy_batch(self, batch: Any) -> None:
        if self.spec.device != "cpu" and "GPU" not in self.feed_devices()[0]:
            raise NotMeasured(f"the graph of {self.spec.config.strategy.name} itself takes the samples to the devices")
        super().copy_batch(batch)

    def _towers(self, inputs: tf.Tensor) -> list[Tower]:
        with tf.device(self.parameter_device):
            values = [tf.convert_to_tensor(variable) for variable in [*self.model.trained, *self.model.moving]]
            states = [tf.convert_to_tensor(variable) for variable in self.model.drawing]
        towers: list[Tower] = []
        for number, part in enumerate(self._cut(inputs)):
            towers.append(self._tower(number, part, values, states))
            states = towers[-1].states  # each goes on where the one before it stopped, and so draws other numbers
        return towers

    def _tower(self, number: int, inputs: tf.Tensor, values: list[tf.Tensor], states: list[tf.Tensor]) -> Tower:
        """`values` of the model's trained and moving variables, `states` of its random layers, on another device."""
        trained, moving, drawing = self.model.trained, self.model.moving, self.model.drawing
        with tf.device(self.devices[number]), tf.name_scope(f"tower_{number}"):
            own = [tf.identity(value) for value in values]
            # In this scope the model computes with these values, and its assignments are only noted.
            mapping = list(zip([*trained, *moving, *drawing], [*own, *states], strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                outputs = self.model(inputs, training=True)
        statistics, after = ([scope.get_current_value(variable) for variable in kind] for kind in (moving, drawing))
        return Tower(own[: len(trained)], outputs, statistics, after)

    def _cut(self, batch: tf.Tensor) -> list[tf.Tensor]:
        """One slice for each device, equal ones but for the last, which also has the rest."""
        count, slices = len(self.devices), []
        for number, own in enumerate(self.devices):
            device = own if self.options.slice_device == "each" else self.feed_devices()[0]
            with tf.device(device), tf.name_scope("slice"):
                share = tf.shape(batch)[0] // count
                stop = None if number == count - 1 else (number + 1) * share
                slices.append(batch[number * share : stop])
        return slices

    def _loss_sum(self, towers: list[Tower], targets: tf.Tensor) -> tf.Tensor:
        if self.options.loss == "merged":
            with tf.device(self.merge_device), tf.name_scope("merge"):
                outputs = tf.concat([tower.outputs for tower in towers], 0)
                return tf.reduce_sum(self._loss(outputs, targets))
        sums = self._own_loss_sums(towers, targets)
        with tf.device(self.merge_device), tf.name_scope("merge"):
            return tf.reduce_sum(tf.stack(sums))

    def _own_loss_sums(self, towers: list[Tower], targets: tf.Tensor) -> list[tf.Tensor]:
        sums = []
        for device, tower, own in zip(self.devices, towers, self._cut(targets), strict=True):
            with tf.device(device):
                sums.append(tf.reduce_sum(self._loss(tower.outputs, own)))
        return sums

    def total(self, of_devices: Sequence[central_storage.Tensors]) -> list[tf.Tensor]:
        if self.options.reduction == "nccl":
            return central_storage.all_reduced(of_devices, self.devices, self.parameter_device)
        return central_storage.added_up(of_devices, self.parameter_device)

    def _check_divides(self, samples: int, what: str) -> None:
        gpus = self.spec.gpus
        if self.options.uneven == "refused" and samples % gpus:
            raise Unsupported(
                f"{self.spec.config.strategy.name} cuts batches into equal slices, and {what} of {samples} samples "
                f"does not divide by {gpus} devices; choose another batch or dataset.size, or set "
                f"strategy.options.uneven=last"
            )
