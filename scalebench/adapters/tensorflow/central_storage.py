"""tf.distribute.experimental.CentralStorageStrategy: one copy of the weights, on the CPU or on the first device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from scalebench.adapters.tensorflow import central
from scalebench.adapters.tensorflow.feeding import Part
from scalebench.adapters.tensorflow.mirrored import Replicated
from scalebench.strategy import Unsupported
from scalebench.workloads import networks, user_code


@dataclass
class CentralStorageOptions:
    """Where the weights are."""

    parameter_device: str = "cpu"  # cpu | first


class CentralStorage(central.OneCopy, Replicated):
    """All devices of one process. Moving statistics are the mean over the replicas' after every update."""

    Options = CentralStorageOptions

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads whole batches, and deals them out to its devices

    def setup(self) -> None:
        model = self.spec.config.model
        central.refuse_compiler(self.spec.config)
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

    def total(self, of_devices: Sequence[central.Tensors]) -> list[tf.Tensor]:
        return central.added_up(of_devices, self.parameter_device)
