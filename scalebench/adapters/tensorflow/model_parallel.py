"""Model parallelism in one process: the layers of one model in sequence over its devices, by tf.device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from scalebench.adapters.tensorflow import central, crossings, stage_work, training
from scalebench.adapters.tensorflow.base import TensorFlowStrategy
from scalebench.adapters.tensorflow.feeding import Part
from scalebench.adapters.tensorflow.network import NetworkModel
from scalebench.adapters.tensorflow.pieces import Share
from scalebench.adapters.tensorflow.stage_optimizers import StageOptimizers
from scalebench.results import StageRecord
from scalebench.spec import InputError
from scalebench.strategy import NotMeasured, Unsupported
from scalebench.workloads import partition, user_code
from scalebench.workloads.network import Network
from scalebench.workloads.partition import NetworkStage

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
    _exchange: tuple[list[int], crossings.InTurn] | None = None

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
                gradients += training.dense([found], [weight])
        return loss_sum, gradients

    def each_device(self, parts: tuple[Part, ...], global_samples: tf.Tensor, back: bool) -> list[Share]:
        """All devices have one share, with what their stages pass on; the gradients stay where they are."""
        ((loss_sum, gradients),) = super().each_device(parts, global_samples, back)
        return [Share(loss_sum, stage_work.one_of_each(gradients))]

    def set_gradient_sync(self, on: bool) -> None:
        raise NotMeasured(
            f"{self.spec.config.strategy.name} has one model over all devices, and there is no update without what its "
            f"stages pass on"
        )

    def message_sizes(self) -> list[int]:
        """The activations at the cuts, and behind them their gradients, of a whole global batch."""
        return [self._bytes(tensor) for tensor in crossings.tensors(self._traced())]

    def run_isolated_sync(self, sizes: list[int]) -> None:
        if len(self.devices) == 1:  # nobody to pass anything on to
            return
        if self._exchange is None or self._exchange[0] != sizes:
            self._exchange = sizes, crossings.InTurn(self.devices, sizes)
        self._exchange[1]()

    def local_step(self, batch: Any) -> list[float]:
        raise NotMeasured("each stage waits for the one before it; `stages` of the record tells how long each works")

    def backend_used(self) -> str | None:
        return crossings.observed_backend(self.train, self._traced(), self.last_batch)

    def stages(self) -> list[StageRecord]:
        """Seconds are of the last batch of the training, whose size it may be that it does not share."""
        if len(self.cut) == 1:
            return []
        work_s: list[float] | list[None] = [None] * len(self.cut)
        if self.last_batch is not None:
            work_s = stage_work.seconds(self.model, self.cut, self.last_batch.parts[0], self._loss)
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
        central.refuse_compiler(settings)
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
