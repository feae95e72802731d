"""In-graph replication as in Keras 2: one graph slices a batch, runs a tower of the model on each device, and updates
one copy of the weights. docs/studies/in-graph-replication.md describes the original implementations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from scalebench.core.errors import InputError
from scalebench.core.spec import RunSpec
from scalebench.strategies import refusals
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.tensorflow import batches, central_storage, optimizer
from scalebench.strategies.tensorflow.base import Tensors
from scalebench.strategies.tensorflow.batches import DevicePart, TfBatches
from scalebench.workloads.source import Source, prefetch


class Tower(NamedTuple):
    """One device's part of a step while it is traced."""

    weights: list[tf.Tensor]  # copies on the device
    outputs: tf.Tensor
    statistics: list[tf.Tensor]  # moving statistics after the tower's samples
    states: list[tf.Tensor]  # states of random layers after the tower's draws


class InGraph(central_storage.SingleCopyStrategy):
    """In-graph replication over all devices of one process, each with a tower of the graph."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        if self.options.reduction == "nccl" and spec.config.strategy.backend != "nccl":
            raise InputError("strategy.options.reduction=nccl needs strategy.backend=nccl as well")

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads full batches, which its graph slices

    def setup(self) -> None:
        refusals.refuse(refusals.in_graph_rule(self.spec, self.options))
        super().setup()

    def join(self) -> None:
        self.parameter_device = "/CPU:0" if self.options.variable_device == "cpu" else self.devices[0]
        places = {"cpu": "/CPU:0", "first": self.devices[0], "parameter": self.parameter_device}
        self.merge_device = places[self.options.merge_device]
        self._full_batch_device = "/CPU:0" if self.options.slice_device == "cpu" else self.parameter_device

    def scope(self) -> AbstractContextManager[Any]:
        return tf.device(self.parameter_device)

    def input_devices(self) -> list[str]:
        """Return the device of the full batch, which the step slices, or the devices of slices that are staged."""
        return self.devices if self.options.enqueue else [self._full_batch_device]

    def feed(self, source: Source) -> TfBatches:
        settings = self.spec.config.dataset
        if source.feed != "fixed":
            last = source.global_samples(source.steps_per_epoch - 1)
            rule = refusals.equal_slices_rule(self.spec, self.options, last, "the last batch of an epoch")
            refusals.refuse(rule)
        full = batches.feed_batches(source, [self._full_batch_device], settings.feed, settings.prefetch)
        return prefetch(self._stage_batches(full), depth=1) if self.options.enqueue else full

    def _stage_batches(self, full: TfBatches) -> TfBatches:
        """Yield batches whose slices are on the devices. In a thread that is one batch ahead of the step, this is the
        double buffer that StagingArea was in a graph."""
        cut = tf.function(
            lambda *part: list(zip(*map(self._slice, part), strict=True)),
            input_signature=self._part_spec(),
            autograph=False,
        )
        with closing(full):
            for batch in full:
                slices = zip(cut(*batch.parts[0]), self.devices, strict=True)
                # Copied outside of the function, whose results would all be on one device.
                yield batch._replace(parts=tuple(batches.copy_to_device(part, device) for part, device in slices))

    def compute_step(self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> tf.Tensor:
        """Train one step, with tf.gradients, which computes each gradient on the device of the forward pass; a gradient
        tape would run the entire backward pass on one device."""
        towers = self._build_towers(parts)
        sums = [] if self.options.loss == "merged" else self._tower_loss_sums(towers, parts)
        with tf.device(self.merge_device):
            with tf.name_scope("merge"):
                if sums:
                    loss_sum = tf.reduce_sum(tf.stack(sums))
                else:
                    outputs = tf.concat([tower.outputs for tower in towers], 0)
                    targets = tf.concat([part_targets for _, part_targets in parts], 0)
                    loss_sum = tf.reduce_sum(self._loss(outputs, targets))
            loss = self.optimizer.scale_loss(loss_sum / global_samples)
        self.update_weights(self._tower_gradients(loss, towers, self.devices), self.model.trained)
        with tf.device(self.parameter_device):
            for number, variable in enumerate(self.model.moving_statistics):
                variable.assign(tf.reduce_mean(tf.stack([tower.statistics[number] for tower in towers]), 0))
            for variable, state in zip(self.model.random_states, towers[-1].states, strict=True):
                variable.assign(state)
        return loss_sum

    def _tower_loss_sums(self, towers: list[Tower], parts: tuple[DevicePart, ...]) -> list[tf.Tensor]:
        sums = []
        for device, tower, tower_targets in zip(self.devices, towers, self._slices_of(parts, 1), strict=True):
            with tf.device(device):
                sums.append(tf.reduce_sum(self._loss(tower.outputs, tower_targets)))
        return sums

    @staticmethod
    def _tower_gradients(loss: tf.Tensor, towers: list[Tower], devices: Sequence[str]) -> list[list[tf.Tensor]]:
        """Return the gradients of each tower's weights on its device, 0 for weights that the loss is independent of."""
        gradients = iter(tf.gradients(loss, [weight for tower in towers for weight in tower.weights]))
        per_tower = []
        for device, tower in zip(devices, towers, strict=True):
            with tf.device(device):
                per_tower.append(optimizer.dense_gradients([next(gradients) for _ in tower.weights], tower.weights))
        return per_tower

    def compute_per_device(
        self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor, backward: bool
    ) -> list[Tensors]:
        """Compute the loss of each tower's own outputs, even if the step merges them first, since a tower would then
        wait for the others between forward and backward pass."""
        towers, results = self._build_towers(parts), []
        for device, tower, loss_sum in zip(self.devices, towers, self._tower_loss_sums(towers, parts), strict=True):
            with tf.device(device):
                loss = self.optimizer.scale_loss(loss_sum / global_samples)
            gradients = self._tower_gradients(loss, [tower], [device])[0] if backward else []
            results.append([loss_sum, *gradients])
        return results

    def copy_batch(self, batch: Any) -> None:
        if self.spec.device != "cpu" and "GPU" not in self.input_devices()[0]:
            raise NotMeasured(f"the graph of {self.spec.config.strategy.name} itself takes the samples to the devices")
        super().copy_batch(batch)

    def _build_towers(self, parts: tuple[DevicePart, ...]) -> list[Tower]:
        """Build the towers, each on its device. In their scopes the model computes with copies of its variables, and
        its assignments are only recorded; each tower continues the random states of the previous one."""
        trained, moving, random_states = self.model.trained, self.model.moving_statistics, self.model.random_states
        with tf.device(self.parameter_device):
            values = [tf.convert_to_tensor(variable) for variable in [*trained, *moving]]
            states = [tf.convert_to_tensor(variable) for variable in random_states]
        towers: list[Tower] = []
        for number, inputs in enumerate(self._slices_of(parts, 0)):
            with tf.device(self.devices[number]), tf.name_scope(f"tower_{number}"):
                copies = [tf.identity(value) for value in values]
                mapping = list(zip([*trained, *moving, *random_states], [*copies, *states], strict=True))
                with keras.StatelessScope(state_mapping=mapping) as scope:
                    outputs = self.model(inputs, training=True)
            statistics, states = (
                [scope.get_current_value(variable) for variable in group] for group in (moving, random_states)
            )
            towers.append(Tower(copies[: len(trained)], outputs, statistics, states))
        return towers

    def _slices_of(self, parts: tuple[DevicePart, ...], column: int) -> list[tf.Tensor]:
        """Return one slice per device of the inputs (column 0) or targets (1) of a batch, staged or not."""
        if self.options.enqueue:
            return [part[column] for part in parts]
        return self._slice(parts[0][column])

    def _slice(self, batch: tf.Tensor) -> list[tf.Tensor]:
        """Slice a batch into one equal slice per device; the last one also gets the remainder."""
        count, slices = len(self.devices), []
        for number, own_device in enumerate(self.devices):
            device = own_device if self.options.slice_device == "each" else self._full_batch_device
            with tf.device(device), tf.name_scope("slice"):
                size = tf.shape(batch)[0] // count
                stop = None if number == count - 1 else (number + 1) * size
                slices.append(batch[number * size : stop])
        return slices

    def reduce_gradients(self, per_device: Sequence[Tensors]) -> list[tf.Tensor]:
        if self.options.reduction == "nccl":
            return central_storage.all_reduce_gradients(per_device, self.devices, self.parameter_device)
        return central_storage.sum_gradients(per_device, [self.parameter_device])
